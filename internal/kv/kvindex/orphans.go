package kvindex

import (
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// orphans are blocks of a rank whose parent its engine has not named yet, so that their content is not
// known. Engines may announce blocks out of order, and after a missed event the parent may come with a
// snapshot. The rank's lock guards them.
//
//	event                       orphan
//	stored under unknown parent added; the oldest of MaxOrphans goes
//	its parent is stored        stored, and its own orphans after it
//	it is stored elsewhere      stored
//	removed on all places       dropped
//	pressure                    the oldest eighth is dropped
type orphans struct {
	byHash   map[uint64]*orphan
	byParent map[uint64]*orphan // the first of the list of siblings
	oldest   *orphan            // the ends of the list of all, by age
	newest   *orphan
}

// orphan is one block that waits.
type orphan struct {
	hash, parent uint64 // the engine's
	block        blockhash.Block
	tiers        uint8
	groups       uint8   // sliding-window groups
	prev, next   *orphan // with the same parent
	older, newer *orphan // in the list of all
}

const orphanBytes = 72 + 2*48 // with its entries in two maps

// addOrphan lets a block wait for its parent. Beyond MaxOrphans the oldest are dropped.
func (x *Index) addOrphan(r *rank, hash, parent uint64, block blockhash.Block, p place) {
	q := &r.orphans
	if o := q.byHash[hash]; o != nil {
		if o.parent == parent && o.block == block {
			o.tiers |= p.tier
			o.groups |= p.group
			return
		}
		x.removeOrphan(r, o)
	}

	for len(q.byHash) >= x.cfg.MaxOrphans {
		r.lossy = true
		x.removeOrphan(r, q.oldest)
	}
	if !x.budget.reserve(orphanBytes) {
		r.lossy = true
		return
	}
	if q.byHash == nil {
		q.byHash, q.byParent = map[uint64]*orphan{}, map[uint64]*orphan{}
	}

	o := &orphan{
		hash: hash, parent: parent, block: block, tiers: p.tier, groups: p.group,
		next: q.byParent[parent], older: q.newest,
	}
	if o.next != nil {
		o.next.prev = o
	}
	if o.older != nil {
		o.older.newer = o
	} else {
		q.oldest = o
	}
	q.byHash[hash] = o
	q.byParent[parent] = o
	q.newest = o
}

// removeOrphan takes a block out of both maps and both lists.
func (x *Index) removeOrphan(r *rank, o *orphan) {
	q := &r.orphans
	delete(q.byHash, o.hash)
	switch {
	case o.prev != nil:
		o.prev.next = o.next
	case o.next != nil:
		q.byParent[o.parent] = o.next
	default:
		delete(q.byParent, o.parent)
	}
	if o.next != nil {
		o.next.prev = o.prev
	}

	if o.older != nil {
		o.older.newer = o.newer
	} else {
		q.oldest = o.newer
	}
	if o.newer != nil {
		o.newer.older = o.older
	} else {
		q.newest = o.older
	}
	x.budget.release(orphanBytes)
}

// storeOrphansOf stores the blocks that waited for hash, which stands for content seq now, and the blocks that waited for these. It has a
// list of parents instead of recursion, because a chain may be long.
func (x *Index) storeOrphansOf(r *rank, hash uint64, seq blockhash.Sequence) {
	if len(r.orphans.byHash) == 0 {
		return
	}
	type parent struct {
		hash uint64
		seq  blockhash.Sequence
	}
	parents := []parent{{hash, seq}}
	if o := r.orphans.byHash[hash]; o != nil {
		x.storeOrphan(r, o, seq, 0, false) // it waited too, under a parent that never came
	}
	for len(parents) > 0 {
		p := parents[len(parents)-1]
		parents = parents[:len(parents)-1]
		for o := r.orphans.byParent[p.hash]; o != nil; o = r.orphans.byParent[p.hash] {
			seq := blockhash.Next(p.seq, o.block)
			x.storeOrphan(r, o, seq, p.seq, true)
			parents = append(parents, parent{o.hash, seq})
		}
	}
}

// storeOrphan stores a block that has waited, whose content is seq. If chained, its parent's content is
// parent.
func (x *Index) storeOrphan(r *rank, o *orphan, seq, parent blockhash.Sequence, chained bool) {
	x.removeOrphan(r, o)
	for bit := uint8(1); bit < 1<<fleet.Tiers; bit <<= 1 {
		if o.tiers&bit != 0 {
			e := x.edit(r, bit, 0)
			e.expect(parent, chained, 1)
			x.storeTier(r, &e, o.hash, seq, bit)
			e.done()
		}
	}
	for i := range windowGroups {
		if bit := uint8(1) << i; o.groups&bit != 0 {
			e := x.edit(r, 1<<(firstWindow+r.windows.class(bit)), 0)
			e.expect(parent, chained, 1)
			x.storeGroup(r, &e, o.hash, seq, bit)
			e.done()
		}
	}
}
