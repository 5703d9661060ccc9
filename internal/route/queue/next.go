package queue

import "time"

// Next returns the request whose turn it is among those that can go, and leaves it in the
// queue: Take it when it goes. It returns nil where nobody can go. can is asked once for each
// lane, by one of its requests, whether a rank is free for it.
//
// Asked again before the item is taken, Next returns the same one, unless one that goes before it
// has come, or lanes have closed.
func (q *Queue) Next(can func(*Item) bool) *Item {
	q.round++
	waiting := 0
	for _, c := range q.classes {
		if c.next = c.head(q.round, can); c.next != nil {
			waiting++
		}
	}
	if waiting == 0 {
		return nil
	}
	for {
		for range len(q.classes) + 1 {
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

// skipRounds gives every class that can go the quanta of all rounds but the last that pass until
// one of them can pay: a prompt of a million tokens is not a thousand turns of the ring.
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

// head returns the entry whose head goes first among the lanes that can go.
func (c *class) head(round uint64, can func(*Item) bool) *entry {
	var best *entry
	for _, l := range c.order {
		if l.gate.round != round {
			l.gate.round, l.gate.open = round, can(l.entries.list[0].first())
		}
		if e := l.entries.list[0]; l.gate.open && (best == nil || e.before(best)) {
			best = e
		}
	}
	return best
}

// Ahead is how much work is expected to be done before a request that would come now: of its
// class all that goes before it, and of the others what their quanta take meanwhile. In a fair
// class it counts with its tenant's requests, and as many of each other tenant.
//
// It walks the class, so it is for requests that must know: those with a deadline.
func (q *Queue) Ahead(r Request) time.Duration {
	c := q.class(r.Class)
	if q.zero.IsZero() {
		return 0
	}
	me := &Item{Request: r, seq: q.seq + 1, key: q.key(c, &r)}
	var before, mine, everyone time.Duration
	for _, l := range c.order {
		for _, e := range l.entries.list {
			for _, it := range e.items.list {
				if it.before(me) {
					before += it.Work
					if e.tenant.name == r.Tenant {
						mine += it.Work
					}
				}
			}
		}
	}
	if c.Fair {
		before = min(before, mine*time.Duration(max(1, len(c.tenants))))
	}
	quanta := 0
	for _, other := range q.classes {
		if other == c || other.sum.requests > 0 {
			quanta += other.Quantum
		}
		for _, l := range other.order {
			for _, e := range l.entries.list {
				for _, it := range e.items.list {
					if other != c || it.before(me) {
						everyone += it.Work
					}
				}
			}
		}
	}
	return min(everyone, time.Duration(float64(before)*float64(quanta)/float64(c.Quantum)))
}
