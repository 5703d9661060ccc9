package route_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/serving"
)

// listedRouter routes over workers that a file lists: nothing reports their caches or whether they live.
func listedRouter(t testing.TB, workers int, cfg route.Config) (*route.Router, *fleet.Fleet, *kvindex.Index) {
	x := kvindex.New(kvindex.Config{MaxBytes: 16 << 20})
	f := fleet.New(fleet.Hooks{RankGone: x.Drop})
	cfg.Seed = 1
	r := route.New(cfg, f, x)
	for i := range workers {
		if _, err := f.Put(fleet.Worker{Name: fmt.Sprintf("w%d", i+1), Model: "sim", Address: addressOf(i + 1), Ranks: 1, State: fleet.Ready}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: letters{}}}); err != nil {
		t.Fatal(err)
	}
	return r, f, x
}

// addressOf is the address of the worker of that number.
func addressOf(i int) string { return fmt.Sprintf("10.0.0.%d:8000", i) }

// TestDeadWorkerAttractsNoConversation runs conversations over w1, which lives, and w2, which does not. Envoy
// retries each pick of w2 at w1, and reports that. No conversation may go to w2 for the sake of its cache.
func TestDeadWorkerAttractsNoConversation(t *testing.T) {
	r, f, _ := listedRouter(t, 2, route.Config{})
	const conversations, turns = 4, 10
	now, later := start, 0
	text := make([]string, conversations)
	for turn := range turns {
		for c := range conversations {
			text[c] += fmt.Sprintf("turn %d of conversation %d ", turn, c) + strings.Repeat("all work and no play ", 8)
			d := r.Decide(batchOf(1, text[c]), now)
			if d.Worker == "w2" && turn > 0 {
				later++
			}
			now = now.Add(time.Second)
			if _, ok := r.Ended(route.Ending{ID: d.ID, Served: addressOf(1)}, now); !ok {
				t.Error("a booking was not there to end")
			}
			now = now.Add(time.Second)
		}
	}

	if later > conversations {
		t.Errorf("%d of %d later turns went to the dead worker", later, conversations*(turns-1))
	}
	for _, rank := range f.Snapshot().Ranks {
		if b := rank.Load.Booked(); b != (fleet.Amount{}) {
			t.Errorf("%s ends with %+v", rank.Worker.Name, b)
		}
	}
}

// TestEndingsCorrectTheCaches ends a request on w1 in each way, and reads the predictions of the index after that.
func TestEndingsCorrectTheCaches(t *testing.T) {
	const prompt, none = 160, ""
	for _, c := range []struct {
		name     string
		ending   route.Ending
		w1, w2   int // tokens of the prompt that are cached there
		reason   pick.Reason
		observed string // by Config.Served
	}{
		{"as picked", route.Ending{Served: addressOf(1)}, 160, 0, pick.Finished, "w1 160/0"},
		{"picked, and failed", route.Ending{Served: addressOf(1), Failed: true}, 160, 0, pick.Failed, none},
		{"by another", route.Ending{Served: addressOf(2)}, 0, 160, pick.Moved, "w2 160/0"},
		{"by another, and failed", route.Ending{Served: addressOf(2), Failed: true}, 0, 0, pick.Failed, none},
		{"by none", route.Ending{Failed: true}, 0, 0, pick.Failed, none},
		{"by a worker that is not known", route.Ending{Served: "10.9.9.9:1"}, 0, 0, pick.Moved, none},
		{"by one that Envoy did not name", route.Ending{}, 160, 0, pick.Finished, "w1 160/0"},
	} {
		observed := none
		r, f, x := listedRouter(t, 2, route.Config{Served: func(rank fleet.Rank, _ time.Time, t pick.Tokens) {
			observed += fmt.Sprintf("%s %d/%d", rank.Worker.Name, t.Prompt, t.Cached)
		}})
		req := batchOf(1, strings.Repeat("a", prompt))
		req.ID = "one"
		f.SetState("w2", fleet.Draining)
		if d := r.Decide(req, start); d.Worker != "w1" {
			t.Fatal(d)
		}
		f.SetState("w2", fleet.Ready)

		c.ending.ID = "one"
		_, first := r.Ended(c.ending, start.Add(time.Second))
		_, again := r.Ended(c.ending, start.Add(time.Second))
		if !first || again {
			t.Errorf("%s: a booking must end exactly once", c.name)
		}
		if got := r.Stats().Bookings.Ended; got[c.reason] != 1 {
			t.Errorf("%s: the bookings ended as %v", c.name, got)
		}
		if observed != c.observed {
			t.Errorf("%s: observed %q, want %q", c.name, observed, c.observed)
		}
		for worker, want := range map[string]int{"w1": c.w1, "w2": c.w2} {
			if got := cachedOn(r, worker, strings.Repeat("a", prompt)); got != want {
				t.Errorf("%s: %d tokens are cached on %s, want %d", c.name, got, worker, want)
			}
		}
		r.RankGone(0)
		r.RankGone(1)
		x.Expire(start.Add(time.Hour))
		if s := x.Stats(); s.Predicted != 0 {
			t.Errorf("%s: %d blocks stay predicted", c.name, s.Predicted)
		}
	}
}

