package kvindex

import (
	"slices"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// A hybrid model has sliding-window attention groups beside its full-attention group, each with
// blocks of its own under the same engine hashes. Such a prefix is reusable up to a block only
// if, besides the full-attention group holding it whole, every window group holds the blocks
// that lie in its window before that point. This is how vLLM's HybridKVCacheCoordinator decides
// (vllm/v1/core/kv_cache_coordinator.py, find_longest_cache_hit): the groups in turn shorten the
// hit until none does; SlidingWindowManager.find_longest_cache_hit asks for
// cdiv(window-1, block_size) blocks in a row, or all from the root where those are fewer. The
// longest length that suits every group is what its rounds end at.
//
// A node says in its set which windows the rank has whole there, a bit beside those of the tiers
// for each size of window: so a lookup counts runs as it goes, lock-free, and a rank without
// such groups pays for none of it.

// windows is what a rank's sliding-window groups hold. The rank's lock guards it.
type windows struct {
	table  engineTable // the tiers of an entry are the groups that hold it, a bit each
	groups []windowGroup
	needs  windowNeeds
	masks  [windowClasses]uint8 // the groups of each size of window
}

// windowGroup is one group; its bit is its place in the list.
type windowGroup struct {
	number, window int
	class          uint8
}

// windowNeeds is the blocks in a row that each size of window needs. Lookups read it: a
// published one does not change.
type windowNeeds struct {
	n      int
	blocks [windowClasses]int
}

const (
	windowClasses = 3 // the bits of a member that tiers and prediction leave
	windowGroups  = 8
	firstWindow   = fleet.Tiers + 1 // the bit of the first class in a member
)

// windowBits are those of all classes.
const windowBits = uint8((1<<windowClasses - 1) << firstWindow)

// StoreWindow is [Index.Store] for a sliding-window attention group of the rank, on its device:
// that group holds the blocks, whatever the full-attention group holds. group is the engine's
// number of the group (0 where it does not say), window how many blocks the group needs at the
// end of a reused prefix ([WindowBlocks]); of a window of no blocks nothing is kept.
//
// A rank that has one such group has its overlap cut, tier by tier from the slowest, to the
// longest prefix that its groups allow. Of more than 8 groups, or 3 sizes of windows, the last
// stand for the rest: that may shorten the overlap.
func (x *Index) StoreWindow(id fleet.RankID, group, window int, parent uint64, hasParent bool, hashes []uint64, blocks []blockhash.Block) {
	if window <= 0 || len(hashes) == 0 {
		return
	}
	x.makeRoom(len(hashes))
	r := x.rank(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead {
		return
	}
	bit := x.windowGroup(r, group, window)
	p := place{group: bit}
	x.clock.advance(len(hashes))
	e := x.edit(r, 1<<(firstWindow+r.windows.class(bit)), 0)
	x.store(r, &e, p, parent, hasParent, hashes, blocks)
	e.done()
}

// RemoveWindow is told that the group no longer holds the blocks.
func (x *Index) RemoveWindow(id fleet.RankID, group int, hashes []uint64) {
	r := x.known(id)
	if r == nil {
		return
	}
	x.reap(2 * len(hashes))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead || r.windows == nil {
		return
	}
	bit := r.windows.bit(group)
	if bit == 0 {
		return
	}
	for _, h := range hashes {
		if o := r.orphans.byHash[h]; o != nil {
			if o.groups &^= bit; o.tiers|o.groups == 0 {
				x.unpark(r, o)
			}
		}
		if seq, groups := r.windows.table.get(h); groups&bit != 0 {
			x.takeWindow(r, h, seq, groups, bit)
		}
	}
}

// WindowBlocks is the blocks that a sliding window of tokens needs in a row: a token attends to
// itself and to the tokens-1 before it.
func WindowBlocks(tokens, blockSize int) int {
	if tokens <= 1 || blockSize <= 0 {
		return 0
	}
	return (tokens-2)/blockSize + 1
}

func (w *windows) bit(group int) uint8 {
	for i, g := range w.groups {
		if g.number == group {
			return 1 << i
		}
	}
	if len(w.groups) == windowGroups {
		return 1 << (windowGroups - 1)
	}
	return 0
}

// class is the size of window of the group of a bit.
func (w *windows) class(bit uint8) uint8 {
	for i, g := range w.groups {
		if bit == 1<<i {
			return g.class
		}
	}
	return 0
}

// windowGroup returns the bit of a group; it makes the group where it is new. Like the rank
// itself this is not charged: that a rank has windows must be known whatever room there is.
func (x *Index) windowGroup(r *rank, number, window int) (bit uint8) {
	if r.windows == nil {
		r.windows = &windows{}
		for i := range r.windows.table.segments {
			r.windows.table.segments[i].wide = 0xff // there are more groups than tiers
		}
	}
	w := r.windows
	if bit = w.bit(number); bit != 0 {
		return bit
	}
	class := slices.Index(w.needs.blocks[:w.needs.n], window)
	if class < 0 {
		class = min(w.needs.n, windowClasses-1)
		w.needs.n = class + 1
		w.needs.blocks[class] = max(w.needs.blocks[class], window)
	}
	w.groups = append(w.groups, windowGroup{number, window, uint8(class)})
	bit = 1 << (len(w.groups) - 1)
	if w.masks[class] != 0 {
		x.unsetWindows(r, class) // the new group holds nothing yet
	}
	w.masks[class] |= bit
	needs := w.needs
	r.needs.Store(&needs)
	return bit
}

// unsetWindows takes a class's bit out of all of the rank's nodes.
func (x *Index) unsetWindows(r *rank, class int) {
	e := x.edit(r, 0, 1<<(firstWindow+class))
	defer e.done()
	for i := range r.windows.table.segments {
		s := &r.windows.table.segments[i]
		for j, mark := range s.marks {
			if mark != 0 {
				e.apply(s.entries[j].seq)
			}
		}
	}
}

// putWindow records that a group holds content seq under the engine's hash; e sets the bit of
// the group's class. False means that there is no room.
func (x *Index) putWindow(r *rank, e *edit, hash uint64, seq blockhash.Sequence, bit uint8) bool {
	w := r.windows
	was, groups := w.table.get(hash)
	if groups != 0 && was != seq {
		x.forgetWindow(r, hash, was, groups)
		groups = 0
	}
	if !w.table.set(hash, seq, groups|bit, &x.budget) {
		return false
	}
	mask := w.masks[w.class(bit)]
	if (groups|bit)&mask != mask {
		return true
	}
	if _, ok := e.apply(seq); ok {
		return true
	}
	if groups != 0 {
		w.table.set(hash, seq, groups, &x.budget) // its slot exists
	} else {
		w.table.remove(hash, &x.budget)
	}
	return false
}

// takeWindow removes groups, which hold it, from one engine hash. Where two hashes stand for the
// same content the second does not keep the node's bit: the overlap is shorter then, not wrong.
func (x *Index) takeWindow(r *rank, hash uint64, seq blockhash.Sequence, groups, gone uint8) {
	w := r.windows
	var unset uint8
	for class, mask := range w.masks {
		if gone&mask != 0 && groups&mask == mask {
			unset |= 1 << (firstWindow + class)
		}
	}
	if unset != 0 {
		e := x.edit(r, 0, unset)
		e.apply(seq)
		e.done()
	}
	if groups &^= gone; groups != 0 {
		w.table.set(hash, seq, groups, &x.budget) // its slot exists
		return
	}
	w.table.remove(hash, &x.budget)
}

// forgetWindow removes an engine hash from all groups.
func (x *Index) forgetWindow(r *rank, hash uint64, seq blockhash.Sequence, groups uint8) {
	x.takeWindow(r, hash, seq, groups, groups)
}

// windowWalk follows one rank's windows along a prompt.
type windowWalk struct {
	needs *windowNeeds
	bits  uint8              // of the node that the walk is at
	at    int                // blocks passed
	runs  [windowClasses]int // blocks in a row, up to here, of each class
	best  int                // the longest prefix that every class allows
}

// pass goes on by n blocks that all have the walk's bits. Within them a prefix that is allowed
// stays so one block later, so the last alone decides.
func (w *windowWalk) pass(n int) {
	w.at += n
	bits := w.bits
	if bits&predicted != 0 {
		bits = windowBits // what is predicted of a rank is that it can reuse the blocks
	}
	allowed := true
	for c := range w.needs.n {
		if bits>>(firstWindow+c)&1 == 0 {
			w.runs[c] = 0
			allowed = false
			continue
		}
		w.runs[c] += n
		allowed = allowed && w.runs[c] >= min(w.needs.blocks[c], w.at)
	}
	if allowed && n > 0 {
		w.best = w.at
	}
}

// cut takes off what is beyond the longest allowed prefix, the slowest tier first.
func (w *windowWalk) cut(blocks *[fleet.Tiers]int) {
	over := w.at - w.best
	for tier := fleet.Tiers - 1; tier >= 0 && over > 0; tier-- {
		n := min(over, blocks[tier])
		blocks[tier], over = blocks[tier]-n, over-n
	}
}
