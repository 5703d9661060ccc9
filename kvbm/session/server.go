package session

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm"
	"github.com/stator-project/stator/kvbm/host"
)

// Opened is a store with its memory.
type Opened struct {
	Store *kvbm.Store
	Arena *host.Arena
}

// Config configures a server. Only Open has no default.
type Config struct {
	// Open returns the store for a layout. It is called when the first engine comes, until it succeeds.
	Open func(layout block.Layout) (Opened, error)
	// Sessions bounds the sessions (256), and Leases and Fetches bound the leases and fetches that a session may have at once (4,096 and
	// 64).
	Sessions, Leases, Fetches int
	// Share is the part of the slots that one session may have reserved (0.5).
	Share float64
	// Names bounds the blocks of which a session gets changes (1 << 20). Blocks that it named first are forgotten first.
	Names int
	Log   *slog.Logger
}

func (c Config) withDefaults() Config {
	for _, f := range []struct {
		field *int
		value int
	}{{&c.Sessions, 256}, {&c.Leases, 4096}, {&c.Fetches, 64}, {&c.Names, 1 << 20}} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	if c.Share <= 0 || c.Share > 1 {
		c.Share = 0.5
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Server serves a store to engines.
type Server struct {
	cfg Config

	mu       sync.Mutex
	sessions map[*session]bool // guarded by mu
	opened   Opened            // guarded by mu; empty before the first engine

	quarantined atomic.Int64 // slots whose process has not ended
	refused     atomic.Uint64
}

// New returns a server. Its [Server.Changed] belongs into the store's configuration.
func New() *Server { return &Server{sessions: map[*session]bool{}} }

// Stats is the state of a server.
type Stats struct {
	// Sessions counts the open sessions. Quarantined counts the slots that wait for the end of a process.
	Sessions, Quarantined int
	// Refused counts connections that were not accepted, and sessions that broke a rule.
	Refused uint64
}

// Stats returns the current values.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{len(s.sessions), int(s.quarantined.Load()), s.refused.Load()}
}

// Engine is a session of an engine. /debug/kv shows it.
type Engine struct {
	// Name is the name that the engine gives itself, of at most 100 bytes, and PID its process.
	Name string `json:"engine"`
	PID  int    `json:"pid"`
	// Leases counts the fetches that it has not released.
	Leases int `json:"leases"`
}

// Engines returns the sessions, ordered by name and process.
func (s *Server) Engines() (all []Engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.sessions {
		x.mu.Lock()
		all = append(all, Engine{x.engine, x.pid, len(x.leases)})
		x.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b Engine) int { return cmp.Or(strings.Compare(a.Name, b.Name), a.PID-b.PID) })
	return all
}

// Changed reports a change of the store to the sessions that have named these blocks. Keys of nil are all blocks of a tier.
func (s *Server) Changed(tier fleet.Tier, stored bool, keys []block.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.sessions {
		x.changed(tier, stored, keys)
	}
}

// Listener accepts connections of engines. A [net.UnixListener] is one.
type Listener interface {
	AcceptUnix() (*net.UnixConn, error)
	Close() error
}

// acceptPause is the pause after a failure to accept a connection.
const acceptPause = 100 * time.Millisecond

// Serve serves the connections of a listener until ctx ends, and closes it. When it returns all sessions have ended. The error is non-nil
// only if the listener was closed elsewhere. After other failures to accept, such as for lack of file descriptors, Serve goes on; it logs
// the first of several in a row.
func (s *Server) Serve(ctx context.Context, listener Listener, cfg Config) error {
	s.cfg = cfg.withDefaults()
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()

	failing := false
	for {
		conn, err := listener.AcceptUnix()
		switch {
		case err == nil:
			failing = false
			all.Go(func() { s.serve(ctx, conn) })
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept an engine: %w", err)
		default:
			if !failing {
				s.cfg.Log.Warn("the KV store cannot accept a connection of an engine, and tries again", "err", err)
			}
			failing = true
			_ = backoff.Sleep(ctx, acceptPause)
		}
	}
}

