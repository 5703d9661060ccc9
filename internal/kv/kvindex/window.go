package kvindex

import (
	"slices"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// A hybrid model has sliding-window attention groups beside its full-attention group. Each group has blocks
// under the same engine hashes. A prefix can be reused up to a block only if the full-attention group holds
// all of it, and every window group holds the blocks that lie in its window before that point.
//
// vLLM decides this in HybridKVCacheCoordinator (vllm/v1/core/kv_cache_coordinator.py, find_longest_cache_hit):
// the groups in turn shorten the hit until none does. A group needs cdiv(window-1, block_size) blocks in a row, or
// all from the root if these are fewer (SlidingWindowManager.find_longest_cache_hit). The result is the longest
// length that suits every group.
//
// Example: a window of 3 blocks, and a prompt of 8 blocks.
//
//	block               0 1 2 3 4 5 6 7
//	full attention      x x x x x x x x
//	window group        . . . x x x . x
//	blocks in a row     0 0 0 1 2 3 0 1
//	reusable up to                ^        6 blocks: 3 in a row at block 5
//
// A node's set has a bit for each size of window, beside the bits of the tiers: all of the rank's
// groups of that size hold the block. So a lookup counts rows as it walks, without a lock, and ranks
// without such groups cost nothing.

// windows is the content of a rank's sliding-window groups. The rank's lock guards it.
type windows struct {
	table  engineTable // an entry's mark has a bit for each group that holds it
	groups []windowGroup
	needs  windowNeeds
	masks  [windowClasses]uint8 // the bits of the groups of each class
}

// windowGroup is one group. Its bit is its position in windows.groups.
type windowGroup struct {
	number int   // the engine's
	window int   // blocks in a row that it needs
	class  uint8 // of groups with the same window
}

// windowNeeds has the number of blocks in a row that each class needs. Lookups read it without a lock, so a
// published one does not change.
type windowNeeds struct {
	n      int
	blocks [windowClasses]int
}

const (
	windowClasses = 3 // as many bits of a member are left by tiers and prediction
	windowGroups  = 8
	firstWindow   = fleet.Tiers + 1 // the bit of the first class in a member
)

// windowBits are the bits of all classes.
const windowBits = uint8((1<<windowClasses - 1) << firstWindow)

// Window is a sliding-window attention group of a rank.
type Window struct {
	// Group is the engine's number of the group; 0 if it reports none.
	Group int
	// Blocks is the number of blocks in a row that the group needs at the end of a reused prefix: see [WindowBlocks].
	Blocks int
}

// StoreWindow is [Index.Store] for a sliding-window group, on the rank's device. The group's blocks are independent of the full-attention
// group's blocks. Blocks of a group that needs none are not stored.
//
// The overlap of a rank that has such a group is cut to the longest prefix that its groups allow, on the
// slowest tier first. Beyond 8 groups, or 3 sizes of windows, the last one stands for the rest. That may
// make the overlap shorter than it is.
func (x *Index) StoreWindow(id fleet.RankID, w Window, c Chain) {
	if w.Blocks <= 0 {
		return
	}
	r := x.lockForStore(id, c)
	if r == nil {
		return
	}
	defer r.mu.Unlock()

	bit := x.windowGroup(r, w.Group, w.Blocks)
	e := x.edit(r, 1<<(firstWindow+r.windows.class(bit)), 0)
	x.store(r, &e, place{group: bit}, c)
	e.done()
}

// RemoveWindow records that a group no longer holds blocks.
func (x *Index) RemoveWindow(id fleet.RankID, group int, hashes []uint64) {
	r := x.lookupRank(id)
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
			o.groups &^= bit
			if o.tiers|o.groups == 0 {
				x.removeOrphan(r, o)
			}
		}
		if seq, groups := r.windows.table.get(h); groups&bit != 0 {
			x.removeGroups(r, h, seq, groups, bit)
		}
	}
}

// WindowBlocks returns the number of blocks in a row that a sliding window of tokens needs. A token attends to itself and to the tokens-1
// before it, so a window of 1 needs none.
func WindowBlocks(tokens, blockSize int) int {
	if tokens <= 1 || blockSize <= 0 {
		return 0
	}
	return (tokens-2)/blockSize + 1
}