// cachedOn returns the number of tokens of a prompt that the router takes for cached on a worker. The request
// for it is made and withdrawn.
func cachedOn(r *route.Router, worker, text string) int {
	d := r.Decide(batchOf(1, text), start.Add(2*time.Second))
	r.Ended(route.Ending{ID: d.ID, Failed: true}, start.Add(2*time.Second))
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.Worker == worker {
			return c.Overlap[fleet.Device] * 16
		}
	}
	return -1
}

// TestRetriesAvoidFailedWorkers: the prompt of death has ended w1 and w2. Until they are held back a request that is
// picked for one of them is retried at w3, and never at the other one: there is one retry only.
func TestRetriesAvoidFailedWorkers(t *testing.T) {
	r, f, _ := listedRouter(t, 3, route.Config{})
	f.SetState("w3", fleet.Draining)
	deadly := r.Decide(batchOf(1, "die"), start)
	if len(deadly.Others) != 1 {
		t.Fatal(deadly)
	}
	r.Ended(route.Ending{ID: deadly.ID, Failed: true, Tried: deadly.Others[0]}, start.Add(time.Second))

	for _, rank := range f.Snapshot().Ranks {
		if failed := rank.Worker.Name != "w3"; rank.Load.Health().HasFailed() != failed {
			t.Errorf("%s has failed: %v", rank.Worker.Name, !failed)
		}
	}

	// A long request makes w3 the worst choice, but for the failures of the others.
	f.SetState("w1", fleet.Draining)
	f.SetState("w2", fleet.Draining)
	f.SetState("w3", fleet.Ready)
	if long := r.Decide(batchOf(1, strings.Repeat("all work and no play ", 100)), start.Add(time.Second)); long.Worker != "w3" {
		t.Fatal(long)
	}
	f.SetState("w1", fleet.Ready)
	f.SetState("w2", fleet.Ready)
	for i := range 5 {
		now := start.Add(time.Duration(2+i) * time.Second)
		d := r.Decide(batchOf(1, fmt.Sprintf("ordinary question %d", i)), now)
		if d.Worker != "w3" && d.Others[0] != addressOf(3) {
			t.Errorf("request %d for %s is retried at %v", i, d.Worker, d.Others)
		}
		r.Ended(route.Ending{ID: d.ID, Served: addressOf(3)}, now)
	}

	// A success ends the suspicion.
	ok := r.Decide(batchOf(1, "one more"), start.Add(time.Minute))
	r.Ended(route.Ending{ID: ok.ID, Served: ok.Address}, start.Add(time.Minute))
	for _, rank := range f.Snapshot().Ranks {
		if rank.Worker.Name == ok.Worker && rank.Load.Health().HasFailed() {
			t.Errorf("%s has served a request and counts as failed", ok.Worker)
		}
	}
}

// TestFailedRequestKeepsOthersPredictions ends one of two requests with the same beginning. The
// prediction of the other request stays.
func TestFailedRequestKeepsOthersPredictions(t *testing.T) {
	r, _, _ := listedRouter(t, 1, route.Config{})
	first := r.Decide(batchOf(1, strings.Repeat("a", 160)), start)
	second := r.Decide(batchOf(1, strings.Repeat("a", 160)+strings.Repeat("b", 160)), start.Add(time.Second))
	if second.Overlap != 10 {
		t.Fatal(second)
	}
	r.Ended(route.Ending{ID: second.ID, Failed: true}, start.Add(2*time.Second))
	r.Ended(route.Ending{ID: first.ID, Served: addressOf(1)}, start.Add(2*time.Second))

	third := r.Decide(batchOf(1, strings.Repeat("a", 160)+strings.Repeat("b", 160)), start.Add(3*time.Second))
	if third.Overlap != 10 {
		t.Errorf("%d blocks are predicted, want those of the first request: 10", third.Overlap)
	}
}

// TestDeadWorkerIsHeldBack runs new conversations, one after the other, while w2 is dead, and then while it
// lives again. A dead worker gets a request now and then, and one that is back gets its share again.
func TestDeadWorkerIsHeldBack(t *testing.T) {
	r, f, _ := listedRouter(t, 2, route.Config{})
	now := start
	run := func(requests int, alive bool) (picked int) {
		for i := range requests {
			d := r.Decide(batchOf(1, fmt.Sprintf("%v %d ", alive, i)+strings.Repeat("all work and no play ", 8)), now)
			ending := route.Ending{ID: d.ID, Served: d.Address}
			if d.Worker == "w2" {
				picked++
				if !alive {
					ending.Served = addressOf(1)
				}
			}
			now = now.Add(100 * time.Millisecond)
			r.Ended(ending, now)
		}
		return picked
	}

	if n := run(200, false); n < fleet.HoldAfter || n > fleet.HoldAfter+5 { // 20 s: a probe each 5 s
		t.Errorf("%d of 200 requests went to a dead worker", n)
	}
	if n := r.Stats().HeldBack; n == 0 {
		t.Error("nothing is counted")
	}
	now = now.Add(fleet.HoldTime)
	if n := run(200, true); n < 60 {
		t.Errorf("%d of 200 requests went to a worker that is back", n)
	}

	// If all ranks are held back, requests still go.
	for range 20 {
		d := r.Decide(batchOf(1, "hello"), now)
		if d.Outcome != decision.Picked {
			t.Fatal(d)
		}
		r.Ended(route.Ending{ID: d.ID, Failed: true}, now)
	}
	for _, rank := range f.Snapshot().Ranks {
		if rank.Load.Health().Admits(0, now) {
			t.Errorf("%s is not held back after failures", rank.Worker.Name)
		}
	}
}
