package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func always(*Item) bool { return true }

func push(t testing.TB, q *Queue, r Request) *Item {
	t.Helper()
	if r.At.IsZero() {
		r.At = t0
	}
	it, full := q.Push(r)
	if full != nil {
		t.Fatal(full)
	}
	return it
}

// TestDeficitRoundRobin is Dynamo's own acceptance test: of the first 320 that complete while both
// classes have more to do, quanta of 512 and 128 give 4 : 1, and equal ones 1 : 1. Whatever prompts
// weigh, even where one costs many turns.
func TestDeficitRoundRobin(t *testing.T) {
	for _, c := range []struct{ premium, regular, tokens, spread int }{
		{512, 128, 16, 0}, {512, 128, 64, 0}, {512, 128, 128, 0}, {512, 128, 700, 0}, {512, 128, 10_000, 0}, {512, 128, 40, 80},
		{512, 512, 64, 0}, {512, 512, 700, 0},
	} {
		q := New(Config{Classes: []Class{{Name: "premium", Quantum: c.premium}, {Name: "regular", Quantum: c.regular}}})
		rng := rand.New(rand.NewPCG(1, 1))
		for range 320 {
			for _, class := range []string{"regular", "premium"} {
				push(t, q, Request{Class: class, Lane: "any", Tokens: c.tokens + rng.IntN(c.spread+1)})
			}
		}
		got := map[string]int{}
		for range 320 {
			it := q.Next(always)
			q.Take(it)
			got[it.Class]++
		}
		want := 320 * c.premium / (c.premium + c.regular)
		within := 320 * 2 / 100
		if d := got["premium"] - want; d < -within || d > within {
			t.Errorf("%+v: %v, want %d ± %d premium", c, got, want, within)
		}
	}
}

// TestShortestFirst is WSPT's textbook case: of all orders it has the least sum of weighted
// completion times, by trying them all.
func TestShortestFirst(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for range 50 {
		q := New(Config{Classes: []Class{{Order: WSPT}}})
		var jobs []Request
		for i := range 6 {
			jobs = append(jobs, Request{Tokens: 1 + rng.IntN(50), HeadStart: time.Duration(rng.IntN(4)) * time.Second, Value: i})
			push(t, q, jobs[i])
		}
		var order []int
		for it := q.Next(always); it != nil; it = q.Next(always) {
			order = append(order, it.Value.(int))
			q.Take(it)
		}
		best := weighted(jobs, order)
		permute([]int{0, 1, 2, 3, 4, 5}, 0, func(p []int) {
			if w := weighted(jobs, p); w < best-1e-9 {
				t.Fatalf("%v has %v, and %v has %v", order, best, p, w)
			}
		})
	}
}

func weighted(jobs []Request, order []int) (sum float64) {
	done := 0
	for _, i := range order {
		done += jobs[i].Tokens
		sum += (1 + jobs[i].HeadStart.Seconds()) * float64(done)
	}
	return sum
}

func permute(p []int, from int, do func([]int)) {
	if from == len(p) {
		do(p)
		return
	}
	for i := from; i < len(p); i++ {
		p[from], p[i] = p[i], p[from]
		permute(p, from+1, do)
		p[from], p[i] = p[i], p[from]
	}
}

// TestCancelledLeaveNothing: ten thousand wait in many lanes and classes, and leave in any order.
func TestCancelledLeaveNothing(t *testing.T) {
	q := New(Config{Classes: []Class{{Name: "a", Fair: true}, {Name: "b", Order: WSPT, Fair: true}, {Name: "c", Order: LCFS}}})
	rng := rand.New(rand.NewPCG(3, 3))
	var items []*Item
	for i := range 10_000 {
		items = append(items, push(t, q, Request{
			Class: string(rune('a' + rng.IntN(3))), Tenant: fmt.Sprint(rng.IntN(500)), Lane: fmt.Sprint(rng.IntN(64)), Strict: rng.IntN(3),
			Tokens: rng.IntN(10_000), Cached: rng.IntN(5_000), At: t0.Add(time.Duration(i)), Until: t0.Add(time.Duration(rng.IntN(1e9))),
		}))
	}
	rng.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
	for _, it := range items {
		if !q.Remove(it) || q.Remove(it) {
			t.Fatal("an item must leave exactly once")
		}
	}
	empty(t, q)
}

