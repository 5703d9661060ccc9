package route

import "sync/atomic"

// ring keeps the newest decisions. Writers and readers take no lock; a reader beside a
// writer may miss the oldest.
type ring struct {
	slots []atomic.Pointer[Decision]
	next  atomic.Uint64
}

func (g *ring) add(d *Decision) {
	g.slots[(g.next.Add(1)-1)%uint64(len(g.slots))].Store(d)
}

// find walks the ring from the newest back. It is asked by people, so a walk over a few
// thousand pointers is cheaper than a map that every decision would have to keep.
func (g *ring) find(id string) (*Decision, bool) {
	for d := range g.all {
		if d.ID == id {
			return d, true
		}
	}
	return nil, false
}

func (g *ring) newest(n int) []*Decision {
	var list []*Decision
	for d := range g.all {
		if len(list) >= n {
			break
		}
		list = append(list, d)
	}
	return list
}

// all yields the decisions, newest first.
func (g *ring) all(yield func(*Decision) bool) {
	next, size := g.next.Load(), uint64(len(g.slots))
	for i := uint64(1); i <= min(next, size); i++ {
		if d := g.slots[(next-i)%size].Load(); d != nil && !yield(d) {
			return
		}
	}
}
