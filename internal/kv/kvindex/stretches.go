package kvindex

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// stretch is up to 64 blocks that follow each other in a chain, each at a position of its own
// for as long as the node has holders. A position that was given up is not given again, so it
// stands for one content for ever: whoever finds a node of the stretch at a position knows
// what all the positions before it stand for, without looking at them.
//
// A new node takes the position after its parent's, if nobody has it, and begins a stretch
// else. What happens to its holders later does not move it.
type stretch struct {
	mu      sync.Mutex
	runs    *run // guarded by mu
	n       uint8
	given   bool // guarded by mu: first has been in use
	emptied bool // guarded by mu: its bytes have been given back, and it takes nothing more
	age     atomic.Uint32
	first   run
}

// run is the nodes of one stretch that have the same holders. It is where a node points to: the
// set it names is the node's. The bits are their positions; a reader that sees two positions
// and all between them set, and finds the nodes at both ends, has found all of them.
type run struct {
	stretch *stretch
	set     *set          // has a reference
	next    *run          // guarded by the stretch's mu
	bits    atomic.Uint64 // written under the stretch's mu; of the nodes that point here, and of claims
}

const (
	stretchBlocks = 64
	stretchBytes  = int64(unsafe.Sizeof(stretch{})+15) / 16 * 16
	runBytes      = int64(unsafe.Sizeof(run{}))
)

func (g *stretch) used() uint8   { return uint8(g.age.Load()) }
func (g *stretch) use(age uint8) { g.age.Store(uint32(age)) }

func (r *run) holders() *set {
	if r == nil {
		return nil
	}
	return r.set
}

// runLocked returns the stretch's run of a set; nil where there is no room for a new one.
func (n *nodes) runLocked(g *stretch, s *set) *run {
	for r := g.runs; r != nil; r = r.next {
		if r.set == s {
			return r
		}
	}
	r := &g.first
	if g.given {
		if !n.budget.reserve(runBytes) {
			return nil
		}
		r = &run{}
	}
	// A run that has been given up is not used again: a reader may still take it for the old.
	g.given = true
	s.refs.Add(1)
	r.stretch, r.set, r.next = g, s, g.runs
	g.runs = r
	return r
}

// leaveLocked takes positions out of a run, and gives up what is empty then.
func (n *nodes) leaveLocked(g *stretch, r *run, gone uint64) {
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
		n.budget.release(stretchBytes)
	}
}

// move gives a node, which has holders, others; none where to is nil. The node's shard is
// locked. False means that there is no room.
func (n *nodes) move(at *slot, to *set) bool {
	old, pos := at.run.Load(), uint8(at.word.Load())
	g := old.stretch
	g.mu.Lock()
	var r *run
	if to != nil {
		if r = n.runLocked(g, to); r == nil {
			g.mu.Unlock()
			return false
		}
	}
	n.leaveLocked(g, old, 1<<pos)
	if at.run.Store(r); r != nil {
		r.bits.Or(1 << pos)
	}
	g.mu.Unlock()
	return true
}

// claim is positions of a stretch that a writer has for the blocks it is about to add, so that it
// need not lock the stretch for each. Their bits are set: no node is there yet, so no reader is
// misled, and the nodes come in order.
type claim struct {
	run       *run // nil where there is none
	next, end uint8
}

// position makes sure that the next position claimed is the next block's, in the run of a set.
// False means that there is no room.
func (e *edit) position(to *set) bool {
	c := &e.claim
	if c.run != nil && c.next < c.end && e.chained && e.last == e.parent && e.stretch == c.run.stretch && e.pos+1 == c.next && c.run.set == to {
		return true
	}
	e.unclaim()
	g := e.extended()
	if g == nil {
		if !e.n.budget.reserve(stretchBytes) {
			return false
		}
		g = &stretch{}
		g.use(e.age)
		g.mu.Lock()
	}
	r := e.n.runLocked(g, to)
	if r != nil {
		n := uint8(min(max(e.left, 1), stretchBlocks-int(g.n)))
		*c = claim{run: r, next: g.n, end: g.n + n}
		g.n += n
		r.bits.Or(c.bits())
	}
	g.mu.Unlock()
	return r != nil
}

func (c *claim) bits() uint64 { return (1<<(c.end-c.next) - 1) << c.next }

// unclaim gives back what is not used of a claim.
func (e *edit) unclaim() {
	if c := &e.claim; c.run != nil && c.next < c.end {
		g := c.run.stretch
		g.mu.Lock()
		if g.n == c.end {
			g.n = c.next
		}
		e.n.leaveLocked(g, c.run, c.bits())
		g.mu.Unlock()
	}
	e.claim = claim{}
}

// extended returns the stretch, locked, in which the next position is the next block's; nil
// where there is none.
func (e *edit) extended() *stretch {
	if !e.chained {
		return nil
	}
	g, pos := e.stretch, e.pos
	if g == nil || e.last != e.parent {
		var r *run
		if r, pos = e.n.find(key(e.parent)); r == nil {
			return nil
		}
		g = r.stretch
	}
	g.mu.Lock()
	if g.emptied || g.n == stretchBlocks || g.n != pos+1 {
		g.mu.Unlock()
		return nil
	}
	return g
}
