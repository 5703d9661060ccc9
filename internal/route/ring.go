package route

import (
	"slices"
	"sync"
	"sync/atomic"
)

// ring keeps the newest decisions in memory of its own: what is kept of one is copied, into where
// the oldest was, so that keeping reasons makes no garbage, and decisions end with their callers. Each
// slot has a lock; two meet at one only where a writer is a whole round ahead, or a reader looks.
type ring struct {
	slots []slot
	next  atomic.Uint64
}

type slot struct {
	mu   sync.Mutex
	used bool
	d    Decision
}

func (g *ring) add(d *Decision) {
	s := &g.slots[(g.next.Add(1)-1)%uint64(len(g.slots))]
	s.mu.Lock()
	defer s.mu.Unlock()
	candidates, others := append(s.d.Candidates[:0], d.Candidates...), append(s.d.Others[:0], d.Others...)
	s.used, s.d = true, *d
	s.d.Candidates, s.d.Others, s.d.Ticket = candidates, others, nil
}

// find walks the ring from the newest back. It is asked by people, so a walk over a few
// thousand slots is cheaper than a map that every decision would have to keep.
func (g *ring) find(id string) (found *Decision, ok bool) {
	g.walk(func(d *Decision) bool {
		if d.ID == id {
			found = d.Clone()
		}
		return found == nil
	})
	return found, found != nil
}

func (g *ring) newest(n int) []*Decision {
	var list []*Decision
	if n > 0 {
		g.walk(func(d *Decision) bool {
			list = append(list, d.Clone())
			return len(list) < n
		})
	}
	return list
}

// walk shows decisions, newest first, until see returns false. What it shows must not be kept.
func (g *ring) walk(see func(*Decision) bool) {
	next, size := g.next.Load(), uint64(len(g.slots))
	for i := uint64(1); i <= min(next, size); i++ {
		if !g.slots[(next-i)%size].show(see) {
			return
		}
	}
}

func (s *slot) show(see func(*Decision) bool) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.used || see(&s.d)
}

// Clone is a copy that shares nothing that is overwritten.
func (d *Decision) Clone() *Decision {
	c := *d
	c.Candidates, c.Others = slices.Clone(d.Candidates), slices.Clone(d.Others)
	return &c
}
