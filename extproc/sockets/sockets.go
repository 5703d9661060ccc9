package sockets

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/internal/kvsource/sources"
)

// probe is how soon a silent engine is asked for messages that its socket dropped.
const probe = time.Second

// Config is read by New and not changed later.
type Config struct {
	// Fleet has the workers. It receives the context lengths and capacities of their engines.
	Fleet *fleet.Fleet
	// Load receives the load of the worker's engine, and Restarted a worker without KV events whose engine is another
	// process than before. Both may be nil.
	Load      func(w *fleet.Worker, l engineprobe.Load)
	Restarted func(w *fleet.Worker)
	// Feed receives the events. Its fleet is Fleet.
	Feed *feed.Feed
	Log  *slog.Logger
	// Sources gets the sources while they run. Required.
	Sources *sources.Set

	hasBlocks map[string]bool // the workers whose capacity is configured
}

// Reader reads the event sockets of some workers. Create it with [New].
type Reader struct {
	cfg        Config
	workers    []fleet.Worker // all of them; their engines are asked for their load and limits
	configured []*source      // the sockets whose addresses are configured
	discovered []fleet.Worker // the workers whose engines are asked for their sockets
}

// New returns a reader of the workers' sockets that does nothing until it is run. Workers without
// kvEvents have no sockets. An address that is wrong is an error.
func New(cfg Config, workers []fleet.Worker) (*Reader, error) {
	cfg.hasBlocks = map[string]bool{}
	r := &Reader{cfg: cfg, workers: workers}
	for _, w := range workers {
		cfg.hasBlocks[w.Name] = w.Blocks > 0
		if kvsource.Discovered(w.KVEvents) {
			r.discovered = append(r.discovered, w)
			continue
		}
		configured, err := cfg.configured(w)
		if err != nil {
			return nil, fmt.Errorf("worker %s: %w", w.Name, err)
		}
		r.configured = append(r.configured, configured...)
	}
	return r, nil
}

// Run reads the sockets, and the engines' load and limits, until ctx ends. It must be called once.
func (r *Reader) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, s := range r.configured {
		all.Go(func() { s.run(ctx) })
	}
	for _, w := range r.discovered {
		all.Go(func() { r.cfg.discover(ctx, w) })
	}
	for _, w := range r.workers {
		all.Go(func() { r.cfg.followEngine(ctx, w) })
	}
	all.Wait()
}

// configured returns the sources of a worker whose kvEvents is an endpoint, one per rank: the ranks of one
// engine publish at consecutive ports.
func (c Config) configured(w fleet.Worker) ([]*source, error) {
	if w.KVEvents == "" {
		return nil, nil
	}

	var all []*source
	for rank := range w.Ranks {
		at, err := kvsource.ConfiguredSocket(w.KVEvents, w.KVReplay, rank)
		if err != nil {
			return nil, err
		}
		s, err := c.source(w, at)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// source reads one rank's socket and applies its events to the feed.
type source struct {
	*kvsource.Source
	// stream is the source's consumer. Its epoch is 0: without an agent epochs are unknown, and
	// restarts are found by the engine's answers.
	stream  stream
	log     *slog.Logger
	running *sources.Set
}

// stream applies a rank's events. They are evidence of its worker's health, too.
type stream struct {
	feed.Stream
	fleet *fleet.Fleet
}

// Batch applies one batch: the worker makes progress.
func (s *stream) Batch(seq uint64, b *kvevent.Batch) (resume uint64, gap bool) {
	if rank, ok := s.fleet.Snapshot().Rank(s.Worker, s.Rank); ok {
		rank.Load.Health().ObserveProgress(time.Now())
	}
	return s.Stream.Batch(seq, b)
}

// Connected reports whether the engine's socket is connected. The process that published there may have ended.
func (s *stream) Connected(up bool) {
	if rank, ok := s.fleet.Snapshot().Rank(s.Worker, s.Rank); ok && !up {
		rank.Load.Health().ObserveEventsLost(time.Now())
	}
	s.Stream.Connected(up)
}

// source returns the source of one rank's socket.
func (c Config) source(w fleet.Worker, at kvsource.Socket) (*source, error) {
	src, err := kvsource.New(kvsource.Config{
		Endpoint: at.Endpoint, Replay: at.Replay, Topic: at.Topic, Bind: at.Bind, Rank: at.Rank,
		Dialect: kvsource.DialectOf(w.Engine, at.Endpoint), BlockSize: w.BlockSize,
		Logger: c.Log, Probe: probe,
	})
	if err != nil {
		return nil, err
	}
	into := feed.Stream{Feed: c.Feed, Worker: w.Name, Epoch: w.Epoch, Rank: at.Rank, Now: time.Now}
	return &source{src, stream{into, c.Fleet}, c.Log, c.Sources}, nil
}

// run reads the socket until ctx ends.
func (s *source) run(ctx context.Context) {
	defer s.running.Add(s.stream.Worker, s.stream.Rank, s.Source)()
	if err := s.Run(ctx, &s.stream); err != nil {
		s.log.Error("event socket closed", "worker", s.stream.Worker, "rank", s.stream.Rank, "err", err)
	}
}