// TestLimits: the request that crosses a limit is taken and the next is not; a new limit counts
// for the next one, and a larger one lets it in.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		limit Limit
		taken int
	}{{Limit{Requests: 3}, 3}, {Limit{Tokens: 250}, 3}, {Limit{CachedTokens: 90}, 3}, {Limit{}, 10}} {
		q := New(Config{Classes: []Class{{Name: "a", Limit: c.limit}, {Name: "b"}}})
		n := 0
		for range 10 {
			if _, full := q.Push(Request{Class: "a", Tokens: 100, Cached: 40}); full == nil {
				n++
			} else if full.Class != "a" || full.Error() == "" {
				t.Error(full)
			}
		}
		if n != c.taken {
			t.Errorf("%+v: %d taken, want %d", c.limit, n, c.taken)
		}
		if _, full := q.Push(Request{Class: "b", Tokens: 100}); full != nil {
			t.Errorf("another class is full too: %v", full)
		}
		q.Configure(Config{Limit: Limit{Requests: 1}})
		if _, full := q.Push(Request{Tokens: 1}); full == nil || full.Class != "" || q.Len() != n+1 {
			t.Errorf("%v, %d wait, want %d", full, q.Len(), n+1)
		}
		q.Configure(Config{Limit: Limit{Requests: 100}})
		if _, full := q.Push(Request{Tokens: 1}); full != nil {
			t.Error(full)
		}
	}
}

// TestLanesAreBounded fills the restricted lanes: requests for these lanes and for others that no client has
// chosen can still wait, also after a reload, and a lane that gets empty makes room for another.
func TestLanesAreBounded(t *testing.T) {
	q := New(Config{})
	var items []*Item
	for i := range MaxLanes {
		items = append(items, push(t, q, Request{Lane: fmt.Sprint(i), Restricted: true}))
	}
	for range 2 {
		if _, full := q.Push(Request{Lane: "one more", Restricted: true}); full == nil {
			t.Error("there is no bound")
		}
		push(t, q, Request{Lane: "7", Restricted: true})
		push(t, q, Request{})
		push(t, q, Request{Lane: "decode"})
		q.Configure(Config{})
	}

	q.Remove(items[0])
	push(t, q, Request{Lane: "one more", Restricted: true})
	if _, full := q.Push(Request{Lane: "two more", Restricted: true}); full == nil {
		t.Error("there is no bound after a lane has gone")
	}
}

// TestConfigureKeepsPlaces: who waits stays in order when classes are added and taken away.
func TestConfigureKeepsPlaces(t *testing.T) {
	q := New(Config{Classes: []Class{{Name: "a"}, {Name: "b"}}})
	for i := range 20 {
		push(t, q, Request{Class: []string{"a", "b"}[i%2], Tokens: 512, Value: i, At: t0.Add(time.Duration(i) * time.Second)})
	}
	q.Configure(Config{Classes: []Class{{Name: "all"}}})
	for i := range 20 {
		it := q.Next(always)
		if it.Value != i {
			t.Fatalf("%v goes at turn %d", it.Value, i)
		}
		q.Take(it)
	}
	empty(t, q)
}

// TestExpired: waits end in the order of their ends.
func TestExpired(t *testing.T) {
	q := New(Config{})
	for i := range 100 {
		push(t, q, Request{Lane: fmt.Sprint(i % 5), Value: i * 37 % 100, Until: t0.Add(time.Duration(i*37%100) * time.Second)})
	}
	var got []int
	for it := q.PopExpired(t0.Add(49 * time.Second)); it != nil; it = q.PopExpired(t0.Add(49 * time.Second)) {
		got = append(got, it.Value.(int))
	}
	if len(got) != 50 || !slices.IsSorted(got) || q.Len() != 50 {
		t.Errorf("%v, %d wait", got, q.Len())
	}
}

func TestValidate(t *testing.T) {
	bad := Config{Limit: Limit{Tokens: -1}, Classes: []Class{{Name: "a", Quantum: -1}, {Name: "a"}}}
	if bad.Validate() == nil || (Config{}).Validate() != nil {
		t.Error(bad.Validate())
	}
	if _, err := ParseOrder("sjf"); err == nil {
		t.Error("sjf is an order")
	}
}

