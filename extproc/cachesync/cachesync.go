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
	// SubscribeEvents calls apply for every message of every rank until ctx ends. Messages of one rank come
	// one after the other, and messages of different ranks also at the same time. Messages may be lost. A
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
	// Excluded reports whether the events of a worker do not come by the transport. It must be quick. Nil excludes none.
	Excluded func(worker string) bool
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// Syncer keeps the ranks of a fleet exact. Create it with [New].
type Syncer struct {
	cfg        Config
	metrics    *metrics
	freed      chan struct{}  // has an element after a recovery has ended
	dumps      *byteSemaphore // the memory of the recoveries' dumps
	recoveries sync.WaitGroup

	mu    sync.Mutex
	ranks map[rankKey]*rank // guarded by mu
	nodes map[string]*node  // guarded by mu; the ranks with a recovery that runs or has failed
	// running is the number of recoveries that run.
	running int // guarded by mu
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
	agentKnows  bool // the agent was exact, or had caught up, at the last message
	// settled means that the last recovery got all that the agent has, and that the rank is stale all the
	// same. Another one would be in vain until the agent's state changes.
	settled bool
	// queued holds the live batches that wait for the recovery. Invariant: it is empty unless
	// recovering.
	queued    []feed.Message
	failures  int // recoveries in a row that did not make the rank exact
	pauses    backoff.Backoff
	notBefore time.Time // when the next recovery may start
}

// node is the progress of the recoveries from one agent. Syncer.mu guards it. While an agent does not answer,
// its ranks must not occupy the slots of the others.
type node struct {
	running   int // recoveries
	pauses    backoff.Backoff
	notBefore time.Time // when the next recovery may start: the agent has not answered the last one
}

const (
	// reconcileEvery is the interval at which all ranks are checked.
	reconcileEvery = 250 * time.Millisecond
	// silenceLimit is the time that a rank may be without a message before it is stale. Agents publish
	// a mark every second.
	silenceLimit = 5 * time.Second
	// maxRecoveries bounds how many recoveries run at a time.
	maxRecoveries = 16
	// maxNodeRecoveries bounds the recoveries of one node.
	maxNodeRecoveries = 4
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
	if cfg.Excluded == nil {
		cfg.Excluded = func(string) bool { return false }
	}
	return &Syncer{
		cfg: cfg, metrics: newMetrics(cfg.Metrics),
		freed: make(chan struct{}, 1), dumps: newByteSemaphore(maxDumpBytes),
		ranks: map[rankKey]*rank{}, nodes: map[string]*node{},
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
		if !s.cfg.Excluded(m.Worker.Name) {
			s.cfg.Feed.Lost(m.Worker.Name, m.Number)
		}
	}
}

// receive applies one live message, or queues it while its rank is in recovery.
func (s *Syncer) receive(ctx context.Context, t Transport, m *feed.Message, now time.Time) {
	if _, ok := s.cfg.Fleet.Snapshot().Rank(m.Worker, m.Rank); !ok {
		s.missing(m, now) // counts it
		return
	}
	key := rankKey{m.Worker, m.Rank}

	s.mu.Lock()
	r := s.rankLocked(key)
	s.observeLocked(key, r, m, now)
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

// observeLocked records that an agent has published a message. If the agent is back, or its rank has become
// exact, a recovery may help that was in vain before.
func (s *Syncer) observeLocked(key rankKey, r *rank, m *feed.Message, now time.Time) {
	back := now.Sub(r.lastMessage) > silenceLimit/2
	r.lastMessage = now

	if m.Mark || m.State != feed.None {
		knows := m.State == feed.Exact || m.CaughtUp
		back = back || knows && !r.agentKnows
		r.agentKnows = knows
	}
	if back {
		r.retryAtOnce()
	}
	if n := s.nodes[nodeOf(key.worker)]; n != nil {
		n.retryAtOnce()
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
	r.settled = false
}

// retryAtOnce ends the pause after a recovery without an answer.
func (n *node) retryAtOnce() {
	n.pauses.Reset()
	n.notBefore = time.Time{}
}

// nodeOf returns the node of a worker. A worker whose name has none is a node of its own.
func nodeOf(worker string) string {
	if name := fleet.NodeOf(worker); name != "" {
		return name
	}
	return worker
}
