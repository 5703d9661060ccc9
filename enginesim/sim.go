package enginesim

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/stator-project/stator/internal/sim/engine"
)

// Sim is one simulated engine. Create it with [New], and run it once with [Sim.Run].
//
// Invariants: ready is set only between the end of loading and the begin of draining. wake has a token whenever
// a request was submitted after the goroutine of passes last found no work, so no request waits for another.
type Sim struct {
	cfg     Config     // with defaults; not changed after New
	words   *words     // of which answers are made
	pub     *publisher // nil if no events are published
	metrics *metrics   // safe for concurrent use

	adapters *adapters // safe for concurrent use

	// Nil for an engine that transfers no caches, as the listener of its side channel.
	connector connector
	leases    *leases
	kv        *kvStore     // nil for an engine without a store
	client    *http.Client // of the side channels of other engines; it keeps no connections

	crashed chan error // has the error that ends the engine; room for one

	listeners

	ready  atomic.Bool
	active atomic.Int64  // HTTP requests with a handler, for /load
	wake   chan struct{} // has a token when there may be work

	sleeping atomic.Bool // no pass begins
	loses    atomic.Bool // the next answer after a fetched prompt is lost

	mu      sync.Mutex
	engine  *engine.Engine // guarded by mu
	cleared bool           // guarded by mu; the cache was reset since the last pass
}

// listeners are set by Listen and closed by their servers. One is nil if there is no endpoint.
type listeners struct{ http, events, replay, transfer net.Listener }

// New returns an engine that is not running yet.
func New(cfg Config) (*Sim, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure simulated engine: %w", err)
	}

	core, err := engine.New(cfg.Engine)
	if err != nil {
		return nil, err
	}

	s := &Sim{cfg: cfg, words: findWords(cfg.Vocabulary), engine: core, wake: make(chan struct{}, 1),
		adapters: newAdapters(cfg.Adapters), crashed: make(chan error, 1)}
	if cfg.Events != "" {
		s.pub = newPublisher(cfg.Topic, cfg.ReplayBuffer, cfg.SubscriberQueue, cfg.Logger)
	}

	if cfg.KVTransfer != "" {
		s.leases = newLeases(s)
		s.connector = newConnector(s)
		s.client = newTransferClient()
	}
	if cfg.KVStore != "" {
		s.kv = newKVStore(s)
	}
	s.metrics = newMetrics(s)
	return s, nil
}

// Listen binds all sockets, so that their addresses are known before Run. Run closes them, so it must be called
// after Listen. Without a call of Listen, Run binds the sockets.
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
	if s.cfg.TLS != nil {
		s.http = tls.NewListener(s.http, s.cfg.TLS)
	}
	if s.connector != nil {
		s.transfer, err = net.Listen("tcp", s.cfg.KVTransfer)
		if err != nil {
			return fmt.Errorf("listen for KV transfers: %w", err)
		}
	}

	for _, z := range []struct {
		endpoint string
		to       *net.Listener
	}{{s.cfg.Events, &s.events}, {s.cfg.Replay, &s.replay}} {
		if z.endpoint == "" {
			continue
		}
		*z.to, err = listen(z.endpoint)
		if err != nil {
			return err
		}
	}

	return nil
}

// closeListeners closes the sockets that are bound.
func (s *Sim) closeListeners() {
	for _, l := range []net.Listener{s.http, s.events, s.replay, s.transfer} {
		if l != nil {
			l.Close()
		}
	}

	s.listeners = listeners{}
}

// Addr returns the bound host:port of the HTTP server. It is empty before Listen.
func (s *Sim) Addr() string {
	if s.http == nil {
		return ""
	}
	return s.http.Addr().String()
}

// EventsEndpoint returns the endpoint of KV events, such as tcp://127.0.0.1:5557. It is empty if there is none,
// and before Listen.
func (s *Sim) EventsEndpoint() string { return endpointOf(s.events) }

// ReplayEndpoint returns the endpoint of the replay of KV events, as [Sim.EventsEndpoint] does.
func (s *Sim) ReplayEndpoint() string { return endpointOf(s.replay) }

// endpointOf returns the ZMQ endpoint of a bound socket, or "" if it is not bound. A port that was chosen
// when it was bound is in it.
func endpointOf(l net.Listener) string {
	switch {
	case l == nil:
		return ""
	case l.Addr().Network() == "unix":
		return "ipc://" + l.Addr().String()
	}
	return "tcp://" + l.Addr().String()
}

// Run serves until ctx ends. Then it accepts no more requests, finishes the running ones within Config.Drain, and
// returns nil. It must be called once.
func (s *Sim) Run(ctx context.Context) error {
	if err := s.Listen(); err != nil {
		return err
	}

	// Running requests, passes and event sockets continue after ctx until they are drained: they use hard.
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	failed := make(chan error, 5) // one for each task, so that none blocks
	start := func(run func() error) {
		wg.Go(func() {
			if err := run(); err != nil {
				failed <- err
			}
		})
	}

	// The event sockets serve until the last pass has published its events.
	if s.events != nil {
		start(func() error { return s.pub.serve(hard, s.events, zmq4.Pub) })
	}
	if s.replay != nil {
		start(func() error { return s.pub.serve(hard, s.replay, zmq4.Router) })
	}

	if s.connector != nil {
		start(func() error { return s.serveTransfers(hard, s.transfer) })
	}

	if s.kv != nil {
		start(func() error {
			s.kv.keepSession(hard)
			return nil
		})
	}
	start(func() error {
		s.passes(hard)
		return nil
	})

	// The contexts of requests derive from hard, so that draining can cut them off.
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return hard }}
	start(func() error {
		if err := server.Serve(s.http); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve HTTP: %w", err)
		}
		return nil
	})

	log := s.cfg.Logger
	if s.transfer != nil {
		log = log.With("transfers", s.transfer.Addr())
	}
	log.Info("simulated engine listening", "model", s.cfg.ModelName, "address", s.Addr())

	var err error

	if err = s.load(ctx, failed); err == nil {
		select {
		case <-ctx.Done():
		case err = <-failed:
		case err = <-s.crashed:
		}
	}

	// New requests get 503 from here on. Running requests finish.
	s.ready.Store(false)
	return errors.Join(err, s.drain(server, cancel))
}

// load waits for StartDelay, as an engine that loads its weights, and then makes the engine ready.
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

// drain waits for running requests, and cuts off requests that need longer than Config.Drain.
func (s *Sim) drain(server *http.Server, cancel func()) error {
	// Shutdown closes the listener and waits for the handlers.
	left, done := context.WithTimeout(context.Background(), s.cfg.Drain)
	defer done()
	err := server.Shutdown(left)

	// Cancelling hard ends the contexts of the requests, whose handlers cancel their sequences.
	if errors.Is(err, context.DeadlineExceeded) {
		cancel()
		err = server.Close()
	}

	cancel()
	s.cfg.Logger.Info("simulated engine stopped", "model", s.cfg.ModelName)
	return err
}

// engineStats returns the present figures of the core.
func (s *Sim) engineStats() engine.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine.Stats()
}

// CachedBlocks returns the number of blocks in the prefix cache.
func (s *Sim) CachedBlocks() int { return s.engineStats().Cached }
