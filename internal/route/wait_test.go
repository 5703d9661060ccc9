package route_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/queue"
)

// crowd is a router over few workers each of which takes one prompt at a time.
func crowd(t testing.TB, workers int, cfg queue.Config) (*route.Router, *fleet.Fleet) {
	x := kvindex.New(kvindex.Config{MaxBytes: 16 << 20})
	f := newFleet(t, x, workers)
	r := route.New(route.Config{Seed: 1}, f, x)
	models := map[string]*route.ModelConfig{"sim": {
		Prompt: runes{}, BlockSize: 4, Busy: route.Busy{PrefillTokens: 1}, Queue: &cfg, MaxWait: time.Hour,
	}}
	if err := r.SetModels(models); err != nil {
		t.Fatal(err)
	}
	return r, f
}

// TestNobodyIsForgotten: many come at once to ranks that take one at a time; some leave before
// their turn. Without any clock to wake them, everyone else is served, once, no rank is ever given a
// second prompt, and nothing is left.
func TestNobodyIsForgotten(t *testing.T) {
	const clients, requests = 16, 150
	r, f := crowd(t, 4, queue.Config{Classes: []queue.Class{{Name: "a", Fair: true}, {Name: "b", Order: queue.WSPT}}})
	var all sync.WaitGroup
	for g := range clients {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for i := range requests {
				req := completion(fmt.Sprintf("prompt %d of client %d, %d", i, g%3, rng.IntN(9)))
				told := make(chan *route.Decision, 2)
				req.Ready, req.Tenant = func(d *route.Decision) { told <- d }, fmt.Sprint(g%5)
				req.Hints = &prompt.Hints{Rank: -1, Class: []string{"a", "b"}[g%2], Strict: rng.IntN(10) / 9}
				if rng.IntN(4) == 0 {
					req.Hints.Worker = fmt.Sprintf("w%d", rng.IntN(4))
				}
				d := r.Decide(req, start)
				if d.Outcome == route.Queued {
					if rng.IntN(5) == 0 && r.Leave(d.Ticket) {
						continue
					}
					select {
					case d = <-told:
					case <-time.After(30 * time.Second):
						t.Error("forgotten")
						return
					}
				}
				if d.Outcome != route.Picked {
					t.Errorf("%s", d)
					return
				}
				if rng.IntN(2) == 0 {
					r.PrefillDone(d.ID, start)
				}
				if !r.End(d.ID, start) {
					t.Error("a booking was not there to end")
				}
				if len(told) != 0 {
					t.Error("told twice")
				}
			}
		})
	}
	all.Wait()
	s := r.Stats()
	if s.Waiting != 0 || s.Bookings.Open != 0 || s.Queued == 0 || s.Left == 0 {
		t.Errorf("%+v", s)
	}
	for _, q := range r.Queues() {
		if q.Requests != 0 || q.Tokens != 0 || q.CachedTokens != 0 {
			t.Errorf("%+v", q)
		}
	}
	for _, m := range f.Snapshot().Ranks {
		if b := m.Load.Booked(); b != (fleet.Amount{}) {
			t.Errorf("%s ends with %+v", m.Worker.Name, b)
		}
	}
}

// TestBusyIsBusy: however many decide at once, no rank is given more than its threshold lets it have.
func TestBusyIsBusy(t *testing.T) {
	for range 50 {
		r, f := crowd(t, 4, queue.Config{})
		var all sync.WaitGroup
		for g := range 16 {
			all.Go(func() {
				req := completion(fmt.Sprint("prompt of client ", g))
				req.Ready = func(*route.Decision) {}
				r.Decide(req, start)
			})
		}
		all.Wait()
		for _, m := range f.Snapshot().Ranks {
			if n := m.Load.Booked().Requests; n != 1 {
				t.Fatalf("%s has %d requests", m.Worker.Name, n)
			}
		}
		if n := r.Stats().Waiting; n != 12 {
			t.Fatalf("%d wait", n)
		}
	}
}

// TestTenThousandLeave: whoever waits and leaves, leaves nothing.
func TestTenThousandLeave(t *testing.T) {
	r, _ := crowd(t, 1, queue.Config{})
	first := r.Decide(completion("the first"), start)
	var tickets []*route.Ticket
	for i := range 10_000 {
		req := completion(fmt.Sprint("prompt ", i))
		req.Ready = func(d *route.Decision) { t.Errorf("%s", d) }
		tickets = append(tickets, r.Decide(req, start).Ticket)
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(tickets), func(i, j int) { tickets[i], tickets[j] = tickets[j], tickets[i] })
	for _, ticket := range tickets {
		if !r.Leave(ticket) {
			t.Fatal("it was not there")
		}
	}
	r.End(first.ID, start)
	if s := r.Stats(); s.Waiting != 0 || s.Left != 10_000 || s.Bookings.Open != 0 || r.Queues()[0] != (route.QueueStats{Pool: "sim"}) {
		t.Errorf("%+v, %+v", s, r.Queues())
	}
}
