package queue

// class is one class and all who wait in it. A lane has an entry for each of its tenants, and
// an entry has the tenant's requests: a class that is not fair has one tenant, without a name.
type class struct {
	Class
	sum     amount
	lanes   map[string]*lane
	order   []*lane // the same in the order of their making, so that a queue repeats itself
	tenants map[string]*tenant
	// clock is fair queueing's virtual time, in tokens: what the tenant served last had been
	// served before.
	clock   int64
	deficit int64
	next    *entry // the head that could go at this round of Queue.Next
}

// lane is all who may go to one set of ranks. Its heap has one entry per tenant.
type lane struct {
	name    string
	gate    *gate
	entries heapOf[*entry]
	number  int // in class.order
}

// gate says whether a lane can go, for the lanes of that name in all classes.
type gate struct {
	lanes int
	round uint64
	open  bool
}

// tenant is who is served alike with others. start is what it had been served before the request
// that is its next, in tokens.
type tenant struct {
	name    string
	start   int64
	entries []*entry // one in each lane where it waits
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

func (q *Queue) gate(name string) *gate {
	g := q.gates[name]
	if g == nil {
		g = &gate{}
		q.gates[name] = g
	}
	return g
}

func (c *class) insert(it *Item, g *gate) {
	l := c.lanes[it.Lane]
	if l == nil {
		l = &lane{name: it.Lane, gate: g, number: len(c.order)}
		c.lanes[it.Lane], c.order = l, append(c.order, l)
		g.lanes++
	}
	t := c.tenant(it)
	e := t.in(l)
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

// tenant finds the tenant of an item. One that comes anew begins where the clock is: who was away
// has saved nothing.
func (c *class) tenant(it *Item) *tenant {
	name := it.Tenant
	if !c.Fair {
		name = ""
	}
	t := c.tenants[name]
	if t == nil {
		c.sweep()
		t = &tenant{name: name}
		c.tenants[name] = t
	}
	if len(t.entries) == 0 {
		t.start = max(t.start, c.clock)
	}
	return t
}

// maxIdle is how many tenants are remembered that wait for nothing: those that have been served
// more than the clock says, and would be served too much if they were forgotten.
const maxIdle = 1024

func (c *class) sweep() {
	if len(c.tenants) < maxIdle {
		return
	}
	for name, t := range c.tenants {
		if len(t.entries) == 0 {
			delete(c.tenants, name)
		}
	}
}

// in returns the tenant's entry in a lane. There are few: sets of ranks that one tenant waits for.
func (t *tenant) in(l *lane) *entry {
	for _, e := range t.entries {
		if e.lane == l {
			return e
		}
	}
	return nil
}

// remove takes an item out and forgets what nobody needs any more.
func (c *class) remove(it *Item) {
	e := it.entry
	e.items.remove(it)
	it.entry = nil
	if len(e.items.list) > 0 {
		e.lane.entries.moved(e)
		return
	}
	e.lane.entries.remove(e)
	c.leave(e)
	if len(e.lane.entries.list) == 0 {
		c.close(e.lane)
	}
	if len(c.lanes) == 0 {
		c.deficit, c.clock = 0, 0
		clear(c.tenants)
	}
}

func (c *class) leave(e *entry) {
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

func (c *class) close(l *lane) {
	delete(c.lanes, l.name)
	l.gate.lanes--
	last := len(c.order) - 1
	c.order[l.number] = c.order[last]
	c.order[l.number].number = l.number
	c.order[last] = nil
	c.order = c.order[:last]
}

// charge makes the class and the tenant pay for an item that goes.
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

// first is the request that goes first.
func (e *entry) first() *Item { return e.items.list[0] }

// before says whether its first request goes before that of another.
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

// before says whether the item goes before another, tenants aside.
func (it *Item) before(b *Item) bool {
	if it.Strict != b.Strict {
		return it.Strict > b.Strict
	}
	if it.key != b.key {
		return it.key < b.key
	}
	return it.seq < b.seq
}
