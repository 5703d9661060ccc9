package kvindex

import (
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// orphans are blocks whose parent the rank's engine has not named yet: engines announce
// chunks as they complete, and after a missed event the parent may come with a dump.
type orphans struct {
	byHash   map[uint64]*orphan
	byParent map[uint64]*orphan // the first of a list of siblings
	oldest   *orphan
	newest   *orphan
}

type orphan struct {
	hash, parent uint64
	block        blockhash.Block
	tiers        uint8
	groups       uint8   // sliding-window groups
	prev, next   *orphan // siblings
	older, newer *orphan
}

const orphanBytes = 72 + 2*48 // and its share of two maps

// park lets a block wait for its parent. The oldest makes room.
func (x *Index) park(r *rank, hash, parent uint64, block blockhash.Block, p place) {
	q := &r.orphans
	if o := q.byHash[hash]; o != nil {
		if o.parent == parent && o.block == block {
			o.tiers |= p.tier
			o.groups |= p.group
			return
		}
		x.unpark(r, o)
	}
	for len(q.byHash) >= x.cfg.MaxOrphans {
		x.unpark(r, q.oldest)
	}
	if !x.budget.reserve(orphanBytes) {
		return
	}
	if q.byHash == nil {
		q.byHash, q.byParent = map[uint64]*orphan{}, map[uint64]*orphan{}
	}
	o := &orphan{hash: hash, parent: parent, block: block, tiers: p.tier, groups: p.group, next: q.byParent[parent], older: q.newest}
	if o.next != nil {
		o.next.prev = o
	}
	if o.older != nil {
		o.older.newer = o
	} else {
		q.oldest = o
	}
	q.byHash[hash], q.byParent[parent], q.newest = o, o, o
}

// unpark takes a block off both lists.
func (x *Index) unpark(r *rank, o *orphan) {
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

// adopt stores the blocks that waited for hash, which is content seq now, and those that
// waited for them. No recursion: a chain may be long.
func (x *Index) adopt(r *rank, hash uint64, seq blockhash.Sequence) {
	if len(r.orphans.byHash) == 0 {
		return
	}
	type parent struct {
		hash uint64
		seq  blockhash.Sequence
	}
	parents := []parent{{hash, seq}}
	if o := r.orphans.byHash[hash]; o != nil {
		x.settle(r, o, seq, 0, false) // it was named before, under a parent that never came
	}
	for len(parents) > 0 {
		p := parents[len(parents)-1]
		parents = parents[:len(parents)-1]
		for o := r.orphans.byParent[p.hash]; o != nil; o = r.orphans.byParent[p.hash] {
			seq := blockhash.Next(p.seq, o.block)
			x.settle(r, o, seq, p.seq, true)
			parents = append(parents, parent{o.hash, seq})
		}
	}
}

// settle stores a block that has waited; chained says that its parent is known.
func (x *Index) settle(r *rank, o *orphan, seq, parent blockhash.Sequence, chained bool) {
	x.unpark(r, o)
	for bit := uint8(1); bit < 1<<fleet.Tiers; bit <<= 1 {
		if o.tiers&bit != 0 {
			e := x.edit(r, bit, 0)
			e.after(parent, chained, 1)
			x.put(r, &e, o.hash, seq, bit)
			e.done()
		}
	}
	for i := range windowGroups {
		if bit := uint8(1) << i; o.groups&bit != 0 {
			e := x.edit(r, 1<<(firstWindow+r.windows.class(bit)), 0)
			e.after(parent, chained, 1)
			x.putWindow(r, &e, o.hash, seq, bit)
			e.done()
		}
	}
}
