package route_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// crowd is a router over few workers each of which takes one prompt at a time.
func crowd(t testing.TB, workers int, cfg queue.Config) (*route.Router, *fleet.Fleet) {
	x := kvindex.New(kvindex.Config{MaxBytes: 16 << 20})
	f := newFleet(t, x, workers)
	r := route.New(route.Config{Seed: 1}, f, x)
	models := map[string]*serving.Config{"sim": {
		Prompt: runes{}, BlockSize: 4, Busy: serving.Busy{PrefillTokens: 1}, Queue: &cfg, MaxWait: time.Hour,
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
				told := make(chan *decision.Decision, 2)
				req.Ready, req.Tenant = func(d *decision.Decision) { told <- d }, fmt.Sprint(g%5)
				req.Hints = &prompt.Hints{Rank: -1, Class: []string{"a", "b"}[g%2], Strict: rng.IntN(10) / 9}
				if rng.IntN(4) == 0 {
					req.Hints.Worker = fmt.Sprintf("w%d", rng.IntN(4))
				}
				d := r.Decide(req, start)
				if d.Outcome == decision.Queued {
					if rng.IntN(5) == 0 && r.Cancel(req.Ticket) {
						continue
					}
					select {
					case d = <-told:
					case <-time.After(30 * time.Second):
						t.Error("forgotten")
						return
					}
				}
				if d.Outcome != decision.Picked {
					t.Errorf("%s", d)
					return
				}
				runtime.Gosched() // or hardly anybody would have to wait
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
	if s.Waiting != 0 || s.Bookings.Open != 0 || s.Queued == 0 || s.Cancelled == 0 {
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
				req.Ready = func(*decision.Decision) {}
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

// TestTenThousandLeave: requests that leave the queue leave no memory behind.
func TestTenThousandLeave(t *testing.T) {
	r, _ := crowd(t, 1, queue.Config{})
	first := r.Decide(completion("the first"), start)
	var tickets []request.Ticket
	for i := range 10_000 {
		req := completion(fmt.Sprint("prompt ", i))
		req.Ready = func(d *decision.Decision) { t.Errorf("%s", d) }
		r.Decide(req, start)
		tickets = append(tickets, req.Ticket)
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(tickets), func(i, j int) { tickets[i], tickets[j] = tickets[j], tickets[i] })
	for _, ticket := range tickets {
		if !r.Cancel(ticket) {
			t.Fatal("it was not there")
		}
	}
	r.End(first.ID, start)
	if s := r.Stats(); s.Waiting != 0 || s.Cancelled != 10_000 || s.Bookings.Open != 0 || r.Queues()[0] != (route.QueueStats{Pool: "sim"}) {
		t.Errorf("%+v, %+v", s, r.Queues())
	}
}

// TestClassesShareARank: through the whole router, with one rank that takes one prompt at a time, 320
// requests that end while both classes wait are 4 : 1 by quanta of 512 : 128, and 1 : 1 by equal ones.
func TestClassesShareARank(t *testing.T) {
	for regular, want := range map[int]int{128: 256, 512: 160} {
		r, _ := crowd(t, 1, queue.Config{Classes: []queue.Class{{Name: "premium", Quantum: 512}, {Name: "regular", Quantum: regular}}})
		running := r.Decide(completion("what runs while all others come"), start).ID
		ran := map[string]int{}
		for i := range 800 {
			req := completion(fmt.Sprintf("%06d this prompt has forty-eight tokens in all....", i))
			class := []string{"regular", "premium"}[i%2]
			req.Hints = &prompt.Hints{Rank: -1, Class: class}
			req.Ready = func(d *decision.Decision) {
				running = d.ID
				ran[d.Wait.Class]++
			}
			if d := r.Decide(req, start); d.Outcome != decision.Queued {
				t.Fatalf("%s", d)
			}
		}
		for range 320 {
			r.End(running, start)
		}
		if d := ran["premium"] - want; d < -6 || d > 6 {
			t.Errorf("%v, want %d ± 2 %% premium", ran, want)
		}
	}
}

// BenchmarkWake: what does a booking's end cost while ten thousand wait for a thousand ranks that are all
// busy but for the one whose prompt has ended? It includes the decision of who goes next.
//
//	go test -run - -bench Wake ./internal/route
func BenchmarkWake(b *testing.B) {
	r, _ := crowd(b, 1000, queue.Config{})
	running := make(chan string, 20_000)
	come := func(i int) {
		req := completion(fmt.Sprintf("prompt %d of many that come and wait for their turn", i))
		req.Ready = func(d *decision.Decision) { running <- d.ID }
		if d := r.Decide(req, start); d.Outcome == decision.Picked {
			running <- d.ID
		}
	}
	n := 0
	for ; n < 11_000; n++ {
		come(n)
	}
	b.ReportAllocs()
	for b.Loop() {
		r.End(<-running, start)
		b.StopTimer()
		come(n)
		n++
		b.StartTimer()
	}
}
