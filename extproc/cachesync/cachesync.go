package cachesync

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
)

// Transport connects a router to the agents of its workers. *bus.Bus implements it.
type Transport interface {
	// SubscribeEvents calls apply for every message of every rank until ctx ends: for those of one rank one
	// after the other, and for those of different ranks also at the same time. Messages may be lost. A
	// message is valid during its call.
	SubscribeEvents(ctx context.Context, apply func(*feed.Message)) error

	// Replay calls apply for each batch of a rank that its agent remembers, from number from on,
	// and returns the rank's position after the last one.
	Replay(
		ctx context.Context, worker string, epoch uint64, rank int, from uint64, apply func(*feed.Message),
	) (feed.Position, error)

	// Snapshot returns a snapshot of a rank from its agent. Before it transfers the dump it calls
	// admit with the dump's size; admit may wait, and its error is returned. The error is
	// feed.ErrNoSnapshot if the agent has none.
	Snapshot(
		ctx context.Context, worker string, epoch uint64, rank int, admit func(ctx context.Context, size int) error,
	) (*feed.Snapshot, error)

	// Connected reports whether messages can arrive now.
	Connected() bool

	// Back returns a channel that is closed at the next reconnection.
	Back() <-chan struct{}
}

// Config is read by New and not changed later.
type Config struct {
	Fleet *fleet.Fleet
	Feed  *feed.Feed
	// Excluded are the names of workers whose events do not come by the transport.
	Excluded map[string]bool
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// Syncer keeps the ranks of a fleet exact. Create it with [New].
type Syncer struct {
	cfg        Config
	metrics    *metrics
	slots      chan struct{}  // one element per recovery that runs
	dumps      *byteSemaphore // the memory of the recoveries' dumps
	recoveries sync.WaitGroup

	mu    sync.Mutex
	ranks map[rankKey]*rank // guarded by mu
	// pruned is the fleet's version at which ranks was last pruned.
	pruned uint64 // guarded by mu
	// queuedBytes is the memory of all queued batches.
	queuedBytes int // guarded by mu
}

// rankKey names a rank, in whatever epoch.
type rankKey struct {
	worker string
	rank   int
}

// rank is the progress of one rank. Syncer.mu guards it.
type rank struct {
	lastMessage time.Time
	epoch       uint64 // the worker's, when the rank was last checked
	recovering  bool
	// queued holds the live batches that wait for the recovery. Invariant: it is empty unless
	// recovering.
	queued    []feed.Message
	failures  int // recoveries in a row that did not make the rank exact
	pauses    backoff.Backoff
	notBefore time.Time // when the next recovery may start
}

const (
	// reconcileEvery is how often all ranks are checked.
	reconcileEvery = 250 * time.Millisecond
	// silenceLimit is how long a rank may be without a message before it is stale. Agents publish
	// a mark every second.
	silenceLimit = 5 * time.Second
	// maxRecoveries bounds how many recoveries run at a time.
	maxRecoveries = 16
	// maxDumpBytes bounds the dumps of all recoveries together.
	maxDumpBytes = 512 << 20
	// maxQueuedBatches bounds the batches of one rank that wait for its recovery.
	maxQueuedBatches = 4096
	// maxQueuedBytes bounds the memory of the waiting batches of all ranks together.
	maxQueuedBytes = 64 << 20
	// minPause is the pause after a recovery that did not help. It doubles up to maxPause.
	minPause = 200 * time.Millisecond
	maxPause = 30 * time.Second
	// pauseAfterSuccess keeps a rank that loses every batch from being recovered without a pause.
	pauseAfterSuccess = minPause / 4
)

// New returns a syncer that does nothing until it is run.
func New(cfg Config) *Syncer {
	return &Syncer{
		cfg: cfg, metrics: newMetrics(cfg.Metrics),
		slots: make(chan struct{}, maxRecoveries), dumps: newByteSemaphore(maxDumpBytes),
		ranks: map[rankKey]*rank{},
	}
}

// Run applies messages and recovers ranks until ctx ends.
func (s *Syncer) Run(ctx context.Context, t Transport) error {
	var reconciler sync.WaitGroup
	defer s.recoveries.Wait()
	defer reconciler.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	reconciler.Go(func() { s.reconcileRegularly(ctx, t) })
	return t.SubscribeEvents(ctx, func(m *feed.Message) { s.receive(ctx, t, m, time.Now()) })
}

// Disconnected marks the ranks as stale whose events come by the transport, because it is away.
func (s *Syncer) Disconnected() {
	for _, m := range s.cfg.Fleet.Snapshot().Ranks {
		if !s.cfg.Excluded[m.Worker.Name] {
			s.cfg.Feed.Lost(m.Worker.Name, m.Number)
		}
	}
}

// receive applies one live message, or queues it while its rank is in recovery.
func (s *Syncer) receive(ctx context.Context, t Transport, m *feed.Message, now time.Time) {
	key := rankKey{m.Worker, m.Rank}

	s.mu.Lock()
	r := s.rankLocked(key)
	if now.Sub(r.lastMessage) > silenceLimit/2 {
		r.retryAtOnce() // the agent is back
	}
	r.lastMessage = now
	if r.recovering {
		s.queueLocked(r, m)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()

	if !s.missing(m, now) {
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.startLocked(ctx, t, key, r, now) {
		s.queueLocked(r, m)
	}
}

// missing applies a message to the feed and reports whether an earlier one is missing.
func (s *Syncer) missing(m *feed.Message, now time.Time) bool {
	return s.cfg.Feed.Apply(m, now).Verdict == feed.Missing
}

func (s *Syncer) rankLocked(key rankKey) *rank {
	r := s.ranks[key]
	if r == nil {
		r = &rank{pauses: backoff.Backoff{Min: minPause, Max: maxPause}}
		s.ranks[key] = r
	}
	return r
}

// retryAtOnce ends the pause after failed recoveries: their cause may be gone.
func (r *rank) retryAtOnce() {
	r.failures = 0
	r.pauses.Reset()
	r.notBefore = time.Time{}
}

// reconcileRegularly checks all ranks until ctx ends: every reconcileEvery, when the fleet changes, and
// when the transport is back.
func (s *Syncer) reconcileRegularly(ctx context.Context, t Transport) {
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()

	for {
		// Both channels are taken before the check, so that no change is missed during it.
		changed, back := s.cfg.Fleet.Changed(), t.Back()
		if t.Connected() {
			s.reconcile(ctx, t, time.Now())
		}

		select {
		case <-tick.C:
		case <-changed:
		case <-back:
			s.reconnected(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// reconnected lets every recovery start at once, and gives every rank time for its next message.
func (s *Syncer) reconnected(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, r := range s.ranks {
		r.retryAtOnce()
		r.lastMessage = now
	}
}

// reconcile starts the recovery of every rank that is not exact, and marks silent ranks as stale.
func (s *Syncer) reconcile(ctx context.Context, t Transport, now time.Time) {
	snap := s.cfg.Fleet.Snapshot()
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, m := range snap.Ranks {
		if m.Worker.KVEvents == "" || m.Worker.State == fleet.Starting || s.cfg.Excluded[m.Worker.Name] {
			continue
		}

		key := rankKey{m.Worker.Name, m.Number}
		r := s.rankLocked(key)
		if r.epoch != m.Worker.Epoch {
			r.epoch = m.Worker.Epoch
			r.lastMessage = now
			r.retryAtOnce()
		}

		switch {
		case s.cfg.Feed.State(m) != feed.Exact:
			s.startLocked(ctx, t, key, r, now)
		case now.Sub(r.lastMessage) > silenceLimit && !r.recovering:
			s.cfg.Log.Warn("no KV events of a rank; its cache state is stale",
				"worker", key.worker, "rank", key.rank, "duration", now.Sub(r.lastMessage))
			s.cfg.Feed.Lost(key.worker, key.rank)
		}
	}
	s.pruneLocked(snap)
}

// pruneLocked drops the ranks that the fleet does not have any more.
func (s *Syncer) pruneLocked(snap *fleet.Snapshot) {
	if s.pruned == snap.Version {
		return
	}
	s.pruned = snap.Version

	for key, r := range s.ranks {
		if _, ok := snap.Rank(key.worker, key.rank); !ok && !r.recovering {
			delete(s.ranks, key)
		}
	}
}

// startLocked starts the recovery of a rank and reports whether it did: not while one runs, during a
// pause, or after the end of ctx.
func (s *Syncer) startLocked(ctx context.Context, t Transport, key rankKey, r *rank, now time.Time) bool {
	if r.recovering || now.Before(r.notBefore) || ctx.Err() != nil {
		return false
	}

	r.recovering = true
	s.recoveries.Go(func() { s.recoverRank(ctx, t, key, r) })
	return true
}
