package weights

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/backoff"
)

const (
	// askWithin bounds the question for a status, and maxStatus its answer in bytes.
	askWithin = 2 * time.Second
	maxStatus = 64 << 10
	// fetchWithin bounds the request for a chunk: the wait of the sender, and the bytes.
	fetchWithin = awaitWithin + sendWithin
	// maxAsked bounds the peers that are asked at a time, and maxPeers all of them.
	maxAsked = 16
	maxPeers = 1024
	// pause is the mean time between two rounds of questions.
	pause = 200 * time.Millisecond
)

// ReceiverConfig is read by Receive and not changed while it runs.
type ReceiverConfig struct {
	// Model is the name under which peers serve the files, and Dir the folder that gets them.
	Model, Dir string
	// ID is the identity of the manifest that is wanted; zero takes the one that the peers have.
	ID Sum
	// Node is the name of this node.
	Node string
	// Peers returns the addresses of other nodes, as http://HOST:PORT or https://HOST:PORT; it may return the address of this node, too.
	Peers func(context.Context) ([]string, error)
	// Client sends the requests: see [NewClient].
	Client *http.Client
	// Share serves the files, also while they come; nil does not.
	Share *Share
	// Streams is the number of chunks that are fetched at a time.
	Streams int
	// Patience is how long Receive goes on without a new chunk.
	Patience time.Duration
	Log      *slog.Logger
	// Progress is called after each chunk; nil for none.
	Progress func(done, total int64)
}

// Receive fetches the files of a model and returns their folder. A folder that is complete is returned as it is, without a question to
// peers. An error has the answer of each peer.
func Receive(ctx context.Context, cfg ReceiverConfig) (*Folder, error) {
	r := &receiving{ReceiverConfig: cfg, wrong: map[string]bool{}, last: time.Now()}
	f, err := r.complete()
	if f == nil && err == nil {
		f, err = r.run(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("fetch the files of %s: %w", cfg.Model, err)
	}
	return f, nil
}

// receiving is the state of one Receive. Its fields belong to its goroutine, but for the ones that mu guards, which the goroutines of
// fetchFrom change.
type receiving struct {
	ReceiverConfig
	folder *Folder
	wrong  map[string]bool // peers that have sent other bytes than the manifest names

	mu    sync.Mutex
	done  int64     // guarded by mu; bytes
	total int64     // guarded by mu; bytes of the manifest
	last  time.Time // guarded by mu; when the last chunk came
}

// complete returns the folder if it is complete already; nil if it does not exist.
func (r *receiving) complete() (*Folder, error) {
	entries, err := os.ReadDir(r.Dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m := stored(r.Dir)
	if m == nil {
		return nil, fmt.Errorf("%s has files that were not fetched, or have changed: name another folder, or remove it", r.Dir)
	}
	if r.ID != (Sum{}) && m.id != r.ID {
		r.Log.Info("the folder has the files of another manifest, and is replaced", "folder", r.Dir, "manifest", m.id)
		return nil, nil
	}
	f := newComplete(m, r.Dir)
	if r.Share != nil {
		r.Share.Add(r.Model, f)
	}
	return f, nil
}

// run asks and fetches until the folder is complete.
func (r *receiving) run(ctx context.Context) (*Folder, error) {
	for {
		peers, err := r.ask(ctx)
		if err != nil {
			return nil, err
		}
		if r.folder == nil {
			if err := r.begin(ctx, peers); err != nil {
				return nil, err
			}
		}

		if r.folder != nil {
			if len(r.folder.missing()) == 0 { // another process was killed before it gave the folder its name
				return r.folder, r.folder.finish(r.Dir)
			}
			for _, p := range r.senders(peers) {
				err := r.fetchFrom(ctx, p)
				if err == nil {
					return r.folder, r.folder.finish(r.Dir)
				}
				if !errors.Is(err, errUnavailable) {
					r.Log.Warn("fetching from a node has ended; another one is looked for", "peer", p.address, "err", err)
					break // the answers of the others are old
				}
				p.err = err
			}
		}

		r.mu.Lock()
		quiet := time.Since(r.last)
		r.mu.Unlock()
		if quiet > r.Patience {
			return nil, fmt.Errorf("no chunk has come for %v: %s", r.Patience, describe(peers))
		}
		// Nodes that wait for one place do not ask all at once.
		if err := backoff.Sleep(ctx, pause/2+rand.N(pause)); err != nil {
			return nil, err
		}
	}
}

// begin fetches the manifest, and makes room for its files, if a peer has them. Peers to which no chunks come are not asked: their manifest
// may be of files that are nowhere any more.
func (r *receiving) begin(ctx context.Context, peers []*peer) error {
	var from *peer
	for _, p := range peers {
		switch {
		case p.err != nil || len(p.status.Way) == 0:
		case from == nil:
			from = p
		case from.status.ID != p.status.ID:
			return fmt.Errorf("%s and %s have different files under this name (manifests %s and %s): choose one with --id",
				from.address, p.address, from.status.ID, p.status.ID)
		}
	}
	if from == nil {
		return nil
	}

	m, err := r.manifest(ctx, from)
	if err != nil {
		r.Log.Warn("a peer's manifest cannot be used", "peer", from.address, "err", err)
		return nil
	}
	r.mu.Lock()
	r.total = m.bytes
	r.mu.Unlock()
	r.folder, err = Begin(ctx, m, r.Dir, r.count)
	if err != nil {
		return err
	}
	if r.Share != nil {
		r.Share.Add(r.Model, r.folder)
	}
	return nil
}

// manifest fetches the manifest of a peer.
func (r *receiving) manifest(ctx context.Context, p *peer) (*Manifest, error) {
	ctx, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	response, err := r.get(ctx, p.address+"/weights/"+p.status.ID.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxManifestBytes+1))
	if err != nil {
		return nil, err
	}
	m, err := ParseManifest(text)
	if err == nil && m.id != p.status.ID {
		return nil, errors.New("it is not the manifest that the peer has named")
	}
	return m, err
}

// count counts bytes that are there.
func (r *receiving) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done += int64(n)
	r.last = time.Now()
	if r.Progress != nil {
		r.Progress(r.done, r.total)
	}
}

