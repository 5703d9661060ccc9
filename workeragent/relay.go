package workeragent

import (
	"context"
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
)

// relay publishes the KV events of one rank of an engine process on the bus. It first applies them to the agent's
// mirror, which drops duplicates and finds gaps. It remembers the newest batches, for routers that
// start late or missed some.
//
//	event                                   effect
//	--------------------------------------  --------------------------------------------------
//	batch that the mirror applies           remembered and published
//	batch that the mirror ignores           dropped: it has been published before
//	batch after a gap                       the source replays; nothing is published
//	restart within the epoch                the remembered batches are dropped, counting from 0;
//	                                        the published state is Stale at best once a number is
//	                                        used again
//	socket connected or lost, source has    a mark with the number of the next batch, and the state
//	  caught up, every markEvery            in the mirror
type relay struct {
	cfg     Config
	worker  fleet.Worker
	rank    int
	metrics *metrics
	mirror  *cacheMirror
	events  *bus.EventWriter
	now     func() time.Time

	// mu also orders the published messages: a mark must not overtake the batches that it counts.
	mu   sync.Mutex
	next uint64 // guarded by mu; the number of the next batch
	// used is the value that next had before the source found another process in this epoch, and reused
	// means that a number below it was published again.
	used   uint64 // guarded by mu
	reused bool   // guarded by mu
	past   past   // guarded by mu
	// saved is the value that next had when the rank's cache was saved last; saveFailed means that this failed.
	saved      uint64 // guarded by mu
	saveFailed bool   // guarded by mu
}

// The bounds of the batches that a relay remembers: as many as vLLM's own replay buffer has, and their bytes.
const (
	pastBatches = 10_000
	pastBytes   = 64 << 20
)

// markEvery is the interval at which the number of the next batch is published. Routers mark a rank
// as stale after several times as long without a message.
const markEvery = time.Second

// dialTime bounds a connection to the URL of an engine's events.
const dialTime = 5 * time.Second

// probeEvery is the time after which a silent engine is asked for messages that its socket dropped.
const probeEvery = 2 * time.Second

func newRelay(w fleet.Worker, rank int, cfg Config, m *metrics, mirror *cacheMirror, events *bus.EventWriter) *relay {
	return &relay{
		cfg: cfg, worker: w, rank: rank, metrics: m, mirror: mirror, events: events, now: time.Now,
		past: past{maxBatches: cfg.PastBatches, maxBytes: pastBytes},
	}
}

// relayEvents relays until ctx ends.
func (r *relay) relayEvents(ctx context.Context) {
	src, err := r.source(r.beginWithFile())
	if err != nil {
		r.cfg.Log.Error("events not relayed", "worker", r.worker.Name, "err", err)
		return
	}

	var marks sync.WaitGroup
	defer marks.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	marks.Go(func() {
		for backoff.Sleep(ctx, markEvery) == nil {
			r.publishMark()
		}
	})

	defer r.metrics.sources.Add(r.worker.Name, r.rank, src)()
	if err := src.Run(ctx, r); err != nil {
		r.cfg.Log.Error("events not relayed", "worker", r.worker.Name, "err", err)
	}
}

// source returns the source of the rank's events. With after it begins with what follows that message.
func (r *relay) source(after *kvsource.Position) (*kvsource.Source, error) {
	at, err := kvsource.ConfiguredSocket(r.worker.KVEvents, r.worker.KVReplay, r.rank)
	if err != nil {
		return nil, err
	}
	return kvsource.New(kvsource.Config{
		Endpoint: at.Endpoint, Replay: at.Replay, Rank: r.rank, After: after,
		Dialect: kvsource.DialectOf(r.worker.Engine, at.Endpoint), BlockSize: r.worker.BlockSize,
		Dial: r.cfg.Engines.Dial(dialTime), Logger: r.cfg.Log, Probe: probeEvery,
	})
}

// stream is the engine's rank in the mirror.
func (r *relay) stream() *feed.Stream {
	return &feed.Stream{Feed: r.mirror.feed, Worker: r.worker.Name, Epoch: r.worker.Epoch, Rank: r.rank, Now: r.now}
}

// Connected records whether the engine's event socket is connected. Routers get the new state with a mark at once.
func (r *relay) Connected(up bool) {
	r.stream().Connected(up)
	r.publishMark()
}

