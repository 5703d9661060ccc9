package kvindex

import (
	"slices"
	"sync"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// hand sweeps over all ranks' engine hashes and forgets what was used least recently, a
// little with every write, so that no write pays for many. It goes by (block, rank) and not
// by node, because only the rank's own table can be cleaned without a search.
//
// What is old is found by sampling nodes: the oldest eighth is forgotten. A list in exact
// order of use would cost 8 bytes a node and a write for every block of every lookup.
type hand struct {
	mu      sync.Mutex
	rank    int
	segment int
	slot    int
	random  uint64
}

// makeRoom forgets about twice as much as the n blocks that are about to be stored, if the
// budget is under pressure, and reaps dropped ranks in any case. False says that there is
// pressure and nothing that could be forgotten.
func (x *Index) makeRoom(n int) bool {
	x.reap(2*n + 16)
	if !x.budget.pressed() || !x.hand.mu.TryLock() {
		return true
	}
	defer x.hand.mu.Unlock()
	x.reap(8 * n)
	all := 2*n + 64
	want := all
	for scanned := 0; want > 0 && scanned < 64*all && x.budget.pressed(); {
		gone, seen := x.sweep(x.oldest())
		want -= gone
		scanned += seen
	}
	return want < all || !x.budget.pressed()
}

// oldest returns the age, as a distance from now, at which the oldest eighth begins.
func (x *Index) oldest() uint8 {
	now := x.clock.now()
	var sample [64]uint8
	ages := sample[:0]
	for range 4 * len(sample) {
		x.hand.random += 0x9e3779b97f4a7c15
		k := (x.hand.random ^ x.hand.random>>29) * 0xbf58476d1ce4e5b9
		t := x.nodes.shards[k>>56].table.Load()
		if t == nil {
			continue
		}
		at := &t.slots[t.home(k)]
		r := at.run.Load()
		if r == nil {
			continue
		}
		if ages = append(ages, now-r.stretch.used()); len(ages) == len(sample) {
			break
		}
	}
	if len(ages) == 0 {
		return 0
	}
	slices.Sort(ages)
	return ages[len(ages)-1-len(ages)/8]
}

// sweep looks at the next few hundred engine hashes and forgets those at least as old as
// limit. It returns how many went and how many it looked at.
func (x *Index) sweep(limit uint8) (gone, seen int) {
	h := &x.hand
	ranks := *x.byID.Load()
	if h.rank >= len(ranks) {
		h.rank, h.segment, h.slot = 0, 0, 0
	}
	if len(ranks) == 0 || ranks[h.rank] == nil {
		h.rank++
		return 0, 1
	}
	r := ranks[h.rank]
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead {
		h.rank, h.segment, h.slot = h.rank+1, 0, 0 // the reaper's
		return 0, 1
	}
	if h.segment >= r.segments() {
		h.segment, h.slot = 0, 0 // another rank has this number now
	}
	if h.segment == 0 && h.slot == 0 {
		gone = x.trim(r)
	}
	now := x.clock.now()
	s, windowed := r.segment(h.segment)
	for ; h.slot < len(s.entries) && seen < 512; seen++ {
		e, tiers := s.entries[h.slot], s.tiers(h.slot)
		if tiers == 0 {
			h.slot++
			continue
		}
		if age, ok := x.nodes.age(e.seq); ok && now-age < limit {
			h.slot++
			continue
		}
		if windowed { // the slot may hold another entry afterwards
			x.forgetWindow(r, e.hash, e.seq, tiers)
		} else {
			x.forget(r, e.hash, e.seq, tiers)
		}
		x.evicted.Add(1)
		gone++
	}
	if h.slot >= len(s.entries) {
		h.segment, h.slot = h.segment+1, 0
	}
	if h.segment == r.segments() {
		h.rank, h.segment, h.slot = h.rank+1, 0, 0
	}
	return gone, seen + 1
}

// segment is one of the rank's tables' segments; windowed says that it is of the
// sliding-window groups' table.
func (r *rank) segment(i int) (s *segment, windowed bool) {
	if n := len(r.engine.segments); i >= n {
		return &r.windows.table.segments[i-n], true
	}
	return &r.engine.segments[i], false
}

func (r *rank) segments() int {
	n := len(r.engine.segments)
	if r.windows != nil {
		n += len(r.windows.table.segments)
	}
	return n
}

// trim lets go of the oldest eighth of what waits or is only predicted.
func (x *Index) trim(r *rank) int {
	orphans := (len(r.orphans.byHash) + 7) / 8
	for range orphans {
		x.unpark(r, r.orphans.oldest)
	}
	before := r.predictions.n
	for range (len(r.predictions.heap) + 7) / 8 {
		x.end(r, r.predictions.pop())
	}
	r.predictions.drop(&x.budget)
	return orphans + before - r.predictions.n
}

// bury takes up to n blocks of a dropped rank out of their nodes and returns what is left
// of n. When it returns with some left, the rank is empty.
func (x *Index) bury(r *rank, n int) int {
	e := x.edit(r, 0, tierMask)
	defer e.done()
	for i := range r.segments() {
		s, _ := r.segment(i)
		if len(s.entries) == 0 {
			continue
		}
		for ; s.n > 0 && n > 0; r.buried++ {
			if s.marks[r.buried] != 0 {
				e.apply(s.entries[r.buried].seq)
				s.marks[r.buried] = 0
				s.n--
				n--
			}
		}
		if s.n > 0 {
			return 0
		}
		s.drop(&x.budget)
		r.buried = 0
	}
	for len(r.predictions.heap) > 0 {
		if n <= 0 {
			return 0
		}
		n -= x.end(r, r.predictions.pop())
	}
	r.predictions.drop(&x.budget)
	x.budget.release(orphanBytes*int64(len(r.orphans.byHash)) + twinBytes*int64(len(r.twins)))
	r.predictions, r.orphans, r.twins, r.windows, r.interred = predictions{}, orphans{}, nil, nil, true
	return max(n, 0)
}

// Stats says what the index holds.
type Stats struct {
	Bytes, MaxBytes int64
	// Nodes is distinct content; Pairs is (block, rank) pairs that engines reported.
	Nodes, Pairs int64
	// Windowed is blocks that sliding-window groups hold, counted once for each rank.
	Windowed int64
	// Sets is distinct sets of holders.
	Sets int64
	// Orphans wait for a parent; Predicted are blocks predicted and not yet expired.
	Orphans, Predicted int64
	// Ranks are those known; Dropped those whose memory is not yet back.
	Ranks, Dropped int
	// Evicted counts pairs forgotten under pressure, Unknown hashes without tokens that were
	// never named before.
	Evicted, Unknown uint64
}

// Stats counts. It takes every lock for a moment, one at a time.
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
	s.Dropped = len(x.grave)
	x.mu.Unlock()
	return s
}

// IsReported says whether the rank's engine itself says that it holds the chain that ends in
// seq on its device. It marks nothing as used.
func (x *Index) IsReported(id fleet.RankID, seq blockhash.Sequence) bool {
	r := x.known(id)
	if r == nil {
		return false
	}
	return x.nodes.holders(seq).tiers(r.holder)&(1<<fleet.Device) != 0
}

// Blocks is how many (block, rank) pairs the rank's engine has reported and not taken back.
func (x *Index) Blocks(id fleet.RankID) int {
	if r := x.known(id); r != nil {
		return int(r.pairs.Load())
	}
	return 0
}
