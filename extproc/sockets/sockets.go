package sockets

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/internal/kvsource/sources"
)

// probe is the time after which a silent engine is asked for messages that its socket dropped.
const probe = time.Second

// Config is read by New and not changed later.
type Config struct {
	// Fleet has the workers. It receives the context lengths and capacities of their engines.
	Fleet *fleet.Fleet
	// Load receives the load of the worker's engine, and Restarted a worker without KV events whose engine is another
	// process than before. Both may be nil.
	Load      func(w *fleet.Worker, l engineprobe.Load)
	Restarted func(w *fleet.Worker)
	// Take returns what another reader of the same sockets has of a rank, for batches that are missing and that the engine cannot
	// replay. Nil if there is no other.
	Take func(ctx context.Context, worker string, epoch uint64, rank int) (*feed.Snapshot, error)
	// Feed receives the events. Its fleet is Fleet.
	Feed *feed.Feed
	Log  *slog.Logger
	// Engines makes the connections to engines; nil makes them without TLS.
	Engines *enginetls.Client
	// Sources gets the sources while they run. Required.
	Sources *sources.Set
	// Settings gets the settings that engines report; nil for none.
	Settings *Settings
}

// Reader reads the event sockets of some workers, and asks their engines. Create it with [New]. [Reader.Set] may be called while
// [Reader.Run] runs:
//
//	worker of a new list               what reads it
//	equal but for weight and taints    goes on
//	changed                            ends, and begins with the new addresses
//	new                                begins
//	missing                            ends; its sockets are closed
//	without an address                 nothing: its name does not resolve yet
type Reader struct {
	cfg     Config
	changed chan struct{} // has one place: a change that finds it full is covered by the one before it

	mu     sync.Mutex
	wanted []*follower // guarded by mu
}

// follower reads what one worker publishes and reports. Its worker never changes: another one has another follower.
type follower struct {
	worker     fleet.Worker
	configured []*source // the sockets whose addresses are configured
}

// New returns a reader of the workers' sockets that does nothing until it is run. Workers without
// kvEvents have no sockets. An address that is wrong is an error.
func New(cfg Config, workers []fleet.Worker) (*Reader, error) {
	r := &Reader{cfg: cfg, changed: make(chan struct{}, 1)}
	return r, r.Set(workers)
}

// Set makes the reader read these workers and no others. Unchanged ones go on undisturbed. After an error nothing has
// changed.
func (r *Reader) Set(workers []fleet.Worker) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var next []*follower
	for _, w := range workers {
		if w.Address == "" {
			continue
		}
		w.Weight = 0
		w.Taints, w.PlaceFrom = "", 0
		if same := r.findLocked(&w); same != nil {
			next = append(next, same)
			continue
		}

		f := &follower{worker: w}
		if !kvsource.Discovered(w.KVEvents) {
			configured, err := r.cfg.configured(w)
			if err != nil {
				return fmt.Errorf("worker %s: %w", w.Name, err)
			}
			f.configured = configured
		}
		next = append(next, f)
	}

	r.wanted = next
	select {
	case r.changed <- struct{}{}:
	default:
	}
	return nil
}

// findLocked returns the follower of an equal worker, or nil.
func (r *Reader) findLocked(w *fleet.Worker) *follower {
	for _, f := range r.wanted {
		if f.worker == *w {
			return f
		}
	}
	return nil
}

// Run reads the sockets, and the engines' load and limits, until ctx ends. It must be called once.
func (r *Reader) Run(ctx context.Context) {
	running := map[*follower]func(){} // each function ends a follower, and waits for it
	defer func() {
		for _, end := range running {
			end()
		}
	}()

	for {
		r.mu.Lock()
		wanted := r.wanted
		r.mu.Unlock()

		// Old sockets are closed first, because a new one may have the address of one that binds.
		for f, end := range running {
			if !slices.Contains(wanted, f) {
				end()
				delete(running, f)
			}
		}
		for _, f := range wanted {
			if running[f] == nil {
				running[f] = r.cfg.follow(ctx, f)
			}
		}

		select {
		case <-r.changed:
		case <-ctx.Done():
			return
		}
	}
}

// follow reads one worker until ctx ends or end is called. end returns after all of its goroutines.
func (c Config) follow(ctx context.Context, f *follower) (end func()) {
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, s := range f.configured {
		all.Go(func() { s.readSocket(ctx) })
	}
	if kvsource.Discovered(f.worker.KVEvents) {
		all.Go(func() { c.discover(ctx, f.worker) })
	}
	all.Go(func() { c.followEngine(ctx, f.worker) })

	return func() {
		stop()
		all.Wait()
	}
}

