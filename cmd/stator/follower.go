package main

import (
	"context"
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// follower applies what the bus says of caches and has what is missing told again. It compares
// what is with what should be, a few times a second, and recovers every rank that is not exact:
// so a lost message, a new worker, a bus that was away and a replica that has just started all
// take the same way.
type follower struct {
	*decider
	bus    *bus.Bus
	direct map[string]bool // workers that are not followed on the bus
	slots  chan struct{}   // recoveries at a time
	room   *room           // for their dumps
	work   sync.WaitGroup  // recoveries

	mu    sync.Mutex
	ranks map[rankKey]*followed // guarded by mu
	seen  uint64                // guarded by mu; the fleet's version when ranks was tidied
	held  int                   // guarded by mu; hashes in all batches that wait
}

type rankKey struct {
	worker string
	rank   int
}

// followed is one rank as the bus tells of it. follower.mu guards it.
type followed struct {
	heard      time.Time // when a batch or a mark came last
	epoch      uint64    // of the worker, when the rank was looked at last
	recovering bool
	held       []feed.Message // live batches that wait for the recovery
	tries      int            // recoveries in a row that did not help
	notBefore  time.Time      // the next one
}

const (
	lookEvery = 250 * time.Millisecond
	// silence is how long a rank may say nothing, not even its mark, until it is stale.
	silence = 5 * time.Second
	// maxRecoveries bounds recoveries at a time, maxDumpBytes their dumps together.
	maxRecoveries = 16
	maxDumpBytes  = 512 << 20
	// heldBatches bounds the live batches of one rank that wait for its recovery, heldHashes those
	// of all ranks together (some 64 MiB). What is beyond is replayed later.
	heldBatches = 4096
	heldHashes  = 4 << 20
	// firstPause is what follows a recovery that did not help; it doubles up to lastPause.
	firstPause = 200 * time.Millisecond
	lastPause  = 30 * time.Second
)

func newFollower(d *decider, b *bus.Bus, direct map[string]bool) *follower {
	return &follower{
		decider: d, bus: b, direct: direct, slots: make(chan struct{}, maxRecoveries), room: newRoom(maxDumpBytes),
		ranks: map[rankKey]*followed{},
	}
}

// run follows until ctx ends.
func (f *follower) run(ctx context.Context) error {
	var all sync.WaitGroup
	defer f.work.Wait()
	defer all.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	all.Go(func() { f.patrol(ctx) })
	return f.bus.SubscribeEvents(ctx, func(e *feed.Message) { f.apply(ctx, e, time.Now()) })
}

// apply takes one live message. While its rank is being recovered it waits.
func (f *follower) apply(ctx context.Context, e *feed.Message, now time.Time) {
	k := rankKey{e.Worker, e.Rank}
	f.mu.Lock()
	r := f.rankLocked(k)
	if now.Sub(r.heard) > silence/2 { // what stood in the way of a recovery may be gone
		r.tries, r.notBefore = 0, time.Time{}
	}
	r.heard = now
	if r.recovering {
		f.holdLocked(r, e)
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	if !f.offer(e, now) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.startLocked(ctx, k, r, now) {
		f.holdLocked(r, e)
	}
}

// offer hands a message to the feed and says whether something before it is missing.
func (f *follower) offer(e *feed.Message, now time.Time) (gap bool) {
	return f.feed.Apply(e, now).Verdict == feed.Missing
}

func (f *follower) rankLocked(k rankKey) *followed {
	r := f.ranks[k]
	if r == nil {
		r = &followed{}
		f.ranks[k] = r
	}
	return r
}

// holdLocked keeps a message until the recovery has ended. Where there is no room it is let go
// of: the next one shows the gap.
func (f *follower) holdLocked(r *followed, e *feed.Message) {
	if e.Mark {
		return // another follows
	}
	n := hashes(e.Batch)
	if len(r.held) >= heldBatches || f.held+n > heldHashes {
		f.caches.unheld.Inc()
		return
	}
	f.held += n
	kept := *e
	kept.Batch = &kvevent.Batch{Rank: e.Batch.Rank, Seconds: e.Batch.Seconds, Unknown: e.Batch.Unknown}
	kept.Batch.Events = append(kept.Batch.Events, e.Batch.Events...) // the bus makes new hashes for each message
	r.held = append(r.held, kept)
}

// hashes counts those of a batch; an empty one counts too.
func hashes(b *kvevent.Batch) int {
	n := 1
	for i := range b.Events {
		n += len(b.Events[i].Hashes) + len(b.Events[i].Blocks)
	}
	return n
}

// patrol looks at all ranks until ctx ends.
func (f *follower) patrol(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		changed, back := f.fleet.Changed(), f.bus.Back()
		if f.bus.Connected() {
			f.look(ctx, time.Now())
		}
		select {
		case <-tick.C:
		case <-changed:
		case <-back:
			f.again()
		case <-ctx.Done():
			return
		}
	}
}

// again lets all recoveries begin at once: what stood in their way may be gone.
func (f *follower) again() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.ranks {
		r.tries, r.notBefore, r.heard = 0, time.Time{}, time.Now()
	}
}

// look starts the recovery of every rank that needs one.
func (f *follower) look(ctx context.Context, now time.Time) {
	snap := f.fleet.Snapshot()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range snap.Ranks {
		if m.Worker.KVEvents == "" || m.Worker.State == fleet.Starting || f.direct[m.Worker.Name] {
			continue
		}
		k := rankKey{m.Worker.Name, m.Number}
		r := f.rankLocked(k)
		if r.epoch != m.Worker.Epoch {
			r.epoch, r.tries, r.notBefore, r.heard = m.Worker.Epoch, 0, time.Time{}, now
		}
		switch {
		case f.feed.State(m) != exact:
			f.startLocked(ctx, k, r, now)
		case now.Sub(r.heard) > silence && !r.recovering:
			f.log.Warn("nothing is heard of a rank's cache; it is stale", "worker", k.worker, "rank", k.rank)
			f.feed.Lost(k.worker, k.rank)
		}
	}
	if f.seen != snap.Version {
		f.seen = snap.Version
		f.tidyLocked(snap)
	}
}

// tidyLocked forgets those whom the fleet does not have.
func (f *follower) tidyLocked(snap *fleet.Snapshot) {
	for k, r := range f.ranks {
		if _, there := snap.Rank(k.worker, k.rank); !there && !r.recovering {
			delete(f.ranks, k)
		}
	}
	f.drift.Keep(func(worker string) bool { return snap.Worker(worker) != nil })
}

// startLocked starts the recovery of a rank, unless one is under way or it is too soon.
func (f *follower) startLocked(ctx context.Context, k rankKey, r *followed, now time.Time) bool {
	if r.recovering || now.Before(r.notBefore) || ctx.Err() != nil {
		return false
	}
	r.recovering = true
	f.work.Go(func() { f.recover(ctx, k, r) })
	return true
}
