package weights

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

const (
	// headerWay has the nodes that a chunk has passed, with commas between them.
	headerWay = "stator-weights-way"
	// awaitWithin bounds the wait for a chunk that has not come yet.
	awaitWithin = 10 * time.Second
	// sendWithin bounds the time in which a receiver takes a chunk.
	sendWithin = time.Minute
	// idleWithin is the time without a request after which a receiver's place is free.
	idleWithin = time.Second
	// maxRequests bounds the requests of one receiver at a time.
	maxRequests = 32
)

// nodePattern is the rule of node names: they stand in headers with commas between them.
var nodePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// ValidNode reports whether a name is allowed for a node.
func ValidNode(name string) bool { return nodePattern.MatchString(name) }

// Status describes the files that a node has of a model.
type Status struct {
	// ID is the identity of the manifest.
	ID Sum `json:"id"`
	// Chunks is their number, and Has counts those that the node has.
	Chunks int `json:"chunks"`
	Has    int `json:"has"`
	// Way has the nodes from one with all files to this one. It is empty if no chunks come to the node now.
	Way []string `json:"way"`
	// IsFree reports whether the node sends to one more receiver.
	IsFree bool `json:"free"`
}

// ShareConfig is read by NewShare and not changed later.
type ShareConfig struct {
	// Node is the name of this node, which is different on each.
	Node string
	// Receivers is the number of nodes that are sent to at a time. One makes chains, which is best where all links are equal.
	Receivers int
	Log       *slog.Logger
}

// Share serves folders to other nodes. Create it with [NewShare]. Its memory is bounded by the folders' manifests and by the number of
// receivers.
type Share struct {
	cfg ShareConfig
	mux *http.ServeMux

	mu        sync.Mutex
	folders   map[string]*Folder   // guarded by mu; by model
	receivers map[string]*receiver // guarded by mu; by node, at most cfg.Receivers that are not idle
	sent      int64                // guarded by mu; bytes
}

// receiver is a node that fetches from this one.
type receiver struct {
	requests int
	last     time.Time // when the last request ended
}

// NewShare returns a share without folders.
func NewShare(cfg ShareConfig) *Share {
	s := &Share{cfg: cfg, mux: http.NewServeMux(), folders: map[string]*Folder{}, receivers: map[string]*receiver{}}
	s.mux.HandleFunc("GET /readyz", s.serveReady)
	s.mux.HandleFunc("GET /weights", s.serveStatus)
	s.mux.HandleFunc("GET /weights/{id}", s.serveManifest)
	s.mux.HandleFunc("GET /weights/{id}/{chunk}", s.serveChunk)
	return s
}

// Add serves a model's folder, in place of another one of this model.
func (s *Share) Add(model string, f *Folder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.folders[model] = f
}

// Sent returns the bytes of chunks that were sent.
func (s *Share) Sent() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

// Ready returns nil if all folders are complete.
func (s *Share) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.folders) == 0 {
		return errors.New("no files have come yet")
	}
	for model, f := range s.folders {
		if has, _ := f.state(s.cfg.Node); has < f.manifest.Chunks() {
			return fmt.Errorf("the files of %s are not complete: %d of %d chunks", model, has, f.manifest.Chunks())
		}
	}
	return nil
}

// IsIdle reports whether no other node fetches.
func (s *Share) IsIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetIdle(time.Now())
	return len(s.receivers) == 0
}

// maxConnections bounds the connections of other nodes. Further ones wait to be accepted.
const maxConnections = 1024

