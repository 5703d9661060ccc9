package kvindex

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// chunk is up to 64 blocks that follow each other in a chain, each at a position. A position is never used
// for a second content, even after its node has gone. So a reader that finds a node at a position knows the
// content of all positions before it, without looking at them.
//
// A new node takes the position after its parent's if that is free, and else begins a chunk. Later changes
// of its holders do not move it.
//
//	state     runs           n         enters it by
//	new       one            1 to 64   the first node of a chain that continues none
//	open      some           < 64      a node that continues the last one
//	full      some           64        the 64th node, or a reservation up to it
//	emptied   none           any       the last node that leaves; it takes no more nodes
type chunk struct {
	mu        sync.Mutex
	runs      *holderRun    // guarded by mu
	n         uint8         // guarded by mu: positions in use, or once in use, or reserved
	firstUsed bool          // guarded by mu: first is in use, or was
	emptied   bool          // guarded by mu: it has no run, and its bytes are released
	age       atomic.Uint32 // the tick of the last use of any of its nodes
	first     holderRun     // the memory of the first run: most chunks have only one
}

// holderRun is the nodes of one chunk that have the same holders. A node points to its run, and the run's set
// is the node's. The bits are the nodes' positions. A reader that sees two positions and all between them
// set, and finds the nodes at both ends, has found all of them.
//
// Invariant: a chunk has at most one run for each set.
type holderRun struct {
	chunk *chunk
	set   *set          // the run has a reference to it
	next  *holderRun    // guarded by the chunk's mu
	bits  atomic.Uint64 // written under the chunk's mu; of nodes and of reservations
}

const (
	chunkBlocks = 64
	chunkBytes  = int64(unsafe.Sizeof(chunk{})+15) / 16 * 16
	runBytes    = int64(unsafe.Sizeof(holderRun{}))
)

// used is the tick of the chunk's last use, and use sets it.
func (g *chunk) used() uint8 { return uint8(g.age.Load()) }

// setAge records that the chunk was used at an age.
func (g *chunk) setAge(age uint8) { g.age.Store(uint32(age)) }

// holders is the set of a run; of nil, which is no node, the empty one.
func (r *holderRun) holders() *set {
	if r == nil {
		return nil
	}
	return r.set
}

// runLocked returns the chunk's run of a set, and makes it if it is missing; nil if there is
// no room. The chunk is locked.
func (n *nodes) runLocked(g *chunk, s *set) *holderRun {
	for r := g.runs; r != nil; r = r.next {
		if r.set == s {
			return r
		}
	}

	r := &g.first
	if g.firstUsed {
		if !n.budget.reserve(runBytes) {
			return nil
		}
		r = &holderRun{}
	}
	// The memory of a run that has gone is not used again: a reader may still read the old run in it.
	g.firstUsed = true
	s.refs.Add(1)
	r.chunk, r.set = g, s
	r.next = g.runs
	g.runs = r
	return r
}

// leaveLocked takes positions out of a run. A run without positions goes, and a chunk without runs is
// emptied. The chunk is locked.
func (n *nodes) leaveLocked(g *chunk, r *holderRun, gone uint64) {
	if r.bits.And(^gone)&^gone != 0 {
		return
	}

	for at := &g.runs; *at != nil; at = &(*at).next {
		if *at == r {
			*at = r.next
			break
		}
	}
	n.sets.release(r.set, 1)
	if r != &g.first {
		n.budget.release(runBytes)
	}
	if g.runs == nil {
		g.emptied = true
		n.budget.release(chunkBytes)
	}
}

// move gives a node another set of holders; none if to is nil. The node's shard is locked. False means that
// there is no room.
//
// The bit leaves the old run before the node points to the new one. A reader between the two sees a shorter
// row of blocks, which is right a moment later, and never a longer one.
func (n *nodes) move(at *slot, to *set) bool {
	old, pos := at.run.Load(), uint8(at.word.Load())
	g := old.chunk
	g.mu.Lock()
	var r *holderRun
	if to != nil {
		r = n.runLocked(g, to)
		if r == nil {
			g.mu.Unlock()
			return false
		}
	}
	n.leaveLocked(g, old, 1<<pos)
	at.run.Store(r)
	if r != nil {
		r.bits.Or(1 << pos)
	}
	g.mu.Unlock()
	return true
}

// reservation is positions of a chunk that a writer has reserved for the blocks that it is about to add. So
// it need not lock the chunk for each of them. Their bits are set already. No reader is misled: it looks for
// the node at the end of a row, which is not there yet, and then for the last node that is.
type reservation struct {
	run       *holderRun // nil for no reservation
	next, end uint8      // the positions from next up to, but not including, end
}

// reserve gives the next reserved position, in the run of a set, to the next block. It uses the present reservation if the block continues
// the last one there. False means that there is no room.
func (e *edit) reserve(to *set) bool {
	c := &e.reserved
	continues := e.chained && e.last == e.parent
	if c.run != nil && c.next < c.end && continues && e.chunk == c.run.chunk && e.pos+1 == c.next && c.run.set == to {
		return true
	}

	e.unreserve()
	g := e.chunkToExtend()
	if g == nil {
		if !e.n.budget.reserve(chunkBytes) {
			return false
		}
		g = &chunk{}
		g.setAge(e.age)
		g.mu.Lock()
	}
	r := e.n.runLocked(g, to)
	if r != nil {
		n := uint8(min(max(e.left, 1), chunkBlocks-int(g.n)))
		*c = reservation{run: r, next: g.n, end: g.n + n}
		g.n += n
		r.bits.Or(c.bits())
	}
	g.mu.Unlock()
	return r != nil
}

// bits has a bit for each position that is still reserved.
func (c *reservation) bits() uint64 { return (1<<(c.end-c.next) - 1) << c.next }

// unreserve gives back the positions that are still reserved. If no other writer has reserved positions
// behind them, they can be used again: no node was ever there.
func (e *edit) unreserve() {
	if c := &e.reserved; c.run != nil && c.next < c.end {
		g := c.run.chunk
		g.mu.Lock()
		if g.n == c.end {
			g.n = c.next
		}
		e.n.leaveLocked(g, c.run, c.bits())
		g.mu.Unlock()
	}
	e.reserved = reservation{}
}

// chunkToExtend returns the chunk, locked, whose next position is the next block's: the chunk of its parent, if the parent is the chunk's
// last block. It returns nil if there is none.
func (e *edit) chunkToExtend() *chunk {
	if !e.chained {
		return nil
	}
	g, pos := e.chunk, e.pos
	if g == nil || e.last != e.parent {
		var r *holderRun
		r, pos = e.n.find(key(e.parent))
		if r == nil {
			return nil
		}
		g = r.chunk
	}

	g.mu.Lock()
	if g.emptied || g.n == chunkBlocks || g.n != pos+1 {
		g.mu.Unlock()
		return nil
	}
	return g
}
