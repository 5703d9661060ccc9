package queue

import (
	"time"
)

// Request is a request that has to wait.
type Request struct {
	// Class names its class. Tenant names its tenant: a fair class serves its tenants alike.
	Class, Tenant string
	// Lane names the set of ranks that may take it. Requests of one lane may go to the same ranks. Restricted
	// means that a client has chosen the set: MaxLanes bounds such lanes, and no others.
	Lane       string
	Restricted bool
	// Strict is its strict priority, 0 to MaxStrict. A higher one goes first in its class, whatever the order.
	Strict int
	// HeadStart is the head start that its priority gives, 0 to MaxHeadStart.
	HeadStart time.Duration
	// Tokens is its prompt's length, and Cached how many of them were cached when it came.
	Tokens, Cached int
	// Work is the expected duration of its prefill: see Ahead.
	Work time.Duration
	// At is when it came, and Until when its wait ends: see PopExpired.
	At, Until time.Time
	// Hold makes it wait behind others, for a while.
	Hold Hold
	// Value belongs to the caller; the queue does not read it.
	Value any
}

// Hold is the state of a request that is held back: it has a lane apart from other requests, so they do not wait for it.
type Hold struct {
	// Until is when the request becomes like others; zero means that it is not held back.
	Until time.Time
	// Work is the order of held back requests of one class, strict priority and tenant: the least goes first.
	Work float64
}

// IsHeld reports whether the request is held back.
func (r *Request) IsHeld() bool { return !r.Hold.Until.IsZero() }

// lane returns the name of the request's lane.
func (r *Request) lane() string {
	if r.IsHeld() {
		return r.Lane + "\nheld"
	}
	return r.Lane
}

// next returns the next time at which the queue itself changes the request's state.
func (r *Request) next() time.Time {
	if r.IsHeld() && r.Hold.Until.Before(r.Until) {
		return r.Hold.Until
	}
	return r.Until
}

// cost is the price of a request's turn for its class and tenant, in tokens to compute. It is at least 1,
// so that cached prompts are not free.
func (r *Request) cost() int64 { return int64(max(1, r.Tokens-r.Cached)) }

// Item is a place in the queue.
type Item struct {
	Request
	seq   uint64
	key   float64 // by the class's order; the lower goes first
	class *class
	entry *entry
	index int // in its entry's heap
	due   int // in the queue's heap by next
}

func (it *Item) place() *int { return &it.index }

// Waiting reports whether the item is in the queue.
func (it *Item) Waiting() bool { return it.entry != nil }

// ClassName is the class in which it waits, or waited last.
func (it *Item) ClassName() string { return it.class.Name }

// amount counts the waiting requests of a class or of the whole queue.
type amount struct{ requests, tokens, cached int }

func (a *amount) addRequest(r *Request, sign int) {
	a.requests += sign
	a.tokens += sign * r.Tokens
	a.cached += sign * r.Cached
}

// Queue is the waiting requests of one pool. Create it with [New].
//
// An item is in the queue from Push until it leaves it once, by one of these:
//
//	Take        it goes: its class and its tenant are charged
//	Remove      its client has gone
//	PopExpired  its time is up
type Queue struct {
	cfg     Config
	classes []*class
	byName  map[string]*class
	gates   map[string]*gate // by lane
	chosen  int              // gates of restricted lanes
	due     heapOf[*dueItem] // all items, by Until
	all     amount
	seq     uint64    // of the item that came last
	zero    time.Time // the first arrival; keys are relative to it
	round   uint64    // counts calls of Next, so that each gate is checked once in a call

	// cursor is the class whose turn it is. granted is true once it has got the quantum of this turn.
	cursor  int
	granted bool
}

// New returns an empty queue. The configuration must be valid.
func New(cfg Config) *Queue {
	q := &Queue{}
	q.Configure(cfg)
	return q
}

// Configure replaces the configuration at once. Every request keeps its place. Requests of a class that no
// longer exists move to the first one. None is refused, even if more wait than the new limits allow.
func (q *Queue) Configure(cfg Config) {
	waiting := q.due.list
	*q = Queue{
		cfg: cfg.withDefaults(), byName: map[string]*class{}, gates: map[string]*gate{},
		seq: q.seq, zero: q.zero, round: q.round,
	}
	for i := range q.cfg.Classes {
		c := newClass(&q.cfg.Classes[i])
		q.classes = append(q.classes, c)
		q.byName[c.Name] = c
	}

	for _, due := range waiting {
		it := (*Item)(due)
		it.class = q.class(it.Class)
		q.insert(it)
	}
}

// class returns the class of that name, or the first one.
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
	if r.Restricted && q.chosen >= MaxLanes && q.gates[r.lane()] == nil {
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
	c.insert(it, q.gate(&it.Request))
	c.sum.addRequest(&it.Request, 1)
	q.all.addRequest(&it.Request, 1)
	q.due.push((*dueItem)(it))
}

// heldKey is more than any key of a request that is not held back: these go first.
const heldKey = 1e12

// key is the position of a request by its class's order; the lower one goes first.
func (q *Queue) key(c *class, r *Request) float64 {
	headStart := min(max(0, r.HeadStart), MaxHeadStart)
	if r.IsHeld() {
		return heldKey + r.Hold.Work
	}
	switch c.Order {
	case WSPT:
		return -(1 + headStart.Seconds()) / float64(r.cost())
	case LCFS:
		return -float64(r.At.Sub(q.zero) + headStart)
	default:
		return float64(r.At.Sub(q.zero) - headStart)
	}
}

// Remove takes an item out of the queue. False means that it was not in the queue any more.
func (q *Queue) Remove(it *Item) bool {
	if !it.Waiting() {
		return false
	}
	c := it.class
	c.remove(it)
	c.sum.addRequest(&it.Request, -1)
	q.all.addRequest(&it.Request, -1)
	q.due.remove((*dueItem)(it))
	if g := q.gates[it.lane()]; g.lanes == 0 {
		delete(q.gates, it.lane())
		if g.restricted {
			q.chosen--
		}
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

// Len is the number of requests that wait.
func (q *Queue) Len() int { return q.all.requests }

// PopExpired removes and returns one item whose wait ended before or at now; nil for none. Requests that were held back until now become
// like others.
func (q *Queue) PopExpired(now time.Time) *Item {
	q.endHolds(now)
	if len(q.due.list) == 0 || q.due.list[0].Until.After(now) {
		return nil
	}
	it := (*Item)(q.due.list[0])
	q.Remove(it)
	return it
}

// endHolds moves the requests whose hold has ended to the lanes of others. They keep their times, so they go before others that came later.
func (q *Queue) endHolds(now time.Time) {
	for len(q.due.list) > 0 {
		it := (*Item)(q.due.list[0])
		if !it.IsHeld() || it.next().After(now) {
			return
		}
		q.Remove(it)
		it.Hold = Hold{}
		q.insert(it)
	}
}

// ClassStats counts the waiting requests of one class.
type ClassStats struct {
	Name                           string
	Requests, Tokens, CachedTokens int
}

// Stats returns the counts of all classes, in the configuration's order.
func (q *Queue) Stats() []ClassStats {
	list := make([]ClassStats, len(q.classes))
	for i, c := range q.classes {
		list[i] = ClassStats{Name: c.Name, Requests: c.sum.requests, Tokens: c.sum.tokens, CachedTokens: c.sum.cached}
	}
	return list
}

// dueItem is an item in the heap by Until. The type is apart because an item is in two heaps.
type dueItem Item

func (it *dueItem) before(b *dueItem) bool { return it.next().Before(b.next()) }
func (it *dueItem) place() *int            { return &it.due }