// configured returns the sources of a worker whose kvEvents is an endpoint, one per rank: the ranks of one
// engine publish at consecutive ports.
func (c Config) configured(w fleet.Worker) ([]*source, error) {
	if w.KVEvents == "" {
		return nil, nil
	}

	var all []*source
	for rank := range w.Ranks {
		at, err := kvsource.ConfiguredSocket(atAddress(w.KVEvents, &w), atAddress(w.KVReplay, &w), rank)
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

// atAddress returns an endpoint of a worker. If its host is the name that the worker is listed by, it has the IP of the
// worker's address instead: a lookup of its own could find another engine.
func atAddress(endpoint string, w *fleet.Worker) string {
	scheme, rest, _ := strings.Cut(endpoint, "://")
	host, port, _ := strings.Cut(rest, ":")
	name, _, isNamed := fleet.SplitName(w.Named)
	if !isNamed || !strings.EqualFold(host, name) || scheme != "tcp" && scheme != "http" {
		return endpoint
	}

	ip, _, err := net.SplitHostPort(w.Address)
	if err != nil {
		return endpoint
	}
	return scheme + "://" + net.JoinHostPort(ip, port)
}

// source reads one rank's socket and applies its events to the feed.
type source struct {
	*kvsource.Source
	// stream is the source's consumer. Its epoch is 0: without an agent epochs are unknown, and
	// restarts are found by the engine's answers.
	stream    stream
	canReplay bool
}

// stream applies a rank's events. They are evidence of its worker's health, too.
type stream struct {
	feed.Stream
	cfg       *Config
	hasBlocks bool // the worker's capacity is configured
	// fill fills a gap before a batch with what another reader has, and reports whether it did; nil for an engine that can replay.
	fill func(seq uint64) bool
}

// Batch applies one batch: the worker makes progress.
func (s *stream) Batch(seq uint64, b *kvevent.Batch) (resume uint64, gap bool) {
	if rank, ok := s.cfg.Fleet.Snapshot().Rank(s.Worker, s.Rank); ok {
		rank.Load.ObserveProgress(time.Now())
		s.observeBlockSize(rank.Worker, b)
		s.cfg.Settings.stored(rank.Worker, b)
	}
	resume, gap = s.Stream.Batch(seq, b)
	if gap && s.fill != nil && s.fill(seq) { // live batches wait in the socket meanwhile
		return s.Stream.Batch(seq, b)
	}
	return resume, gap
}

// Restarted empties the rank. The new process may have no prefix cache.
func (s *stream) Restarted() {
	if rank, ok := s.cfg.Fleet.Snapshot().Rank(s.Worker, s.Rank); ok {
		DoubtCaching(&rank)
	}
	s.Stream.Restarted()
}

// observeBlockSize records the size of the blocks in an event of full attention. It is the engine's own: metrics have the configured size,
// even if the engine uses another.
func (s *stream) observeBlockSize(w *fleet.Worker, b *kvevent.Batch) {
	for i := range b.Events {
		e := &b.Events[i]
		if e.Kind != kvevent.Stored || e.Window != 0 || e.BlockSize <= 0 {
			continue
		}
		if seen := (fleet.Figure{Value: e.BlockSize, Source: fleet.FromEvents}); w.Figures.BlockSize != seen {
			s.cfg.setFigures(w, s.hasBlocks, func(f *fleet.Figures) { f.BlockSize = seen })
		}
		return
	}
}

// Connected reports whether the engine's socket is connected. The process that published there may have ended.
func (s *stream) Connected(up bool) {
	if rank, ok := s.cfg.Fleet.Snapshot().Rank(s.Worker, s.Rank); ok && !up {
		rank.Load.ObserveEventsLost(time.Now())
	}
	s.Stream.Connected(up)
}

// source returns the source of one rank's socket.
func (c Config) source(w fleet.Worker, at kvsource.Socket) (*source, error) {
	src, err := kvsource.New(kvsource.Config{
		Endpoint: at.Endpoint, Replay: at.Replay, Topic: at.Topic, Bind: at.Bind, Rank: at.Rank,
		Dialect: kvsource.DialectOf(w.Engine, at.Endpoint), BlockSize: w.TokensPerBlock(),
		Dial: c.Engines.Dial(discoverTimeout), Logger: c.Log, Probe: probe,
	})
	if err != nil {
		return nil, err
	}
	into := feed.Stream{Feed: c.Feed, Worker: w.Name, Epoch: w.Epoch, Rank: at.Rank, Now: time.Now}
	return &source{
		Source: src, stream: stream{Stream: into, cfg: &c, hasBlocks: w.Blocks > 0}, canReplay: at.Replay != "",
	}, nil
}

// readSocket reads the socket until ctx ends.
func (s *source) readSocket(ctx context.Context) {
	defer s.stream.cfg.Sources.Add(s.stream.Worker, s.stream.Rank, s.Source)()
	if s.stream.cfg.Take != nil && !s.canReplay {
		s.stream.fill = func(seq uint64) bool { return s.takeOver(ctx, seq) }
	}
	if err := s.Run(ctx, &s.stream); err != nil {
		s.stream.cfg.Log.Error("event socket closed", "worker", s.stream.Worker, "rank", s.stream.Rank, "err", err)
	}
}

const (
	// takeTime bounds the questions to other readers for one missing batch. It is below the patience of a feed with a gap.
	takeTime = time.Second
	// takeTries is how often another reader is asked that is behind this one, and takePause the pause before it is asked again.
	takeTries = 3
	takePause = 50 * time.Millisecond
)

// takeOver replaces the rank's cache by what another reader has, if that reaches up to batch seq. It reports whether it did.
func (s *source) takeOver(ctx context.Context, seq uint64) bool {
	ctx, stop := context.WithTimeout(ctx, takeTime)
	defer stop()
	for range takeTries {
		snapshot, err := s.stream.cfg.Take(ctx, s.stream.Worker, s.stream.Epoch, s.stream.Rank)
		if err != nil {
			return false
		}
		if snapshot.Next >= seq {
			return s.stream.Feed.Restore(snapshot, time.Now()) == nil
		}
		_ = backoff.Sleep(ctx, takePause)
	}
	return false
}
