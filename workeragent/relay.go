package workeragent

import (
	"context"
	"slices"
	"sync"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/workeragent/kvsource"
)

// relay takes one engine process's KV events from its socket to the bus and remembers the
// newest, for routers that come late or missed something.
type relay struct {
	cfg     Config
	worker  fleet.Worker
	metrics *metrics

	// Touched by run's goroutine only.
	next    uint64 // the sequence number that is due
	waiting uint64 // the sequence number for which a gap was reported, plus one

	mu     sync.Mutex
	past   []bus.Events // guarded by mu; in order of sequence
	blocks int          // guarded by mu; hashes in past
}

// The memory of a relay: as many batches as vLLM's own replay buffer has, and 64 MiB of
// hashes at most.
const (
	pastBatches = 10_000
	pastBlocks  = 4 << 20
)

func newRelay(w fleet.Worker, cfg Config, m *metrics) *relay {
	return &relay{cfg: cfg, worker: w, metrics: m}
}

// run relays until ctx ends.
func (r *relay) run(ctx context.Context) {
	src, err := kvsource.New(kvsource.Config{Endpoint: r.worker.KVEvents, Replay: r.worker.KVReplay, Logger: r.cfg.Log})
	if err == nil {
		err = src.Run(ctx, r.apply)
	}
	if err != nil {
		r.cfg.Log.Error("events not relayed", "worker", r.worker.Name, "err", err)
	}
}

// apply relays one batch. A gap is reported to the source once; where it comes again the
// engine has forgotten what is missing, and routers must see the gap themselves.
func (r *relay) apply(seq uint64, b *kvevent.Batch) (resume uint64, gap bool) {
	if seq < r.next {
		return 0, false // a replay overlapped what was relayed
	}
	if seq > r.next && r.waiting != seq+1 {
		r.waiting = seq + 1
		return r.next, true
	}
	r.next, r.waiting = seq+1, 0
	e := bus.Events{Worker: r.worker.Name, Rank: b.Rank, Epoch: r.worker.Epoch, Seq: seq, Batch: clone(b)}
	r.remember(e)
	if err := r.cfg.Bus.PublishEvents(&e); err != nil {
		r.metrics.unsent.Inc()
		r.cfg.Log.Debug("events not published", "worker", r.worker.Name, "seq", seq, "err", err)
		return 0, false
	}
	r.metrics.events.WithLabelValues(r.worker.Name).Inc()
	return 0, false
}

func (r *relay) remember(e bus.Events) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.past = append(r.past, e)
	r.blocks += size(e.Batch)
	drop := 0
	for len(r.past)-drop > pastBatches || r.blocks > pastBlocks {
		r.blocks -= size(r.past[drop].Batch)
		drop++
	}
	if drop > 0 {
		clear(r.past[:drop]) // so that they can be freed
		r.past = r.past[drop:]
	}
}

// serve answers routers that ask for past batches, until ctx ends.
func (r *relay) serve(ctx context.Context) {
	err := r.cfg.Bus.ServeReplay(ctx, r.worker.Name, func(rank int, from uint64, send func(*bus.Events)) (epoch, next uint64) {
		past, next := r.since(from)
		for _, e := range past {
			if e.Rank == rank {
				send(&e)
			}
		}
		return r.worker.Epoch, next
	})
	if err != nil {
		r.cfg.Log.Error("replays not served", "worker", r.worker.Name, "err", err)
	}
}

// since returns what is remembered from seq on, and the number that comes after it.
func (r *relay) since(from uint64) (past []bus.Events, next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.past) > 0 {
		next = r.past[len(r.past)-1].Seq + 1
	}
	i, _ := slices.BinarySearchFunc(r.past, from, func(e bus.Events, seq uint64) int {
		switch {
		case e.Seq < seq:
			return -1
		case e.Seq > seq:
			return 1
		}
		return 0
	})
	return slices.Clone(r.past[i:]), next
}

// clone copies a batch out of the decoder's buffers.
func clone(b *kvevent.Batch) *kvevent.Batch {
	c := &kvevent.Batch{Rank: b.Rank, Seconds: b.Seconds, Unknown: b.Unknown, Events: slices.Clone(b.Events)}
	// The bus cannot say yet which attention group an event speaks of.
	c.Events = slices.DeleteFunc(c.Events, func(e kvevent.Event) bool { return e.Window != 0 })
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
