package route_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/serving"
)

// A decision's promise is reported when its request has ended regularly, and only then.
func TestServed(t *testing.T) {
	x, got := kvindex.New(kvindex.Config{}), []string{}
	r := route.New(route.Config{
		Served: func(rank fleet.Rank, decided time.Time, t pick.Tokens) {
			got = append(got, fmt.Sprintf("%s at %d: %d of %d", rank.Worker.Name, decided.Unix()-start.Unix(), t.Cached, t.Prompt))
		},
	}, newFleet(t, x, 1), x)
	if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: quads{}}}); err != nil {
		t.Fatal(err)
	}
	req, _ := body(400)
	first := r.Decide(req, start)
	second := r.Decide(req, start.Add(time.Second))
	r.Decide(req, start.Add(2*time.Second))
	r.End(second.ID, start)
	r.End(first.ID, start)
	r.RankGone(0)
	name := first.Worker
	want := []string{name + " at 1: 96 of 100", name + " at 0: 0 of 100"}
	if !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

// TestOvertakenPrefillsEnd: if a rank has no events, the end of a later request ends the prefill of an earlier one, long
// before it is expected to end.
func TestOvertakenPrefillsEnd(t *testing.T) {
	x := kvindex.New(kvindex.Config{})
	f := newFleet(t, x, 1)
	r := route.New(route.Config{PredictFor: func(fleet.Rank) time.Duration { return time.Minute }}, f, x)
	if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: letters{}}}); err != nil {
		t.Fatal(err)
	}
	load := f.Snapshot().Ranks[0].Load
	r.Decide(batchOf(1, strings.Repeat("a long prompt ", 10_000)), start)
	later := r.Decide(batchOf(1, "a short one"), start.Add(time.Millisecond))
	before := load.Booked().PrefillTokens

	r.End(later.ID, start.Add(20*time.Millisecond))
	r.SettlePrefills(start.Add(21 * time.Millisecond))
	if before == 0 || load.Booked().PrefillTokens != 0 {
		t.Errorf("%d tokens were booked, and %d are", before, load.Booked().PrefillTokens)
	}
}

// TestShortRequestsTeach ends requests before the next call of SettlePrefills, as requests with max_tokens 1 end. Their
// prompts teach as much as others.
func TestShortRequestsTeach(t *testing.T) {
	for _, served := range []bool{false, true} {
		r, f, x := lettersRouter(t, 1, serving.Config{})
		rank, now := f.Snapshot().Ranks[0], start
		for i := range 50 {
			text := fmt.Sprintf("%d ", i) + strings.Repeat("all work and no play ", 10+i)
			d := r.Decide(batchOf(1, text), now)
			now = now.Add(12 * time.Millisecond)
			report(x, rank, text)
			if served {
				r.Ended(route.Ending{ID: d.ID, Served: d.Address}, now)
			} else {
				r.End(d.ID, now)
			}
			now = now.Add(30 * time.Millisecond)
			r.SettlePrefills(now)
		}
		if got := r.Speeds()[learned.WorkerClass{Model: "sim"}].Prefill; got.Observed != 50-8 {
			t.Errorf("served %v: %s", served, got)
		}
	}
}

// TestWaitsForSlotsAreNotSlowness: an engine runs one request at a time, and every second request waits for seconds until the one before it
// has ended. The time of its prompt shows nothing of the engine's speed.
func TestWaitsForSlotsAreNotSlowness(t *testing.T) {
	r, f, x := lettersRouter(t, 1, serving.Config{})
	one := *f.Snapshot().Workers[0]
	one.MaxRequests = 1
	if _, err := f.Put(one); err != nil {
		t.Fatal(err)
	}
	rank, now := f.Snapshot().Ranks[0], start
	computed := func(text string) {
		now = now.Add(20 * time.Millisecond)
		report(x, rank, text)
		r.SettlePrefills(now)
	}

	for i := range 50 {
		runs, waits := fmt.Sprintf("%d runs ", i)+strings.Repeat("-", 1000), fmt.Sprintf("%d waits ", i)+strings.Repeat("-", 1000)
		first := r.Decide(batchOf(1, runs), now)
		computed(runs)
		second := r.Decide(batchOf(1, waits), now)
		now = now.Add(3 * time.Second)
		r.End(first.ID, now)
		computed(waits)
		r.End(second.ID, now)
	}
	got := r.Speeds()[learned.WorkerClass{Model: "sim"}].Prefill
	if took := got.Prefill(1000); got.Observed != 50-4 || took > 40*time.Millisecond { // of the first eight, four waited
		t.Errorf("a prompt of 20 ms is expected to take %s: %s", took, got)
	}
}

// TestCachesBreakTies makes all prompts last equally long, so that costs are equal. The rank that holds the
// prompt must get it.
func TestCachesBreakTies(t *testing.T) {
	x := kvindex.New(kvindex.Config{MaxBytes: 16 << 20})
	f := newFleet(t, x, 4)
	flat := perfmodel.Speed{Prefill: perfmodel.Line{Base: 50 * time.Millisecond}, Decode: perfmodel.DefaultSpeed().Decode}
	r := route.New(route.Config{Seed: 1, Speeds: map[string]perfmodel.Speed{"sim": flat}}, f, x)
	if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: letters{}}}); err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("all work and no play ", 20)
	report(x, f.Snapshot().Ranks[2], text)
	for range 20 {
		d := r.Decide(batchOf(1, text), start)
		if d.Worker != "w2" {
			t.Fatal(d)
		}
		r.End(d.ID, start)
	}
}

// TestWithoutPrefixCache: an engine without a prefix cache is promised nothing, gets no predicted blocks, and is not suspected because no
// event shows its prefills. The same engine with one is promised what it has.
func TestWithoutPrefixCache(t *testing.T) {
	r, f, x := lettersRouter(t, 1, serving.Config{})
	rank, now := f.Snapshot().Ranks[0], start
	text := strings.Repeat("all work and no play ", 20)
	report(x, rank, text)
	ask := func(text string) (cached int) {
		t.Helper()
		now = now.Add(time.Second)
		d := r.Decide(batchOf(1, text), now)
		r.SettlePrefills(now.Add(time.Hour))
		if prefill := rank.Load.Booked().PrefillTokens; prefill > 0 && !rank.Load.Caches() {
			t.Errorf("%d tokens of a prefill are booked after an hour", prefill)
		}
		r.End(d.ID, now)
		return d.Cached
	}
	if ask(text) == 0 {
		t.Error("nothing is promised")
	}

	rank.Load.Health().ObserveCaching(true, now)
	x.Clear(rank.ID)
	for range 3 {
		if n := ask(text); n > 0 {
			t.Errorf("%d tokens are promised", n)
		}
	}
	if state := rank.Load.HealthView().State; state != fleet.HealthReady || r.Promised() != 0 {
		t.Errorf("the engine is %s, with %d promises", state, r.Promised())
	}

	rank.Load.Health().ObserveCaching(false, now)
	if n := ask(text); n > 0 {
		t.Errorf("%d tokens were predicted while there was no cache", n)
	}
	if ask(text) == 0 {
		t.Error("nothing is promised again")
	}
}