// BenchmarkNext: what does it cost to let one of many go, and take in another?
//
//	go test -run - -bench Next ./internal/route/queue
func BenchmarkNext(b *testing.B) {
	for _, waiting := range []int{100, 10_000} {
		for _, lanes := range []int{1, 64} {
			b.Run(fmt.Sprintf("waiting=%d/lanes=%d", waiting, lanes), func(b *testing.B) {
				names := make([]string, lanes)
				for i := range names {
					names[i] = fmt.Sprint(i)
				}
				q := New(Config{Classes: []Class{{Name: "a", Fair: true}, {Name: "b", Order: WSPT}}})
				r := func(i int) Request {
					return Request{Class: []string{"a", "b"}[i%2], Tenant: []string{"x", "y", "z"}[i%3], Lane: names[i%lanes], Tokens: i % 997, At: t0.Add(time.Duration(i))}
				}
				for i := range waiting {
					push(b, q, r(i))
				}
				b.ReportAllocs()
				for i := waiting; b.Loop(); i++ {
					q.Take(q.Next(always))
					push(b, q, r(i))
				}
			})
		}
	}
}

// TestAheadOfALongQueueIsNearlyRight estimates the work ahead from a part of a long queue.
func TestAheadOfALongQueueIsNearlyRight(t *testing.T) {
	q := New(Config{Classes: []Class{{Name: "a", Quantum: 300}, {Name: "b", Quantum: 100}}})
	rng := rand.New(rand.NewPCG(1, 1))
	var behind time.Duration
	for i := range 16_000 {
		r := Request{Class: []string{"a", "b"}[i%2], Tokens: 100, Work: time.Duration(rng.IntN(200)) * time.Millisecond,
			At: t0.Add(time.Duration(i)), Until: t0.Add(time.Duration(rng.IntN(1e9)))}
		push(t, q, r)
		if r.Class == "a" {
			behind += r.Work
		}
	}
	want := behind.Seconds() * 4 / 3 // b gets a turn of a third as much
	if got := q.Ahead(Request{Class: "a", At: t0.Add(time.Hour)}).Seconds(); got < 0.9*want || got > 1.1*want {
		t.Errorf("%.0f s are ahead, want about %.0f", got, want)
	}
}

// TestHeldBack: requests that are held back go after others, the least work first. When their hold ends, the first that came goes first.
func TestHeldBack(t *testing.T) {
	q := New(Config{})
	hold := func(name string, seconds int, work float64) {
		push(t, q, Request{
			Lane: "any", At: t0.Add(time.Duration(len(name)) * time.Second), Until: t0.Add(time.Minute),
			Hold: Hold{Until: t0.Add(time.Duration(seconds) * time.Second), Work: work}, Value: name,
		})
	}
	hold("a", 30, 3)
	hold("bb", 20, 1)
	hold("ccc", 25, 2)
	push(t, q, Request{Lane: "any", At: t0.Add(9 * time.Second), Until: t0.Add(time.Minute), Value: "other"})

	expect := func(want string, canGo func(*Item) bool) {
		t.Helper()
		got := ""
		if it := q.Next(canGo); it != nil {
			got = it.Value.(string)
		}
		if got != want {
			t.Errorf("%q goes, want %q", got, want)
		}
	}
	notHeld := func(it *Item) bool { return !it.IsHeld() }
	expect("other", always)
	q.Take(q.Next(always))
	expect("bb", always)
	expect("", notHeld)

	for seconds, want := range map[int]string{20: "bb", 25: "bb", 30: "a"} {
		q := New(Config{})
		q.Configure(Config{Classes: []Class{{Name: "new"}}})
		for _, r := range []Request{
			{Hold: Hold{Until: t0.Add(30 * time.Second), Work: 3}, Value: "a", At: t0},
			{Hold: Hold{Until: t0.Add(20 * time.Second), Work: 5}, Value: "bb", At: t0.Add(time.Second)},
			{Hold: Hold{Until: t0.Add(25 * time.Second), Work: 2}, Value: "ccc", At: t0.Add(2 * time.Second)},
		} {
			r.Lane, r.Until = "any", t0.Add(time.Minute)
			push(t, q, r)
		}
		if it := q.PopExpired(t0.Add(time.Duration(seconds) * time.Second)); it != nil {
			t.Errorf("%v has expired", it.Value)
		}
		if it := q.Next(notHeld); it == nil || it.Value != want || q.Len() != 3 {
			t.Errorf("after %d s %v goes, want %q", seconds, it, want)
		}
		if it := q.PopExpired(t0.Add(time.Minute)); it == nil || q.Len() != 2 {
			t.Error("no request has expired")
		}
	}
}
