package queue

import "time"

// Next returns the request whose turn it is among the requests that can go, or nil if none can. The
// request stays in the queue: call Take when it goes. canGo is called once for each lane, with one
// of its requests, and reports whether a rank is free for it.
//
// A second call before Take returns the same item, unless an item that goes before it has come, or its
// lane has closed.
//
// The classes take turns by deficit round robin. At its turn a class is granted its quantum once, and
// keeps its turn as long as its deficit pays for its next request.
func (q *Queue) Next(canGo func(*Item) bool) *Item {
	q.round++
	canAny := false
	for _, c := range q.classes {
		c.next = c.head(q.round, canGo)
		canAny = canAny || c.next != nil
	}
	if !canAny {
		return nil
	}

	for {
		for range len(q.classes) + 1 { // the class at the cursor may have had its quantum before
			c := q.classes[q.cursor]
			if c.next != nil {
				if !q.granted {
					c.deficit += int64(c.Quantum)
					q.granted = true
				}
				if it := c.next.first(); c.deficit >= it.cost() {
					return it
				}
			}
			q.cursor, q.granted = (q.cursor+1)%len(q.classes), false
		}
		q.skipRounds()
	}
}

// skipRounds grants at once the quanta of all rounds in which no class can pay for its next request. A
// prompt of a million tokens would otherwise need two thousand rounds of the ring.
func (q *Queue) skipRounds() {
	rounds := int64(-1)
	for _, c := range q.classes {
		if c.next == nil {
			continue
		}
		quantum := int64(c.Quantum)
		n := (c.next.first().cost()-c.deficit+quantum-1)/quantum - 1
		if rounds < 0 || n < rounds {
			rounds = max(0, n)
		}
	}
	for _, c := range q.classes {
		if c.next != nil {
			c.deficit += rounds * int64(c.Quantum)
		}
	}
}

// head returns the entry that goes first among the lanes that can go. All requests of a lane may go to the
// same ranks, so its head decides for all of it.
func (c *class) head(round uint64, canGo func(*Item) bool) *entry {
	var best *entry
	for _, l := range c.order {
		if l.gate.round != round {
			l.gate.round, l.gate.open = round, canGo(l.entries.list[0].first())
		}
		if e := l.entries.list[0]; l.gate.open && (best == nil || e.before(best)) {
			best = e
		}
	}
	return best
}

// Ahead returns the work that is expected before a request that would come now: the work that goes
// before it in its class, and the work that the quanta of the other classes take meanwhile. In a fair class the
// tenant's own work counts, and as much for each other tenant.
//
// Of a long queue it looks at every n-th request, and multiplies: it runs while the queue is locked, and
// clients choose who has a deadline.
func (q *Queue) Ahead(r Request) time.Duration {
	if q.zero.IsZero() {
		return 0 // nothing has ever waited
	}
	c := q.class(r.Class)
	me := &Item{Request: r, seq: q.seq + 1, key: q.key(c, &r)}

	var inClass, ofTenant, inAll time.Duration
	every := (len(q.due.list) + mostSeen - 1) / mostSeen
	for i := 0; i < len(q.due.list); i += every {
		it := (*Item)(q.due.list[i])
		if it.class == c && !it.before(me) {
			continue
		}
		work := it.Work * time.Duration(every)
		inAll += work
		if it.class == c {
			inClass += work
			if it.Tenant == r.Tenant {
				ofTenant += work
			}
		}
	}

	quanta := 0
	for _, other := range q.classes {
		if other == c || other.sum.requests > 0 {
			quanta += other.Quantum
		}
	}
	if c.Fair {
		inClass = min(inClass, ofTenant*time.Duration(max(1, len(c.tenants))))
	}
	return min(inAll, time.Duration(float64(inClass)*float64(quanta)/float64(c.Quantum)))
}

// mostSeen is the number of requests that Ahead looks at.
const mostSeen = 2048
