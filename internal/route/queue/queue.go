package queue

import (
	"time"
)

// Request is one that has to wait.
type Request struct {
	// Class names its class, and Tenant who is served alike in a fair one.
	Class, Tenant string
	// Lane names the set of ranks that may take it: requests of one lane can go to the same ranks.
	Lane string
	// Strict is its strict priority, 0 to MaxStrict: the higher one goes first, whatever the order.
	Strict int
	// HeadStart is the head start that its priority gives, 0 to MaxHeadStart.
	HeadStart time.Duration
	// Tokens is its prompt's length and Cached what of it was cached when it came.
	Tokens, Cached int
	// Work is how long its prefill is expected to take: see Ahead.
	Work time.Duration
	// At is when it came, and Until when its wait ends: see PopExpired.
	At, Until time.Time
	// Value is the caller's.
	Value any
}

// cost is what a request's turn takes, in tokens to compute.
func (r *Request) cost() int64 { return int64(max(1, r.Tokens-r.Cached)) }

// Item is a place in the queue.
type Item struct {
	Request
	seq   uint64
	key   float64 // by the class's order; the lower goes first
	class *class
	entry *entry
	index int // in its entry's heap
	due   int // in the queue's heap by Until
}

func (it *Item) place() *int { return &it.index }

// Waiting says whether the item is in the queue.
func (it *Item) Waiting() bool { return it.entry != nil }

// ClassName is the class where it stands, or stood last.
func (it *Item) ClassName() string { return it.class.Name }

// amount is what waits in a class or in all.
type amount struct{ requests, tokens, cached int }

func (a *amount) add(r *Request, sign int) {
	a.requests += sign
	a.tokens += sign * r.Tokens
	a.cached += sign * r.Cached
}

// Queue is who waits. Create it with [New].
type Queue struct {
	cfg     Config
	classes []*class
	byName  map[string]*class
	gates   map[string]*gate
	due     heapOf[*dueItem]
	all     amount
	seq     uint64
	zero    time.Time // arrivals are counted from here
	round   uint64    // of Next, so that a gate is asked once in each

	// cursor is the class whose turn it is; granted says that it has been given its quantum.
	cursor  int
	granted bool
}

// New returns an empty queue. The configuration must be valid.
func New(cfg Config) *Queue {
	q := &Queue{}
	q.Configure(cfg)
	return q
}

// Configure replaces the configuration at once. Everyone keeps their place: who stands in a
// class that there is no more goes to the first one, and nobody is sent away, even where more wait
// than now may.
func (q *Queue) Configure(cfg Config) {
	old := q.due.list
	q.cfg = cfg.withDefaults()
	q.classes, q.byName, q.gates, q.all = nil, map[string]*class{}, map[string]*gate{}, amount{}
	q.cursor, q.granted, q.due = 0, false, heapOf[*dueItem]{}
	for i := range q.cfg.Classes {
		c := newClass(&q.cfg.Classes[i])
		q.classes = append(q.classes, c)
		q.byName[c.Name] = c
	}
	for _, waiting := range old {
		it := (*Item)(waiting)
		it.class = q.class(it.Class)
		q.insert(it)
	}
}

func (q *Queue) class(name string) *class {
	if c := q.byName[name]; c != nil {
		return c
	}
	return q.classes[0]
}

// Push adds a request, or returns the limit that is reached.
func (q *Queue) Push(r Request) (*Item, *Full) {
	c := q.class(r.Class)
	if full := q.cfg.Limit.reached("", &q.all); full != nil {
		return nil, full
	}
	if full := c.Limit.reached(c.Name, &c.sum); full != nil {
		return nil, full
	}
	if q.gates[r.Lane] == nil && len(q.gates) >= MaxLanes {
		return nil, &Full{What: "different sets of workers", Limit: MaxLanes}
	}
	if q.zero.IsZero() {
		q.zero = r.At
	}
	q.seq++
	it := &Item{Request: r, seq: q.seq, class: c}
	q.insert(it)
	return it, nil
}

func (q *Queue) insert(it *Item) {
	c := it.class
	it.key = q.key(c, &it.Request)
	c.insert(it, q.gate(it.Lane))
	c.sum.add(&it.Request, 1)
	q.all.add(&it.Request, 1)
	q.due.push((*dueItem)(it))
}

// key is where a request stands by its class's order.
func (q *Queue) key(c *class, r *Request) float64 {
	jump := min(max(0, r.HeadStart), MaxHeadStart)
	if c.Order == WSPT {
		return -(1 + jump.Seconds()) / float64(r.cost())
	}
	return float64(r.At.Sub(q.zero) - jump)
}

// Remove takes an item out, wherever it stands; false means that it was not waiting any more.
func (q *Queue) Remove(it *Item) bool {
	if !it.Waiting() {
		return false
	}
	c := it.class
	c.remove(it)
	c.sum.add(&it.Request, -1)
	q.all.add(&it.Request, -1)
	q.due.remove((*dueItem)(it))
	if g := q.gates[it.Lane]; g.lanes == 0 {
		delete(q.gates, it.Lane)
	}
	return true
}

// Take removes an item that Next has returned, because it goes, and charges its class and its tenant.
func (q *Queue) Take(it *Item) {
	if !it.Waiting() {
		return
	}
	it.class.charge(it)
	q.Remove(it)
}

// Len is how many wait.
func (q *Queue) Len() int { return q.all.requests }

// PopExpired removes and returns one item whose wait ended before or at now; nil for none.
func (q *Queue) PopExpired(now time.Time) *Item {
	if len(q.due.list) == 0 || q.due.list[0].Until.After(now) {
		return nil
	}
	it := (*Item)(q.due.list[0])
	q.Remove(it)
	return it
}

// ClassStats is what waits in one class now.
type ClassStats struct {
	Name                           string
	Requests, Tokens, CachedTokens int
}

// Stats returns what waits, by class, in the configuration's order.
func (q *Queue) Stats() []ClassStats {
	list := make([]ClassStats, len(q.classes))
	for i, c := range q.classes {
		list[i] = ClassStats{Name: c.Name, Requests: c.sum.requests, Tokens: c.sum.tokens, CachedTokens: c.sum.cached}
	}
	return list
}

// dueItem is an item by the end of its wait.
type dueItem Item

func (it *dueItem) before(b *dueItem) bool { return it.Until.Before(b.Until) }
func (it *dueItem) place() *int            { return &it.due }