// fetchFrom fetches all missing chunks from a peer. It returns the first error, with errUnavailable if the peer has sent nothing.
func (r *receiving) fetchFrom(ctx context.Context, p *peer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	// Chunks are fetched in order, because the nodes after this one wait for the same ones.
	missing := r.folder.missing()
	next := make(chan int)
	go func() {
		defer close(next)
		for _, i := range missing {
			select {
			case next <- i:
			case <-ctx.Done():
				return
			}
		}
	}()

	var (
		all   sync.WaitGroup
		once  sync.Once
		first error
	)
	for range r.Streams {
		all.Go(func() {
			buffer := make([]byte, ChunkBytes)
			for i := range next {
				if err := r.fetch(ctx, p, i, buffer); err != nil {
					once.Do(func() { first = err })
					cancel()
					return
				}
			}
		})
	}
	all.Wait()
	if first == nil && len(r.folder.missing()) > 0 {
		first = ctx.Err()
	}
	if first != nil {
		r.folder.setWay(nil)
	}
	if errors.Is(first, errWrong) {
		r.wrong[p.address] = true
	}
	return first
}

// fetch fetches one chunk.
func (r *receiving) fetch(ctx context.Context, p *peer, i int, buffer []byte) error {
	ctx, cancel := context.WithTimeout(ctx, fetchWithin)
	defer cancel()
	response, err := r.get(ctx, fmt.Sprintf("%s/weights/%s/%d?node=%s", p.address, r.folder.manifest.id, i, url.QueryEscape(r.Node)))
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()

	way, err := parseWay(response.Header.Get(headerWay))
	if err == nil && slices.Contains(way, r.Node) {
		err = errors.New("its chunks come from this node")
	}
	if err != nil {
		return err
	}
	piece := buffer[:r.folder.manifest.chunks[i].bytes]
	if _, err := io.ReadFull(response.Body, piece); err != nil {
		return err
	}
	if err := r.folder.write(i, piece); err != nil {
		return err
	}
	r.folder.setWay(append(way, r.Node))
	r.count(len(piece))
	return nil
}
