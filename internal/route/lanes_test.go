package route_test

import (
	"fmt"
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

// fullRouter returns a router whose workers are all busy, with the ids of the bookings that make them so.
func fullRouter(t testing.TB, workers int) (*route.Router, []string) {
	x := kvindex.New(kvindex.Config{MaxBytes: 16 << 20})
	f := fleet.New(fleet.Hooks{RankGone: x.Drop})
	r := route.New(route.Config{Seed: 1}, f, x)
	for i := range workers {
		if _, err := f.Put(fleet.Worker{Name: fmt.Sprintf("w%d", i), Model: "sim", Address: fmt.Sprintf("10.0.%d.%d:80", i/250, i%250+1),
			Ranks: 1, State: fleet.Ready}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.SetModels(map[string]*serving.Config{"sim": {
		Prompt: quads{}, Busy: serving.Busy{PrefillTokens: 1}, Queue: &queue.Config{}, MaxWait: time.Hour,
	}}); err != nil {
		t.Fatal(err)
	}

	var ids []string
	for range workers {
		d := r.Decide(waiter(), start)
		if d.Outcome != decision.Picked {
			t.Fatal(d)
		}
		ids = append(ids, d.ID)
	}
	return r, ids
}

// waiter is a request that can wait, for the workers of these names.
func waiter(names ...string) *request.Request {
	req := completion("a prompt that has to wait for a worker")
	req.Ready = func(*decision.Decision) {}
	if len(names) > 0 {
		req.Hints = &prompt.Hints{Rank: -1, Workers: names}
	}
	return req
}

// strangers are a list of names of which only the first is a worker's.
func strangers(i int) []string {
	names := []string{"w0"}
	for j := range 255 {
		names = append(names, fmt.Sprintf("no-such-worker-%d-%d", i, j))
	}
	return names
}

// subset names the workers whose bits are set in i, among the first eleven.
func subset(i int) []string {
	var names []string
	for bit := range 11 {
		if i>>bit&1 != 0 {
			names = append(names, fmt.Sprintf("w%d", bit))
		}
	}
	return names
}

// TestLanesKeepNobodyOut fills the queue with requests for many sets of workers. A request that names no
// worker must still be queued.
func TestLanesKeepNobodyOut(t *testing.T) {
	r, _ := fullRouter(t, 12)
	for i := range 1100 { // all of them may go to w0 alone
		if d := r.Decide(waiter(strangers(i)...), start); d.Outcome != decision.Queued {
			t.Fatalf("names that no worker has make a lane of their own: %s", d)
		}
	}
	queued := 0
	for i := range 2047 {
		d := r.Decide(waiter(subset(i+1)...), start)
		if d.Outcome == decision.Queued {
			queued++
		} else if d.Reason != decision.ReasonQueueFull {
			t.Fatal(d)
		}
	}
	if queued != queue.MaxLanes {
		t.Errorf("%d sets of workers are waited for, want %d", queued, queue.MaxLanes)
	}
	if d := r.Decide(waiter(), start); d.Outcome != decision.Queued {
		t.Errorf("a request without hints: %s", d)
	}
}

// BenchmarkLanes measures one more request, and one end, beside 1,024 requests for different sets of workers
// with 256 names each.
//
//	go test -run - -bench Lanes ./internal/route
func BenchmarkLanes(b *testing.B) {
	for _, workers := range []int{12, 1000} {
		sets := func(i int) []string {
			names := subset(i%1023 + 1)
			for j := range 256 - len(names) {
				names = append(names, fmt.Sprintf("w%d", 10+j))
			}
			return names
		}
		full := func(b *testing.B) (*route.Router, []string) {
			r, ids := fullRouter(b, workers)
			for i := range 1023 {
				r.Decide(waiter(sets(i)...), start)
			}
			return r, ids
		}
		b.Run(fmt.Sprintf("op=enqueue/workers=%d", workers), func(b *testing.B) {
			r, _ := full(b)
			req := waiter(sets(7)...)
			for b.Loop() {
				d := r.Decide(req, start)
				if d.Outcome != decision.Queued || !r.Cancel(req.Ticket) {
					b.Fatal(d)
				}
			}
		})
		b.Run(fmt.Sprintf("op=wake/workers=%d", workers), func(b *testing.B) {
			r, _ := full(b)
			for b.Loop() {
				r.Wake(start)
			}
		})
		b.Run(fmt.Sprintf("op=end-unknown/workers=%d", workers), func(b *testing.B) {
			r, _ := full(b)
			for b.Loop() {
				r.End("unknown", start)
			}
		})
	}
}

// BenchmarkDeadline measures a request with a deadline beside 16,383 that wait.
func BenchmarkDeadline(b *testing.B) {
	r, _ := fullRouter(b, 4)
	for range 16_383 {
		r.Decide(waiter(), start)
	}
	req := waiter()
	req.Hints = &prompt.Hints{Rank: -1, Deadline: time.Millisecond}
	for b.Loop() {
		if d := r.Decide(req, start); d.Reason != decision.ReasonDeadline {
			b.Fatal(d)
		}
	}
}