// serve serves one connection.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	x := &session{
		server: s, cfg: &s.cfg, conn: conn, reserved: map[int]bool{}, leases: map[uint32]*kvbm.Lease{},
		names: newNames(s.cfg.Names), fetches: make(chan struct{}, s.cfg.Fetches), changes: make(chan []byte, maxChanges), process: -1,
	}
	live, cancel := context.WithCancel(ctx)
	x.cancel = cancel
	stop := context.AfterFunc(live, func() { _ = conn.Close() })
	err := x.open()
	if err == nil {
		s.cfg.Log.Info("engine uses the KV store", "engine", x.engine, "pid", x.pid)
		var writer sync.WaitGroup
		writer.Go(func() { x.writeChanges(live) })
		err = x.answerRequests(live)
		cancel()
		writer.Wait()
	}

	cancel()
	stop()
	_ = conn.Close()
	defer func() { _ = unix.Close(x.process) }()
	if err != nil {
		s.refused.Add(1)
		s.cfg.Log.Warn("session of the KV store ended", "engine", x.engine, "pid", x.pid, "err", err)
	}
	if x.store != nil {
		x.close(ctx)
	}
}

// addSession adds a session of a layout, if there is room and the store has that layout. The first one opens the store.
func (s *Server) addSession(x *session, layout block.Layout) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sessions) >= s.cfg.Sessions {
		return fmt.Errorf("there are %d sessions: raise the bound, or end one", len(s.sessions))
	}
	if s.opened.Store == nil {
		s.opened, err = s.cfg.Open(layout)
		if err != nil {
			return err
		}
	}
	mine := s.opened.Store.Layout()
	if err := mine.Fits(&layout); err != nil {
		return err
	}
	x.store = s.opened.Store
	x.arena = s.opened.Arena
	s.sessions[x] = true
	return nil
}

func (s *Server) remove(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, x)
}

// greetWithin bounds the time that a client may take for its first frame.
const greetWithin = 10 * time.Second

// open checks the peer, and exchanges the first frames.
func (x *session) open() error {
	var err error
	x.pid, x.process, err = peer(x.conn)
	if err != nil {
		return err
	}
	if err := x.conn.SetDeadline(time.Now().Add(greetWithin)); err != nil {
		return err
	}
	f, err := readFrame(x.conn, &x.buffer)
	if err != nil {
		return fmt.Errorf("read the first frame: %w", err)
	}

	h, err := readHello(&f)
	if err == nil {
		x.engine = h.Engine
		if h.Speed != nil {
			x.compute = h.Speed.compute
		}
		err = x.server.addSession(x, h.Layout)
	}
	if err != nil {
		_ = x.send(kindFailed, f.number, []byte(err.Error())) // the error is logged
		return err
	}
	if err := x.welcome(f.number); err != nil {
		return err
	}
	return x.conn.SetDeadline(time.Time{})
}

// readHello reads the first frame, and checks it.
func readHello(f *frame) (h hello, err error) {
	if err := json.Unmarshal(f.body, &h); f.kind != kindHello || err != nil {
		return h, errors.New("the first frame must be hello")
	}
	if h.Version != version {
		return h, fmt.Errorf("version %d of the protocol: this store has %d", h.Version, version)
	}
	if h.Speed != nil {
		if err := h.Speed.validate(); err != nil {
			return h, err
		}
	}
	h.Engine = h.Engine[:min(len(h.Engine), 100)]
	return h, h.Layout.Validate()
}

// welcome answers hello, with the descriptor of the arena.
func (x *session) welcome(number uint32) error {
	body, err := json.Marshal(welcome{version, x.arena.Slots(), x.arena.SlotBytes()})
	if err != nil {
		return err
	}
	message := append(appendFrame(nil, kindHello, number, len(body)), body...)
	_, _, err = x.conn.WriteMsgUnix(message, unix.UnixRights(int(x.arena.File().Fd())), nil)
	return err
}

// send sends a frame.
func (x *session) send(kind byte, number uint32, body []byte) error {
	x.out.mu.Lock()
	defer x.out.mu.Unlock()
	x.out.frame = append(appendFrame(x.out.frame[:0], kind, number, len(body)), body...)
	if err := x.conn.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil {
		return err
	}
	_, err := x.conn.Write(x.out.frame)
	return err
}

// writeWithin bounds the time for which a client may leave an answer unread.
const writeWithin = 10 * time.Second

// sendSlots answers with slots, after a lease if there is one.
func (x *session) sendSlots(kind byte, number uint32, lease []byte, slots []int) error {
	return x.send(kind, number, appendSlots(lease, slots))
}

// leaseBytes returns the number of a lease as it is sent.
func leaseBytes(lease uint32) []byte { return binary.LittleEndian.AppendUint32(nil, lease) }