// bit returns the bit of a group by its number; 0 for an unknown one, if there is a bit left for it.
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

// class is the class of the group that has a bit.
func (w *windows) class(bit uint8) uint8 {
	for i, g := range w.groups {
		if bit == 1<<i {
			return g.class
		}
	}
	return 0
}

// windowGroup returns the bit of a group, and makes a new group. Like the rank itself, groups are not charged
// to the budget: without them overlaps would be too long.
func (x *Index) windowGroup(r *rank, number, window int) (bit uint8) {
	if r.windows == nil {
		r.windows = &windows{}
		for i := range r.windows.table.segments {
			r.windows.table.segments[i].wide = 0xff // there are more groups than tiers
		}
	}

	w := r.windows
	bit = w.bit(number)
	if bit != 0 {
		return bit
	}
	class := slices.Index(w.needs.blocks[:w.needs.n], window)
	if class < 0 {
		class = min(w.needs.n, windowClasses-1)
		w.needs.n = class + 1
		w.needs.blocks[class] = max(w.needs.blocks[class], window)
	}
	w.groups = append(w.groups, windowGroup{number: number, window: window, class: uint8(class)})
	bit = 1 << (len(w.groups) - 1)
	if w.masks[class] != 0 {
		x.unsetWindows(r, class) // the new group holds nothing yet
	}
	w.masks[class] |= bit

	needs := w.needs // a copy: lookups may read the one before
	r.needs.Store(&needs)
	return bit
}

// unsetWindows clears a class's bit in all of the rank's nodes.
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

// storeGroup records that a group holds content seq under the engine's hash. The node gets the bit of the
// class, which e sets, once all groups of the class hold it. False means that there is no room.
func (x *Index) storeGroup(r *rank, e *edit, hash uint64, seq blockhash.Sequence, bit uint8) bool {
	w := r.windows
	was, groups := w.table.get(hash)
	if groups != 0 && was != seq {
		x.forgetWindow(r, hash, was, groups)
		groups = 0
	}
	if !w.table.setTiers(hash, seq, groups|bit, &x.budget) {
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
		w.table.setTiers(hash, seq, groups, &x.budget) // needs no room: its slot exists
	} else {
		w.table.remove(hash, &x.budget)
	}
	return false
}

// removeGroups removes groups from one engine hash that they hold. If a second hash stands for the same
// content, it does not keep the node's bit. Then the overlap is shorter than it could be, and not wrong.
func (x *Index) removeGroups(r *rank, hash uint64, seq blockhash.Sequence, groups, gone uint8) {
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

	groups &^= gone
	if groups != 0 {
		w.table.setTiers(hash, seq, groups, &x.budget) // needs no room: its slot exists
		return
	}
	w.table.remove(hash, &x.budget)
}

// forgetWindow removes an engine hash from all groups.
func (x *Index) forgetWindow(r *rank, hash uint64, seq blockhash.Sequence, groups uint8) {
	x.removeGroups(r, hash, seq, groups, groups)
}

// windowWalk counts one rank's blocks in a row along a prompt.
type windowWalk struct {
	needs *windowNeeds
	bits  uint8              // of the blocks that pass is called for
	at    int                // blocks passed
	runs  [windowClasses]int // blocks in a row, up to here, of each class
	best  int                // the longest prefix that every class allows
}

// pass walks on by n blocks that all have the walk's bits. If a prefix that ends within them is allowed, so
// is one that ends a block later. So only the last one needs a check.
func (w *windowWalk) pass(n int) {
	w.at += n
	bits := w.bits
	if bits&predicted != 0 {
		bits = windowBits // a prediction means that the rank can reuse the blocks
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

// cut takes off the blocks beyond the longest allowed prefix, on the slowest tier first.
func (w *windowWalk) cut(blocks *[fleet.Tiers]int) {
	over := w.at - w.best
	for tier := fleet.Tiers - 1; tier >= 0 && over > 0; tier-- {
		n := min(over, blocks[tier])
		blocks[tier], over = blocks[tier]-n, over-n
	}
}
