package queue

// class is one class and the requests that wait in it.
//
// It has a lane for each set of ranks that requests wait for. A lane has an entry for each tenant that
// waits there, and an entry has the tenant's requests. A class that is not fair has one tenant, without a
// name. Invariant: no lane, entry or heap is empty, except within a method.
type class struct {
	Class
	sum     amount
	lanes   map[string]*lane
	order   []*lane // the lanes in a fixed order, so that equal queues give equal answers
	tenants map[string]*tenant
	// clock is the virtual time of start-time fair queueing, in tokens: the start of the tenant that was
	// served last, before it was served.
	clock int64
	// deficit is the number of tokens that the class may spend at its turn, by deficit round robin. It is
	// below 0 after a request that cost more than there was.
	deficit int64
	next    *entry // the head that can go in this round of Queue.Next; nil for none
}

// lane is the requests that may go to one set of ranks. Its heap has one entry for each tenant.
type lane struct {
	name    string
	gate    *gate
	entries heapOf[*entry]
	number  int // in class.order
}

// gate is whether a rank is free for the lanes of one name, in all classes.
type gate struct {
	lanes int    // how many classes have the lane; the gate goes with the last one
	round uint64 // of Queue.Next in which open was found out
	open  bool
	// restricted is true for a lane that counts for MaxLanes.
	restricted bool
}

// tenant is a client of a fair class. start is its virtual time: the tokens that it has been served, or
// the clock if that was larger when it came. The tenant with the smallest start is served next.
type tenant struct {
	name    string
	start   int64
	entries []*entry // one in each lane in which it waits
}

// entry is one tenant's requests in one lane.
type entry struct {
	lane   *lane
	tenant *tenant
	items  heapOf[*Item]
	index  int // in its lane's heap
}

func newClass(cfg *Class) *class {
	return &class{Class: *cfg, lanes: map[string]*lane{}, tenants: map[string]*tenant{}}
}

// gate returns the gate of a request's lane, and makes it if it is missing.
func (q *Queue) gate(r *Request) *gate {
	name := r.lane()
	g := q.gates[name]
	if g == nil {
		g = &gate{restricted: r.Restricted}
		q.gates[name] = g
		if r.Restricted {
			q.chosen++
		}
	}
	return g
}

// insert adds an item to its lane and tenant.
func (c *class) insert(it *Item, g *gate) {
	name := it.lane()
	l := c.lanes[name]
	if l == nil {
		l = &lane{name: name, gate: g, number: len(c.order)}
		c.lanes[name] = l
		c.order = append(c.order, l)
		g.lanes++
	}

	t := c.tenant(it)
	e := t.entryIn(l)
	if e == nil {
		e = &entry{lane: l, tenant: t}
		t.entries = append(t.entries, e)
		it.entry = e
		e.items.push(it)
		l.entries.push(e)
		return
	}
	it.entry = e
	e.items.push(it)
	l.entries.moved(e)
}

// tenant returns the tenant of an item. A tenant for which nothing waits begins at the clock, so that it
// has saved up no service while it was away.
func (c *class) tenant(it *Item) *tenant {
	name := it.Tenant
	if !c.Fair {
		name = ""
	}
	t := c.tenants[name]
	if t == nil {
		c.forgetIdle()
		t = &tenant{name: name}
		c.tenants[name] = t
	}
	if len(t.entries) == 0 {
		t.start = max(t.start, c.clock)
	}
	return t
}

// maxIdle bounds the tenants that are kept although nothing of them waits. They have been served beyond the
// clock, and would be served too much if they were forgotten and came again.
const maxIdle = 1024

// forgetIdle drops the idle tenants if there are too many.
func (c *class) forgetIdle() {
	if len(c.tenants) < maxIdle {
		return
	}
	for name, t := range c.tenants {
		if len(t.entries) == 0 {
			delete(c.tenants, name)
		}
	}
}

// entryIn returns the tenant's entry in a lane, or nil. A tenant waits for few sets of ranks.
func (t *tenant) entryIn(l *lane) *entry {
	for _, e := range t.entries {
		if e.lane == l {
			return e
		}
	}
	return nil
}

// remove takes an item out, and drops the entry, lane and tenant that are empty then.
func (c *class) remove(it *Item) {
	e := it.entry
	e.items.remove(it)
	it.entry = nil
	if len(e.items.list) > 0 {
		e.lane.entries.moved(e)
		return
	}
	e.lane.entries.remove(e)
	c.dropEntry(e)
	if len(e.lane.entries.list) == 0 {
		c.dropLane(e.lane)
	}
	if len(c.lanes) == 0 { // an empty class saves up nothing
		c.deficit, c.clock = 0, 0
		clear(c.tenants)
	}
}

// dropEntry takes an empty entry off its tenant. A tenant that has none left is dropped, unless it has been
// served beyond the clock.
func (c *class) dropEntry(e *entry) {
	t := e.tenant
	for i := range t.entries {
		if t.entries[i] == e {
			last := len(t.entries) - 1
			t.entries[i], t.entries[last] = t.entries[last], nil
			t.entries = t.entries[:last]
			break
		}
	}
	if len(t.entries) == 0 && t.start <= c.clock {
		delete(c.tenants, t.name)
	}
}

// dropLane drops an empty lane. The last lane takes its place in order.
func (c *class) dropLane(l *lane) {
	delete(c.lanes, l.name)
	l.gate.lanes--
	last := len(c.order) - 1
	c.order[l.number] = c.order[last]
	c.order[l.number].number = l.number
	c.order[last] = nil
	c.order = c.order[:last]
}

// charge takes the cost of an item that goes off its class's deficit, and adds it to its tenant's start.
func (c *class) charge(it *Item) {
	cost := it.cost()
	c.deficit -= cost
	t := it.entry.tenant
	c.clock = max(c.clock, t.start)
	t.start += cost
	for _, e := range t.entries {
		e.lane.entries.moved(e)
	}
}

func (e *entry) place() *int { return &e.index }

// first is the entry's request that goes first.
func (e *entry) first() *Item { return e.items.list[0] }

// before reports whether the entry's first request goes before another entry's: by strict priority, then
// by the tenants' starts, then by the class's order.
func (e *entry) before(b *entry) bool {
	x, y := e.first(), b.first()
	if x.Strict != y.Strict {
		return x.Strict > y.Strict
	}
	if e.tenant.start != b.tenant.start {
		return e.tenant.start < b.tenant.start
	}
	return x.before(y)
}

// before reports whether the item goes before another of the same tenant: by strict priority, then by the
// class's order, then by arrival.
func (it *Item) before(b *Item) bool {
	if it.Strict != b.Strict {
		return it.Strict > b.Strict
	}
	if it.key != b.key {
		return it.key < b.key
	}
	if it.class.Order == LCFS {
		return it.seq > b.seq
	}
	return it.seq < b.seq
}
