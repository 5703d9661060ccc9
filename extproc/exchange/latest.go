package exchange

import (
	"maps"
	"slices"
	"sync"
)

// maxPlans bounds the decisions that are kept for the relay, and the bookings of its requests. Of more at a time the oldest are forgotten:
// requests are decided once more, and answers are not counted.
const maxPlans = 1 << 14

// latest keeps the last maxPlans values, by their ids. It is safe for concurrent use.
type latest[V any] struct {
	mu   sync.Mutex
	byID map[string]V // guarded by mu
	ids  []string     // guarded by mu; a ring, in the order of add
	next int          // guarded by mu
}

// add keeps a value. It returns the value that lost its place to it; the zero value for none.
func (l *latest[V]) add(id string, v V) (old V) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID == nil {
		l.byID = map[string]V{}
		l.ids = make([]string, maxPlans)
	}
	old = l.byID[l.ids[l.next]]
	delete(l.byID, l.ids[l.next])
	l.ids[l.next] = id
	l.next = (l.next + 1) % maxPlans
	l.byID[id] = v
	return old
}

// take returns a value once. It is the zero value if there is none.
func (l *latest[V]) take(id string) (v V, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok = l.byID[id]
	delete(l.byID, id)
	return v, ok
}

// takeAll returns all values.
func (l *latest[V]) takeAll() []V {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Collect(maps.Values(l.byID))
	clear(l.byID)
	return all
}
