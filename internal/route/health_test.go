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
	"github.com/stator-project/stator/internal/route/serving"
)

// probe records the answer of a worker's engine.
func probe(t *testing.T, f *fleet.Fleet, worker string, p fleet.Probe, now time.Time) fleet.HealthView {
	t.Helper()
	p.Asked = now
	_, after, ok := f.ObserveProbe(worker, f.Snapshot().Worker(worker).Address, p, now)
	if !ok {
		t.Fatalf("%s is not there", worker)
	}
	return after
}

// TestHalfOpenWorkerGetsFewRequests: a worker that is back gets one request at a time, then more at once, and its share in
// the end. While it is down it gets none.
func TestHalfOpenWorkerGetsFewRequests(t *testing.T) {
	r, f, _ := listedRouter(t, 2, route.Config{})
	now := start
	n := 0
	// burst decides some requests before the first one ends, and returns the number that w2 got.
	burst := func() (picked int) {
		var all []*decision.Decision
		for range 20 {
			n++
			d := r.Decide(batchOf(1, fmt.Sprintf("%d ", n)+strings.Repeat("all work and no play ", 8)), now)
			all = append(all, d)
			if d.Worker == "w2" {
				picked++
			}
		}
		now = now.Add(10 * time.Millisecond)
		for _, d := range all {
			r.Ended(route.Ending{ID: d.ID, Served: d.Address}, now)
		}
		return picked
	}

	probe(t, f, "w2", fleet.Probe{Detail: "no answer in time"}, now)
	if got := burst(); got != 0 {
		t.Errorf("a worker that does not answer got %d requests", got)
	}
	if v := probe(t, f, "w2", fleet.Probe{Detail: "no answer in time"}, now.Add(time.Second)); v.State != fleet.HealthDown {
		t.Error(v)
	}
	if got := burst(); got != 0 {
		t.Errorf("a worker that is down got %d requests", got)
	}

	probe(t, f, "w2", fleet.Probe{Healthy: true}, now)
	for i, most := range []int{1, 2, 8, 20} {
		got := burst()
		if got == 0 || got > most {
			t.Errorf("burst %d after it is back: %d of 20 requests, want at most %d", i, got, most)
		}
	}
}

// TestClientsLeaveAFrozenWorker: a client that left before the response began has waited long enough to doubt the worker. The predictions
// for this worker are taken back only then.
func TestClientsLeaveAFrozenWorker(t *testing.T) {
	const tokens = 160
	for _, c := range []struct {
		after  time.Duration
		state  fleet.HealthState
		cached int
	}{
		{100 * time.Millisecond, fleet.HealthReady, tokens},
		{4 * time.Second, fleet.HealthSuspect, 0},
	} {
		r, f, _ := listedRouter(t, 1, route.Config{})
		d := r.Decide(batchOf(1, strings.Repeat("a", tokens)), start)
		r.Ended(route.Ending{ID: d.ID, Left: true}, start.Add(c.after))

		if got := f.Snapshot().Ranks[0].Load.Health().View(); got.State != c.state {
			t.Errorf("after %s: %s", c.after, got)
		}
		if got := cachedOn(r, "w1", strings.Repeat("a", tokens)); got != c.cached {
			t.Errorf("after %s: %d tokens are cached, want %d", c.after, got, c.cached)
		}
	}
}

// TestCutOffResponse: a worker that ends a response early is in doubt, and one that answers with an error is not.
func TestCutOffResponse(t *testing.T) {
	for _, cut := range []bool{false, true} {
		r, f, _ := listedRouter(t, 1, route.Config{})
		d := r.Decide(batchOf(1, "hello"), start)
		r.Ended(route.Ending{ID: d.ID, Served: d.Address, Failed: true, CutOff: cut}, start)
		if got := f.Snapshot().Ranks[0].Load.Health().View().State; (got == fleet.HealthSuspect) != cut {
			t.Errorf("cut off %v: %s", cut, got)
		}
	}
}

// TestOneRankFails: of a worker with two ranks, one does not serve its requests. The other rank gets all, and the worker stays ready.
func TestOneRankFails(t *testing.T) {
	x := kvindex.New(kvindex.Config{MaxBytes: 16 << 20})
	f := fleet.New(fleet.Hooks{RankGone: x.Drop})
	r := route.New(route.Config{Seed: 1}, f, x)
	if _, err := f.Put(fleet.Worker{Name: "dp", Model: "sim", Address: addressOf(1), Ranks: 2, State: fleet.Ready}); err != nil {
		t.Fatal(err)
	}
	if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: letters{}}}); err != nil {
		t.Fatal(err)
	}

	now, picked := start, [2]int{}
	for n := range 40 {
		d := r.Decide(batchOf(1, fmt.Sprintf("%d ", n)+strings.Repeat("all work and no play ", 8)), now)
		picked[d.Rank]++
		now = now.Add(10 * time.Millisecond)
		if d.Rank == 1 {
			r.Ended(route.Ending{ID: d.ID, Failed: true, Tried: d.Address}, now)
			probe(t, f, "dp", fleet.Probe{Healthy: true, Asked: now}, now) // the server answers for its health
		} else {
			r.Ended(route.Ending{ID: d.ID, Served: d.Address}, now)
		}
	}
	if picked[1] != fleet.HoldAfter {
		t.Errorf("the rank that fails got %d of 40 requests", picked[1])
	}
	if state := f.Snapshot().Worker("dp").State; state != fleet.Ready {
		t.Errorf("the worker is %s", state)
	}
}
