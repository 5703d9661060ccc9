package kvindex

import (
	"slices"
	"sync"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// sweeper evicts the blocks that were used least recently. It is the hand of a clock that goes round over
// all entries of all ranks' tables, and moves a little with each write, so that no write pays for many. It
// walks (block, rank) pairs and not nodes, because a pair's entry in its rank's table could not be found
// from a node without a search.
//
// The age at which eviction begins is found by sampling nodes: the oldest eighth is evicted. A list in exact
// order of use would cost 8 bytes a node, and a write for each block of each lookup.
type sweeper struct {
	mu sync.Mutex // held by the one goroutine that evicts

	// The position of the hand: a RankID, a segment of that rank's tables, and a slot there. Guarded by mu.
	rank    int
	segment int
	slot    int
	random  uint64 // state of the sampling; guarded by mu
}

// sweepSlots bounds the slots that one call of sweep checks: the rank's lock is held meanwhile.
const sweepSlots = 512

// makeRoom reaps dropped ranks. If the budget is under pressure it also evicts about twice as many blocks as
// the n that are about to be stored, so that pressure ends. False means that there is pressure and nothing
// could be evicted. The caller holds no lock of a rank.
func (x *Index) makeRoom(n int) bool {
	x.reap(2*n + 16)
	if !x.budget.pressed() || !x.sweeper.mu.TryLock() {
		return true
	}
	defer x.sweeper.mu.Unlock()

	x.reap(8 * n)
	all := 2*n + 64
	want := all
	limit := x.evictionAge()
	for scanned := 0; want > 0 && scanned < 64*all && x.budget.pressed(); {
		gone, seen := x.sweep(limit)
		want -= gone
		scanned += seen
	}
	return want < all || !x.budget.pressed()
}

// evictionAge returns the age in ticks at which the oldest eighth of the nodes begins, by a sample of 64. It
// returns 0 if the sample is empty: then every block may go.
func (x *Index) evictionAge() uint8 {
	now := x.clock.now()
	var sample [64]uint8
	ages := sample[:0]
	for range 4 * len(sample) {
		x.sweeper.random += 0x9e3779b97f4a7c15
		k := (x.sweeper.random ^ x.sweeper.random>>29) * 0xbf58476d1ce4e5b9 // a random key, mostly of no node
		t := x.nodes.shards[k>>56].table.Load()
		if t == nil {
			continue
		}
		at := &t.slots[t.home(k)]
		r := at.run.Load()
		if r == nil {
			continue
		}
		ages = append(ages, now-r.chunk.used())
		if len(ages) == len(sample) {
			break
		}
	}

	if len(ages) == 0 {
		return 0
	}
	slices.Sort(ages)
	return ages[len(ages)-1-len(ages)/8]
}

// sweep checks the next few hundred entries and evicts the ones that are at least limit ticks old. It returns the numbers of evicted and of
// checked entries. x.sweeper.mu is held.
//
// The rank at the hand may have changed since the last call: it may be gone, dropped, or another rank with
// the same id. Its tables may have been resized, which moves entries past the hand or behind it. All this
// only changes when a block is checked, never whether its eviction is right.
func (x *Index) sweep(limit uint8) (gone, seen int) {
	h := &x.sweeper
	ranks := *x.byID.Load()
	if h.rank >= len(ranks) {
		h.moveTo(0)
	}
	if len(ranks) == 0 || ranks[h.rank] == nil {
		h.moveTo(h.rank + 1)
		return 0, 1
	}

	r := ranks[h.rank]
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead {
		h.moveTo(h.rank + 1) // the reaper empties it
		return 0, 1
	}
	if h.segment >= r.segments() {
		h.moveTo(h.rank) // another rank has this id now, with fewer tables
	}
	if h.segment == 0 && h.slot == 0 {
		gone = x.evictWaiting(r)
	}

	now := x.clock.now()
	s, windowed := r.segment(h.segment)
	for ; h.slot < len(s.entries) && seen < sweepSlots; seen++ {
		e, tiers := s.entries[h.slot], s.tiers(h.slot)
		if tiers == 0 {
			h.slot++
			continue
		}
		if age, ok := x.nodes.age(e.seq); ok && now-age < limit {
			h.slot++
			continue
		}
		// The hand stays: a removal may move another entry into the slot.
		if windowed {
			x.forgetWindow(r, e.hash, e.seq, tiers)
		} else {
			x.forget(r, e.hash, e.seq, tiers)
		}
		x.evicted.Add(1)
		r.lossy = true
		gone++
	}
	if h.slot >= len(s.entries) {
		h.segment, h.slot = h.segment+1, 0
	}
	if h.segment == r.segments() {
		h.moveTo(h.rank + 1)
	}
	return gone, seen + 1
}

// moveTo moves the hand to the first entry of a rank.
func (h *sweeper) moveTo(rank int) {
	h.rank = rank
	h.segment, h.slot = 0, 0
}

// segment returns the i-th segment of the rank's tables: first the segments of its engine's hashes, then the segments of its sliding-window
// groups, for which windowed is true.
func (r *rank) segment(i int) (s *segment, windowed bool) {
	if n := len(r.engine.segments); i >= n {
		return &r.windows.table.segments[i-n], true
	}
	return &r.engine.segments[i], false
}

// segments returns the number of segments of the rank's tables.
func (r *rank) segments() int {
	n := len(r.engine.segments)
	if r.windows != nil {
		n += len(r.windows.table.segments)
	}
	return n
}

// evictWaiting evicts the oldest eighth of a rank's orphans, and the eighth of its predictions that ends
// first. It returns their number of blocks. Orphans and predictions have no age in the tables, so the sweeper
// takes them once in each round.
func (x *Index) evictWaiting(r *rank) int {
	orphans := (len(r.orphans.byHash) + 7) / 8
	r.lossy = r.lossy || orphans > 0
	for range orphans {
		x.removeOrphan(r, r.orphans.oldest)
	}
	before := r.predictions.n
	for range (len(r.predictions.heap) + 7) / 8 {
		x.endPrediction(r, r.predictions.popFirst())
	}
	r.predictions.dropSpare(&x.budget)
	return orphans + before - r.predictions.n
}

// reapRank takes up to n blocks of a dropped rank out of their nodes, and returns the rest of n. It
// sets r.reaped when the rank is empty. Nothing else changes the tables of a dropped rank, so
// r.reapedTo stays valid between calls.
func (x *Index) reapRank(r *rank, n int) int {
	e := x.edit(r, 0, tierMask)
	defer e.done()
	for i := range r.segments() {
		s, _ := r.segment(i)
		if len(s.entries) == 0 {
			continue
		}
		for ; s.n > 0 && n > 0; r.reapedTo++ {
			if s.marks[r.reapedTo] != 0 {
				e.apply(s.entries[r.reapedTo].seq)
				s.marks[r.reapedTo] = 0
				s.n--
				n--
			}
		}
		if s.n > 0 {
			return 0
		}
		s.drop(&x.budget)
		r.reapedTo = 0
	}

	for len(r.predictions.heap) > 0 {
		if n <= 0 {
			return 0
		}
		n -= x.endPrediction(r, r.predictions.popFirst())
	}
	r.predictions.dropSpare(&x.budget)
	x.budget.release(orphanBytes*int64(len(r.orphans.byHash)) + twinBytes*int64(len(r.twins)))
	r.predictions, r.orphans = predictions{}, orphans{}
	r.twins, r.windows = nil, nil
	r.reaped = true
	return max(n, 0)
}

// Stats counts the content of the index.
type Stats struct {
	Bytes, MaxBytes int64
	// Nodes is distinct content; Pairs is (block, rank) pairs that engines reported.
	Nodes, Pairs int64
	// Windowed is blocks in sliding-window groups, counted once for each rank.
	Windowed int64
	// Sets is distinct sets of holders.
	Sets int64
	// Orphans is blocks that wait for a parent. Predicted is predicted blocks that have not expired.
	Orphans, Predicted int64
	// Ranks is known ranks. Dropped is dropped ranks whose memory is not yet free.
	Ranks, Dropped int
	// Evicted counts pairs that were evicted under pressure. Unknown counts hashes without tokens that no
	// earlier event has named.
	Evicted, Unknown uint64
}

// Stats counts now. It takes every lock for a moment, one at a time, so the figures are not of one moment.
func (x *Index) Stats() Stats {
	s := Stats{Bytes: x.budget.used.Load(), MaxBytes: x.budget.max, Evicted: x.evicted.Load(), Unknown: x.unknown.Load()}
	for _, r := range *x.byID.Load() {
		if r == nil {
			continue
		}
		r.mu.Lock()
		s.Ranks++
		s.Pairs += r.pairs.Load()
		s.Orphans += int64(len(r.orphans.byHash))
		s.Predicted += int64(r.predictions.n)
		if r.windows != nil {
			for i := range r.windows.table.segments {
				s.Windowed += int64(r.windows.table.segments[i].n)
			}
		}
		r.mu.Unlock()
	}

	for i := range x.nodes.shards {
		shard := &x.nodes.shards[i]
		shard.mu.Lock()
		s.Nodes += int64(shard.live)
		shard.mu.Unlock()
	}
	for i := range x.sets.shards {
		shard := &x.sets.shards[i]
		shard.mu.Lock()
		s.Sets += int64(len(shard.byHash))
		shard.mu.Unlock()
	}
	x.mu.Lock()
	s.Dropped = len(x.dropped)
	x.mu.Unlock()
	return s
}

// IsReported reports whether the rank's engine has reported the block of sequence hash seq on its device,
// and not removed it. A prediction does not count. The block's age does not change.
func (x *Index) IsReported(id fleet.RankID, seq blockhash.Sequence) bool {
	r := x.lookupRank(id)
	if r == nil {
		return false
	}
	return x.nodes.holders(seq).tiers(r.holder)&(1<<fleet.Device) != 0
}

// Evicted reports whether a rank's blocks were evicted, or not stored because the index is full, since the
// rank was last empty or loaded. The index may then have fewer blocks than the engine reported.
func (x *Index) Evicted(id fleet.RankID) bool {
	r := x.lookupRank(id)
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.lossy
}

// Blocks is the number of blocks that the rank's engine has reported and not removed.
func (x *Index) Blocks(id fleet.RankID) int {
	if r := x.lookupRank(id); r != nil {
		return int(r.pairs.Load())
	}
	return 0
}
