package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// twin is the queue as one would write it down: a list that is searched.
type twin struct {
	classes []*twinClass
	items   []*twinItem
	cursor  int
	granted bool
}

type twinClass struct {
	Class
	deficit, clock int64
	served         map[string]int64
}

type twinItem struct {
	Request
	id    int
	class *twinClass
}

func (w *twin) push(id int, r Request) {
	it := &twinItem{Request: r, id: id, class: w.classes[0]}
	for _, c := range w.classes {
		if c.Name == r.Class {
			it.class = c
		}
	}
	c := it.class
	waiting := slices.ContainsFunc(w.items, func(o *twinItem) bool { return o.class == c && w.tenant(o) == w.tenant(it) })
	if !waiting {
		c.served[w.tenant(it)] = max(c.served[w.tenant(it)], c.clock)
	}
	w.items = append(w.items, it)
}

func (w *twin) tenant(it *twinItem) string {
	if it.class.Fair {
		return it.Tenant
	}
	return ""
}

func (w *twin) remove(id int) {
	at := slices.IndexFunc(w.items, func(it *twinItem) bool { return it.id == id })
	if at < 0 {
		return
	}
	c := w.items[at].class
	w.items = slices.Delete(w.items, at, at+1)
	if !slices.ContainsFunc(w.items, func(o *twinItem) bool { return o.class == c }) {
		c.deficit, c.clock, c.served = 0, 0, map[string]int64{}
	}
}

func (w *twin) before(a, b *twinItem) bool {
	if a.Strict != b.Strict {
		return a.Strict > b.Strict
	}
	if x, y := a.class.served[w.tenant(a)], b.class.served[w.tenant(b)]; x != y {
		return x < y
	}
	if a.class.Order == LCFS {
		if x, y := a.At.Add(a.HeadStart), b.At.Add(b.HeadStart); !x.Equal(y) {
			return x.After(y)
		}
		return a.id > b.id
	}
	if a.class.Order == WSPT {
		x, y := (1+a.HeadStart.Seconds())/float64(a.cost()), (1+b.HeadStart.Seconds())/float64(b.cost())
		if x != y {
			return x > y
		}
	} else if x, y := a.At.Add(-a.HeadStart), b.At.Add(-b.HeadStart); !x.Equal(y) {
		return x.Before(y)
	}
	return a.id < b.id
}

func (w *twin) next(can func(lane string) bool) *twinItem {
	heads := map[*twinClass]*twinItem{}
	for _, it := range w.items {
		if can(it.Lane) && (heads[it.class] == nil || w.before(it, heads[it.class])) {
			heads[it.class] = it
		}
	}
	if len(heads) == 0 {
		return nil
	}
	for {
		c := w.classes[w.cursor]
		if head := heads[c]; head != nil {
			if !w.granted {
				c.deficit += int64(c.Quantum)
				w.granted = true
			}
			if c.deficit >= head.cost() {
				return head
			}
		}
		w.cursor, w.granted = (w.cursor+1)%len(w.classes), false
	}
}

func (w *twin) take(it *twinItem) {
	c := it.class
	c.deficit -= it.cost()
	c.clock = max(c.clock, c.served[w.tenant(it)])
	c.served[w.tenant(it)] += it.cost()
	w.remove(it.id)
}

// TestTwin: whatever comes, leaves, goes and is blocked, the queue answers as the search does, and
// in the end nothing is left of anyone.
func TestTwin(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		cfg := Config{Limit: Limit{Requests: 1 << 20}}
		for i := range 1 + rng.IntN(3) {
			cfg.Classes = append(cfg.Classes, Class{
				Name: fmt.Sprint("c", i), Quantum: 1 + rng.IntN(600), Order: Order(rng.IntN(2)), Fair: rng.IntN(2) == 0,
			})
		}
		q, w := New(cfg), &twin{}
		for _, c := range q.cfg.Classes {
			w.classes = append(w.classes, &twinClass{Class: c, served: map[string]int64{}})
		}
		items, ids := map[int]*Item{}, []int{}
		for id := range 400 {
			switch roll := rng.IntN(10); {
			case roll < 5:
				r := Request{
					Class: fmt.Sprint("c", rng.IntN(4)), Tenant: fmt.Sprint("t", rng.IntN(3)), Lane: fmt.Sprint("l", rng.IntN(4)),
					Strict: rng.IntN(8) / 6, HeadStart: time.Duration(rng.IntN(3)) * time.Second, Tokens: rng.IntN(5000), Cached: rng.IntN(1000),
					At: t0.Add(time.Duration(id/3) * time.Second), Value: id,
				}
				it, full := q.Push(r)
				if full != nil {
					t.Fatal(full)
				}
				items[id], ids = it, append(ids, id)
				w.push(id, r)
			case roll < 6 && len(ids) > 0:
				at := rng.IntN(len(ids))
				q.Remove(items[ids[at]])
				w.remove(ids[at])
				ids = slices.Delete(ids, at, at+1)
			default:
				open := rng.IntN(16)
				can := func(lane string) bool { return open>>(lane[1]-'0')&1 == 1 }
				got, want := q.Next(func(it *Item) bool { return can(it.Lane) }), w.next(can)
				if got == nil != (want == nil) || got != nil && got.Value != want.id {
					t.Fatalf("seed %d, step %d: %+v, want %+v", seed, id, got, want)
				}
				if got != nil && rng.IntN(4) > 0 {
					q.Take(got)
					w.take(want)
					ids = slices.DeleteFunc(ids, func(n int) bool { return n == want.id })
				}
			}
			if q.Len() != len(ids) {
				t.Fatalf("seed %d: %d wait, want %d", seed, q.Len(), len(ids))
			}
		}
		for _, id := range ids {
			q.Remove(items[id])
		}
		empty(t, q)
	}
}

// empty demands that nothing is left of those who were there.
func empty(t *testing.T, q *Queue) {
	t.Helper()
	if q.Len() != 0 || q.all != (amount{}) || len(q.gates) != 0 || len(q.due.list) != 0 {
		t.Errorf("%d wait, %+v, %d gates, %d due", q.Len(), q.all, len(q.gates), len(q.due.list))
	}
	for _, c := range q.classes {
		if len(c.lanes) != 0 || len(c.order) != 0 || len(c.tenants) != 0 || c.sum != (amount{}) || c.deficit != 0 {
			t.Errorf("class %s: %d lanes, %d tenants, %+v, deficit %d", c.Name, len(c.lanes), len(c.tenants), c.sum, c.deficit)
		}
	}
}
