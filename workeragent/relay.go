package workeragent

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
)

// relay takes one engine process's KV events from its socket to the bus. It applies them to the
// agent's own knowledge first, which is what keeps their order, and remembers the newest, for
// routers that come late or missed something.
type relay struct {
	cfg     Config
	worker  fleet.Worker
	metrics *metrics
	know    *knowledge
	now     func() time.Time
	up      atomic.Bool // the engine's socket is connected

	// mu orders what is published too: a mark does not overtake the batch that it counts.
	mu     sync.Mutex
	next   uint64         // guarded by mu; the number of the next batch
	past   []feed.Message // guarded by mu; in order of sequence
	blocks int            // guarded by mu; hashes in past
}

// The memory of a relay: as many batches as vLLM's own replay buffer has, and 64 MiB of
// hashes at most.
const (
	pastBatches = 10_000
	pastBlocks  = 4 << 20
)

// markEvery is how often routers are told the number of the next batch. They take a rank that
// says nothing for several times as long for stale.
const markEvery = time.Second

// probeEvery is how soon the engine is asked whether its socket dropped the last of its
// messages: nobody would tell.
const probeEvery = 2 * time.Second

func newRelay(w fleet.Worker, cfg Config, m *metrics, k *knowledge) *relay {
	return &relay{cfg: cfg, worker: w, metrics: m, know: k, now: time.Now}
}

// run relays until ctx ends.
func (r *relay) run(ctx context.Context) {
	src, err := kvsource.New(kvsource.Config{
		Endpoint: r.worker.KVEvents, Replay: r.worker.KVReplay,
		Dialect: kvsource.DialectOf(r.worker.Engine, r.worker.KVEvents), BlockSize: r.worker.BlockSize, Logger: r.cfg.Log, Probe: probeEvery, Connected: r.connected,
	})
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
			r.mark()
		}
	})
	if err := src.Run(ctx, r.apply); err != nil {
		r.cfg.Log.Error("events not relayed", "worker", r.worker.Name, "err", err)
	}
}

// connected keeps whether the engine's socket is there. While it is not, no marks are sent, and
// routers see that nothing comes.
func (r *relay) connected(up bool) {
	r.up.Store(up)
	if !up {
		r.know.feed.Lost(r.worker.Name, 0)
	}
}

// apply relays one batch. A gap is the source's to close. Where the engine has forgotten what is
// missing the feed gives it up, and routers see the gap for themselves.
func (r *relay) apply(seq uint64, b *kvevent.Batch) (resume uint64, gap bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	result := r.know.feed.Apply(&feed.Message{Worker: r.worker.Name, Epoch: r.worker.Epoch, Rank: b.Rank, Seq: seq, Batch: b}, r.now())
	if result.Restarted { // inside of the process that we started
		r.next, r.past, r.blocks = 0, nil, 0
	}
	switch result.Verdict {
	case feed.Missing:
		return result.Resume, true
	case feed.Ignored:
		return 0, false // a replay overlapped what was relayed
	}
	r.next = seq + 1
	e := feed.Message{Worker: r.worker.Name, Rank: b.Rank, Epoch: r.worker.Epoch, Seq: seq, Batch: clone(b)}
	r.rememberLocked(e)
	if err := r.cfg.Bus.PublishEvents(&e); err != nil {
		r.metrics.unsent.Inc()
		r.cfg.Log.Debug("events not published", "worker", r.worker.Name, "seq", seq, "err", err)
		return 0, false
	}
	r.metrics.events.WithLabelValues(r.worker.Name).Inc()
	return 0, false
}

// mark tells routers the number of the next batch, unless the engine's socket is not there.
func (r *relay) mark() {
	if !r.up.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := feed.Message{Worker: r.worker.Name, Epoch: r.worker.Epoch, Seq: r.next, Mark: true}
	if err := r.cfg.Bus.PublishEvents(&e); err != nil {
		r.cfg.Log.Debug("mark not published", "worker", r.worker.Name, "err", err)
	}
}

func (r *relay) rememberLocked(e feed.Message) {
	r.past = append(r.past, e)
	r.blocks += size(e.Batch)
	drop := 0
	for len(r.past)-drop > r.cfg.PastBatches || r.blocks > pastBlocks {
		r.blocks -= size(r.past[drop].Batch)
		drop++
	}
	if drop > 0 {
		clear(r.past[:drop]) // so that they can be freed
		r.past = r.past[drop:]
	}
}

// serve answers routers that ask for past batches, or for a snapshot, until ctx ends.
func (r *relay) serve(ctx context.Context) {
	var snapshots sync.WaitGroup
	defer snapshots.Wait()
	snapshots.Go(func() {
		if err := r.cfg.Bus.ServeSnapshots(ctx, r.worker.Name, r.snapshot); err != nil {
			r.cfg.Log.Error("snapshots not served", "worker", r.worker.Name, "err", err)
		}
	})
	err := r.cfg.Bus.ServeReplay(ctx, r.worker.Name, func(rank int, from uint64, send func(*feed.Message)) feed.Position {
		past, next := r.since(from)
		for _, e := range past {
			if e.Rank == rank {
				send(&e)
			}
		}
		return feed.Position{Epoch: r.worker.Epoch, Next: next, Connected: r.up.Load()}
	})
	if err != nil {
		r.cfg.Log.Error("replays not served", "worker", r.worker.Name, "err", err)
	}
}

func (r *relay) snapshot(rank int, id uint64) *feed.Snapshot {
	return r.know.snapshot(r.worker.Name, r.worker.Epoch, rank, id, r.replayable, r.now())
}

// replayable says whether everything from batch next on is remembered.
func (r *relay) replayable(next uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return next == r.next || len(r.past) > 0 && r.past[0].Seq <= next && next < r.next
}

// since returns what is remembered from seq on, and the number that comes after it.
func (r *relay) since(from uint64) (past []feed.Message, next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, _ := slices.BinarySearchFunc(r.past, from, func(e feed.Message, seq uint64) int {
		switch {
		case e.Seq < seq:
			return -1
		case e.Seq > seq:
			return 1
		}
		return 0
	})
	return slices.Clone(r.past[i:]), r.next
}

// clone copies a batch out of the decoder's buffers.
func clone(b *kvevent.Batch) *kvevent.Batch {
	c := &kvevent.Batch{Rank: b.Rank, Seconds: b.Seconds, Unknown: b.Unknown, Events: slices.Clone(b.Events)}
	for i := range c.Events {
		e := &c.Events[i]
		e.Hashes, e.Blocks = slices.Clone(e.Hashes), slices.Clone(e.Blocks)
	}
	return c
}

// size counts the hashes of a batch; an empty batch counts as one, so that the bound holds.
func size(b *kvevent.Batch) int {
	n := 1
	for i := range b.Events {
		n += len(b.Events[i].Hashes) + len(b.Events[i].Blocks)
	}
	return n
}
