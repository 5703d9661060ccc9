package enginesim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/sim/engine"
)

// Sim is one simulated engine. Create it with [New].
type Sim struct {
	cfg     Config
	words   *words
	pub     *publisher // nil without events
	metrics *metrics

	http, events, replay net.Listener // set by Listen

	ready  atomic.Bool
	active atomic.Int64  // HTTP requests being served
	wake   chan struct{} // has a token when there may be work

	mu     sync.Mutex
	engine *engine.Engine // guarded by mu
}

// New returns an engine that does nothing until it is run.
func New(cfg Config) (*Sim, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure simulated engine: %w", err)
	}

	core, err := engine.New(cfg.Engine)
	if err != nil {
		return nil, err
	}

	s := &Sim{cfg: cfg, words: findWords(cfg.Vocabulary), engine: core, wake: make(chan struct{}, 1)}
	if cfg.Events != "" {
		s.pub = newPublisher(cfg.Topic, cfg.ReplayBuffer, cfg.SubscriberQueue, cfg.Logger)
	}

	s.metrics = newMetrics(s)
	return s, nil
}

// Listen binds all sockets, so that their addresses are known. Run does it where it was not
// done. After it, Run must be called, for it closes what Listen opened.
func (s *Sim) Listen() (err error) {
	if s.http != nil {
		return nil
	}
	defer func() {
		if err != nil {
			s.closeListeners()
		}
	}()

	s.http, err = net.Listen("tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen for HTTP: %w", err)
	}

	for _, z := range []struct {
		endpoint string
		to       *net.Listener
	}{{s.cfg.Events, &s.events}, {s.cfg.Replay, &s.replay}} {
		if z.endpoint == "" {
			continue
		}
		address, err := tcpAddress(z.endpoint)
		if err != nil {
			return err
		}
		*z.to, err = net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("listen for %s: %w", z.endpoint, err)
		}
	}

	return nil
}

func (s *Sim) closeListeners() {
	for _, l := range []net.Listener{s.http, s.events, s.replay} {
		if l != nil {
			l.Close()
		}
	}

	s.http = nil
	s.events = nil
	s.replay = nil
}

// Addr is the bound host:port of the HTTP server; empty before Listen.
func (s *Sim) Addr() string { return addrOf(s.http, "") }

// EventsEndpoint and ReplayEndpoint are what to connect to for events and their replay, such
// as tcp://127.0.0.1:5557; empty where there is none, or before Listen.
func (s *Sim) EventsEndpoint() string { return addrOf(s.events, "tcp://") }

// ReplayEndpoint is described at EventsEndpoint.
func (s *Sim) ReplayEndpoint() string { return addrOf(s.replay, "tcp://") }

func addrOf(l net.Listener, scheme string) string {
	if l == nil {
		return ""
	}
	return scheme + l.Addr().String()
}

// Run serves until ctx ends, then takes no more requests, finishes those in flight for at
// most Config.Drain, and returns nil. It must be called once.
func (s *Sim) Run(ctx context.Context) error {
	if err := s.Listen(); err != nil {
		return err
	}
	// hard outlives ctx while requests drain; everything else ends with it.
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	failed := make(chan error, 4)
	start := func(run func() error) {
		wg.Go(func() {
			if err := run(); err != nil {
				failed <- err
			}
		})
	}

	if s.events != nil {
		start(func() error { return s.pub.serve(hard, s.events, zmq4.Pub) })
	}
	if s.replay != nil {
		start(func() error { return s.pub.serve(hard, s.replay, zmq4.Router) })
	}

	start(func() error { s.passes(hard); return nil })

	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return hard }}
	start(func() error {
		if err := server.Serve(s.http); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve HTTP: %w", err)
		}
		return nil
	})

	s.cfg.Logger.Info("simulated engine listening", "model", s.cfg.ModelName, "address", s.Addr())

	var err error

	if err = s.load(ctx, failed); err == nil {
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
	}

	s.ready.Store(false)
	return errors.Join(err, s.drain(server, cancel))
}

// load waits for StartDelay.
func (s *Sim) load(ctx context.Context, failed <-chan error) error {
	if s.cfg.StartDelay > 0 {
		t := time.NewTimer(s.cfg.StartDelay)
		defer t.Stop()
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-t.C:
		}
	}

	s.ready.Store(true)
	return nil
}

// drain waits for the requests in flight, and ends those that take too long.
func (s *Sim) drain(server *http.Server, cancel func()) error {
	left, done := context.WithTimeout(context.Background(), s.cfg.Drain)
	defer done()
	err := server.Shutdown(left)

	if errors.Is(err, context.DeadlineExceeded) {
		cancel()
		err = server.Close()
	}

	cancel()
	s.cfg.Logger.Info("simulated engine stopped", "model", s.cfg.ModelName)
	return err
}

// passes runs the engine: one pass after another while there is work.
func (s *Sim) passes(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()

	now := time.Now()
	for {
		s.mu.Lock()
		end, busy := s.engine.Begin(now)
		s.mu.Unlock()
		if !busy {
			select {
			case <-ctx.Done():
				return
			case <-s.wake:
			}
			now = time.Now()
			continue
		}
		if wait := time.Until(end); wait > 0 {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
		} else if ctx.Err() != nil {
			return
		}
		s.endPass(end)
		now = nextStart(end)
	}
}

// maxLag is how far simulated time may fall behind: timers that fire late must not make the
// engine slower, but after a long pause it does not race to catch up either.
const maxLag = 20 * time.Millisecond

func nextStart(end time.Time) time.Time {
	if now := time.Now(); now.Sub(end) > maxLag {
		return now
	}
	return end
}

// endPass publishes what the pass did to the cache, then hands out its tokens: whoever sees an
// answer can find its blocks.
func (s *Sim) endPass(end time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	result := s.engine.End()
	if s.pub != nil && len(result.Events) > 0 {
		s.pub.publish(time.Now(), s.cfg.Rank, result.Events...)
	}

	for i := range result.Outputs {
		o := &result.Outputs[i]
		o.Request.Owner.(*choice).emit(o, end, s.metrics)
	}
}

// submit puts all requests in the queue, or none.
func (s *Sim) submit(requests []*engine.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	now := time.Now()
	for i, r := range requests {
		if err := s.engine.Submit(r, now); err != nil {
			for _, other := range requests[:i] {
				s.engine.Cancel(other)
			}
			return err
		}
	}

	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

// cancel takes those that have not ended out of the engine.
func (s *Sim) cancel(requests []*engine.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range requests {
		s.engine.Cancel(r)
	}
}

func (s *Sim) engineStats() engine.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine.Stats()
}

// CachedBlocks is how many blocks the prefix cache holds now.
func (s *Sim) CachedBlocks() int { return s.engineStats().Cached }

// resetCache empties the prefix cache unless requests run, and says so to subscribers.
func (s *Sim) resetCache() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine.Reset() && s.pub != nil {
		s.pub.publish(time.Now(), s.cfg.Rank, kvevent.Raw{Kind: kvevent.Cleared})
	}
}