// Serve serves on ln until ctx ends.
func (s *Share) Serve(ctx context.Context, ln net.Listener) error {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: sendWithin, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	err := server.Serve(netutil.LimitListener(ln, maxConnections))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// ServeHTTP serves a request of another node.
func (s *Share) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// serveReady answers 200 if all folders are complete, for probes.
func (s *Share) serveReady(w http.ResponseWriter, _ *http.Request) {
	if err := s.Ready(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ready\n"))
}

// serveStatus serves the status of a model.
func (s *Share) serveStatus(w http.ResponseWriter, r *http.Request) {
	model := r.URL.Query().Get("model")
	s.mu.Lock()
	f := s.folders[model]
	s.forgetIdle(time.Now())
	free := len(s.receivers) < s.cfg.Receivers
	s.mu.Unlock()
	if f == nil {
		http.Error(w, "this node does not have the model", http.StatusNotFound)
		return
	}

	has, way := f.state(s.cfg.Node)
	w.Header().Set("content-type", "application/json")
	_ = json.NewEncoder(w).Encode(Status{ID: f.manifest.id, Chunks: f.manifest.Chunks(), Has: has, Way: way, IsFree: free && len(way) > 0})
}

// folder returns the folder with a manifest.
func (s *Share) folder(id string) *Folder {
	sum, err := ParseSum(id)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.folders {
		if f.manifest.id == sum {
			return f
		}
	}
	return nil
}

// serveManifest serves the encoding of a manifest.
func (s *Share) serveManifest(w http.ResponseWriter, r *http.Request) {
	f := s.folder(r.PathValue("id"))
	if f == nil {
		http.Error(w, "this node does not have the manifest", http.StatusNotFound)
		return
	}
	w.Header().Set("content-type", "application/json")
	w.Header().Set("content-length", strconv.Itoa(len(f.manifest.text)))
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(sendWithin))
	_, _ = w.Write(f.manifest.text)
}

// serveChunk serves a chunk, when it is there.
func (s *Share) serveChunk(w http.ResponseWriter, r *http.Request) {
	f, node := s.folder(r.PathValue("id")), r.URL.Query().Get("node")
	i, err := strconv.Atoi(r.PathValue("chunk"))
	if f == nil || err != nil || i < 0 || i >= f.manifest.Chunks() || !ValidNode(node) {
		http.Error(w, "there is no such chunk, or the receiver's name is not valid", http.StatusNotFound)
		return
	}
	if err := s.enter(node); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer s.leave(node)

	// A chunk that has not come yet is worth a wait: the receiver is behind this node in the chain.
	ctx, cancel := context.WithTimeout(r.Context(), awaitWithin)
	defer cancel()
	isThere := f.await(ctx, i)
	_, way := f.state(s.cfg.Node)
	switch {
	case slices.Contains(way, node):
		http.Error(w, "the chunks of this node come from you", http.StatusConflict)
		return
	case !isThere:
		http.Error(w, "the chunk has not come yet", http.StatusServiceUnavailable)
		return
	}

	c := f.manifest.chunks[i]
	w.Header().Set("content-type", "application/octet-stream")
	w.Header().Set("content-length", strconv.Itoa(c.bytes))
	w.Header().Set(headerWay, strings.Join(way, ","))
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(sendWithin))
	if err := f.send(w, i); err != nil {
		s.cfg.Log.Debug("a chunk was not sent", "node", node, "err", err)
		panic(http.ErrAbortHandler) // the receiver must see that bytes are missing
	}
	s.mu.Lock()
	s.sent += int64(c.bytes)
	s.mu.Unlock()
}

var (
	errBusy     = errors.New("this node sends to others already")
	errRequests = fmt.Errorf("more than %d requests at a time", maxRequests)
)

// enter takes a place for a receiver's request. A place belongs to a node and not to a request, so that a receiver keeps its sender from
// one chunk to the next, and a second one does not take turns with it.
func (s *Share) enter(node string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.receivers[node]
	if r == nil {
		s.forgetIdle(time.Now())
		if len(s.receivers) >= s.cfg.Receivers {
			return errBusy
		}
		r = &receiver{}
		s.receivers[node] = r
		s.cfg.Log.Debug("a node fetches from this one", "node", node)
	}
	if r.requests == maxRequests {
		return errRequests
	}
	r.requests++
	return nil
}

// leave ends a receiver's request.
func (s *Share) leave(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.receivers[node]
	r.requests--
	r.last = time.Now()
}

// forgetIdle frees the places of receivers that ask for nothing any more. s.mu is held.
func (s *Share) forgetIdle(now time.Time) {
	for node, r := range s.receivers {
		if r.requests == 0 && now.Sub(r.last) > idleWithin {
			delete(s.receivers, node)
		}
	}
}
