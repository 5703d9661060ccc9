package kvsource

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// Source listens to one rank. Create it with [New].
type Source struct {
	cfg  Config
	live chan liveMessage

	mu    sync.Mutex
	stats Stats // guarded by mu

	// Run's own.
	apply    func(seq uint64, b *kvevent.Batch) (resume uint64, gap bool)
	batch    kvevent.Batch
	last     mark // what apply accepted last, of the engine process we believe in
	onConn   position
	retry    pause // between replays that did not help
	resynced bool  // since the connection was made
}

// mark names one message of one engine process: two processes never say the same bytes, for
// each message begins with its time.
type mark struct {
	known bool
	seq   uint64
	sum   uint64
}

// position is how far the connection at hand has come, as numbers of messages plus one, so
// that 0 means nothing.
type position struct {
	live, replayed uint64
}

// New returns a source that does nothing until it is run.
func New(cfg Config) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure event source: %w", err)
	}
	cfg = cfg.withDefaults()
	s := &Source{cfg: cfg, live: make(chan liveMessage, cfg.Buffer), retry: pause{min: cfg.RetryMin, max: cfg.RetryMax}}
	s.batch.BlockSize = cfg.BlockSize
	if cfg.Dialect == kvevent.Dynamo { // its messages name the ranks of all that publish there
		s.batch.Only = func(_ uint64, rank int) bool { return rank == cfg.Rank }
	}
	return s, nil
}

// Run hands messages to apply until ctx ends, and returns nil then. It must be called once.
//
// apply says with gap that messages are missing before this one, which it then has not
// applied, and with resume where a replay should begin. The source replays from there, and
// comes back with the same message, for Config.Timeout at most, until apply takes it: that the
// engine no longer has what is missing only apply can decide. A seq that is not above the
// last one is of a restarted engine, or was asked for with resume. b is valid during the call
// only.
func (s *Source) Run(ctx context.Context, apply func(seq uint64, b *kvevent.Batch) (resume uint64, gap bool)) error {
	if overHTTP(s.cfg.Endpoint) {
		s.apply = apply
		return s.drain(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { s.subscribe(ctx) })

	s.apply = apply
	probe := time.NewTicker(s.probeInterval())
	defer probe.Stop()
	quiet := true
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-s.live:
			quiet = false
			if m.connected {
				s.onConn, s.resynced = position{}, false
				s.hold(ctx)
			} else {
				s.onLive(ctx, m)
			}
		case <-probe.C:
			if quiet && s.connected() {
				_ = s.resync(ctx)
			}
			quiet = true
		}
	}
}

func (s *Source) probeInterval() time.Duration {
	if s.cfg.Probe < 0 || s.cfg.Replay == "" {
		return 1 << 62
	}
	return s.cfg.Probe
}

func (s *Source) connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats.Connected
}

// hold brings us up to date after a connection was made, while live messages wait. An engine
// opens its two sockets one after the other, so a replay that does not answer is tried again;
// but only for so long: then live messages go on, and the probe tries later.
func (s *Source) hold(ctx context.Context) {
	if s.cfg.Replay == "" {
		return
	}
	_ = s.persist(ctx, func() error { return s.resync(ctx) })
}

// persist tries until try succeeds, with growing pauses, for at most Config.Timeout.
func (s *Source) persist(ctx context.Context, try func() error) error {
	p := pause{min: s.cfg.RetryMin, max: s.cfg.RetryMax}
	deadline := time.Now().Add(s.cfg.Timeout)
	for {
		err := try()
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
		p.wait(ctx)
	}
}

// resync fetches what came after the last message, if the engine is still the process that
// sent it, and everything otherwise.
func (s *Source) resync(ctx context.Context) error {
	if s.last.known {
		same, err := s.replayAfterLast(ctx)
		if err != nil || same {
			s.resynced = s.resynced || same
			return err
		}
		s.forgetProcess()
	}
	err := s.replay(ctx, 0)
	s.resynced = s.resynced || err == nil
	return err
}

// forgetProcess says that the engine is a new process, or that its buffer no longer goes back
// to where we were: then there is no telling.
func (s *Source) forgetProcess() {
	s.last = mark{}
	s.onConn.replayed = 0
	s.count(func(st *Stats) { st.Restarts++ })
	s.cfg.Logger.Info("engine restarted", "endpoint", s.cfg.Endpoint, "rank", s.cfg.Rank)
}

func (s *Source) onLive(ctx context.Context, m liveMessage) {
	switch {
	case m.seq+1 <= s.onConn.live:
		// Numbers rise on one connection, unless something in between forwards a new process.
		s.forgetProcess()
	case m.seq+1 <= s.onConn.replayed:
		s.onConn.live = m.seq + 1
		s.count(func(st *Stats) { st.Duplicates++ })
		return
	}
	s.onConn.live = m.seq + 1
	resume, gap := s.deliver(m.seq, m.payload)
	if !gap {
		return
	}
	if s.cfg.Replay == "" || !s.retry.over() {
		s.count(func(st *Stats) { st.Unrecovered++ })
		return
	}
	s.closeGap(ctx, m, resume)
}

// closeGap replays from resume on, again and again while apply still misses something: only
// apply can say that it gives up on what the engine no longer has. The engine answers a
// replay between two messages and may not have kept the newest yet, so m is handed on again
// where the replay ended before it.
func (s *Source) closeGap(ctx context.Context, m liveMessage, resume uint64) {
	err := s.persist(ctx, func() (err error) {
		if s.resynced {
			err = s.replay(ctx, resume)
		} else { // first make sure that the engine is the same process
			err = s.resync(ctx)
		}
		if err == nil && s.onConn.replayed < m.seq+1 {
			var gap bool
			if resume, gap = s.deliver(m.seq, m.payload); gap {
				return errGapStays
			}
		}
		return err
	})
	if err == nil {
		s.retry.reset()
		return
	}
	s.retry.start()
	s.count(func(st *Stats) { st.Unrecovered++ })
}

// deliver decodes one message and hands it on.
func (s *Source) deliver(seq uint64, payload []byte) (resume uint64, gap bool) {
	if err := s.cfg.Dialect.Decode(payload, s.cfg.Limits, &s.batch); err != nil {
		s.batch.Unknown = 1
		s.failed("event message not understood", err, func(st *Stats) { st.Malformed++ })
	}
	s.batch.Rank = s.cfg.Rank
	resume, gap = s.apply(seq, &s.batch)
	if gap {
		s.count(func(st *Stats) { st.Gaps++ })
		return resume, true
	}
	s.last = mark{true, seq, xxh3.Hash(payload)}
	s.count(func(st *Stats) { st.LastSeq, st.LastAt = seq, time.Now() })
	return 0, false
}