// Batch relays one batch. The source closes gaps. If the engine no longer has the missing batches the
// mirror gives the gap up, and routers find the gap in the numbers that are published.
func (r *relay) Batch(seq uint64, b *kvevent.Batch) (resume uint64, gap bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	result := r.stream().Apply(seq, b)
	if result.Restarted {
		r.startAgainLocked()
	}
	switch result.Verdict {
	case feed.Missing:
		return result.Resume, true
	case feed.Ignored:
		return 0, false
	}

	r.next = seq + 1
	r.reused = r.reused || seq < r.used
	data := bus.EncodeBatch(&feed.Message{
		Worker: r.worker.Name, Rank: b.Rank, Epoch: r.worker.Epoch, Seq: seq, State: r.stateLocked(), CaughtUp: r.caughtUpLocked(),
		Batch: b,
	})
	r.past.addBatch(seq, data)
	if err := r.events.Add(data); err != nil {
		r.metrics.unsent.Inc()
		r.cfg.Log.Debug("events not published", "worker", r.worker.Name, "seq", seq, "err", err)
		return 0, false
	}
	r.metrics.events.WithLabelValues(r.worker.Name).Inc()
	return 0, false
}

// Restarted handles an engine that counts from 0 again inside the process that the agent started.
func (r *relay) Restarted() {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.stream().Restarted()
	r.startAgainLocked()
}

// CaughtUp makes the rank exact in the mirror. Routers get the new state with a mark at once.
func (r *relay) CaughtUp(next uint64) (resume uint64, gap bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	was := r.stateLocked()
	resume, gap = r.stream().CaughtUp(next)
	if r.stateLocked() != was {
		r.publishMarkLocked()
	}
	return resume, gap
}

// stateLocked is the rank's state in the mirror. If a second process of the epoch uses the same numbers it is
// Stale at best: routers cannot distinguish the two.
func (r *relay) stateLocked() feed.State {
	m, _ := r.mirror.fleet.Snapshot().Rank(r.worker.Name, r.rank)
	state := r.mirror.feed.State(m)
	if state == feed.Exact && r.ambiguousLocked() {
		return feed.Stale
	}
	return state
}

// caughtUpLocked reports whether the relay has every batch since some number, although the mirror is not exact.
func (r *relay) caughtUpLocked() bool {
	m, _ := r.mirror.fleet.Snapshot().Rank(r.worker.Name, r.rank)
	return r.mirror.feed.State(m) == feed.Stale && r.mirror.feed.CaughtUp(m) && !r.ambiguousLocked()
}

// ambiguousLocked reports whether numbers have been published of two processes in one epoch.
func (r *relay) ambiguousLocked() bool { return r.reused || r.next < r.used }

// startAgainLocked drops the remembered batches of an engine that counts from 0 again.
func (r *relay) startAgainLocked() {
	r.used = max(r.used, r.next)
	r.next = 0
	r.past.clear()
}

// publishMark publishes the number of the next batch and the rank's state. While the engine's socket is not
// connected the state is not Exact: the number is right only for the batches that the agent has received.
func (r *relay) publishMark() {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.publishMarkLocked()
}

func (r *relay) publishMarkLocked() {
	m := feed.Message{
		Worker: r.worker.Name, Rank: r.rank, Epoch: r.worker.Epoch, Seq: r.next, Mark: true, State: r.stateLocked(),
		CaughtUp: r.caughtUpLocked(),
	}
	if err := r.events.Add(bus.EncodeBatch(&m)); err != nil {
		r.cfg.Log.Debug("mark not published", "worker", r.worker.Name, "err", err)
	}
}

// replay returns the remembered batches from a number on, and the rank's position.
func (r *relay) replay(from uint64, room int) (batches [][]byte, end feed.Position) {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.past.from(from, room), feed.Position{
		Epoch: r.worker.Epoch, Next: r.next, State: r.stateLocked(), CaughtUp: r.caughtUpLocked(),
	}
}

func (r *relay) snapshot(id uint64) *feed.Snapshot {
	return r.mirror.snapshots.Get(r.worker.Name, r.worker.Epoch, r.rank, id, r.replayable, r.now())
}

// replayable reports whether every batch from number next on is remembered.
func (r *relay) replayable(next uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	return next == r.next || r.past.has(next)
}
