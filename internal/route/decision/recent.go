package decision

import (
	"sync"
	"sync/atomic"
)

// Recent keeps copies of the newest decisions. A new copy overwrites the oldest one in its memory, so that keeping reasons makes no
// garbage and a caller may use its Decision again. Each slot has a lock. Two goroutines meet at one only if a writer is a whole round
// ahead, or if a reader looks.
type Recent struct {
	slots []slot
	next  atomic.Uint64
}

// NewRecent returns a ring for n decisions, at least one.
func NewRecent(n int) *Recent { return &Recent{slots: make([]slot, n)} }

// slot holds one decision. Its Candidates and Others keep their memory from one decision to the next.
type slot struct {
	mu   sync.Mutex
	used bool
	d    Decision
}

// Add copies a decision over the oldest one.
func (g *Recent) Add(d *Decision) {
	s := &g.slots[(g.next.Add(1)-1)%uint64(len(g.slots))]
	s.mu.Lock()
	defer s.mu.Unlock()
	candidates := append(s.d.Candidates[:0], d.Candidates...)
	others := append(s.d.Others[:0], d.Others...)
	s.used = true
	s.d = *d
	s.d.Candidates, s.d.Others = candidates, others
}

// Find walks the ring from the newest decision back. Only people look for decisions, so a walk over a
// few thousand slots is cheaper than a map that every decision would have to update.
func (g *Recent) Find(id string) (found *Decision, ok bool) {
	g.walk(func(d *Decision) bool {
		if d.ID == id {
			found = d.Clone()
		}
		return found == nil
	})
	return found, found != nil
}

// Newest returns copies of up to n decisions, newest first.
func (g *Recent) Newest(n int) []*Decision {
	var list []*Decision
	if n > 0 {
		g.walk(func(d *Decision) bool {
			list = append(list, d.Clone())
			return len(list) < n
		})
	}
	return list
}

// walk calls visit with the decisions, newest first, until visit returns false. visit must not keep them.
func (g *Recent) walk(visit func(*Decision) bool) {
	next, size := g.next.Load(), uint64(len(g.slots))
	for i := uint64(1); i <= min(next, size); i++ {
		if !g.slots[(next-i)%size].visit(visit) {
			return
		}
	}
}

// visit calls visit with the slot's decision, if it has one, while the slot is locked.
func (s *slot) visit(visit func(*Decision) bool) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.used || visit(&s.d)
}
