package fleet

import (
	"testing"
	"time"
)

// twoRanks returns a fleet of a worker with two ranks.
func twoRanks(t *testing.T) (f *Fleet, first, second *Load) {
	t.Helper()
	f = New(Hooks{})
	w := Worker{Name: "dp", Model: "m", Address: "10.0.0.1:8000", Engine: "vllm", Ranks: 2, Weight: 1, State: Ready}
	if _, err := f.Put(w); err != nil {
		t.Fatal(err)
	}
	ranks := f.Snapshot().Ranks
	return f, ranks[0].Load, ranks[1].Load
}

// TestRanksFailSingly: what is observed of the requests, the events and the canaries of a rank takes that rank out of the picks, and
// not its sibling. The worker stays ready.
func TestRanksFailSingly(t *testing.T) {
	now := time.Unix(1000, 0)
	silent, refused := Probe{Detail: "no answer in time", Asked: now}, Probe{Refused: true, Detail: "answers 500", Asked: now}
	for name, fail := range map[string]func(f *Fleet, l *Load, now time.Time){
		"requests are not served": func(_ *Fleet, l *Load, now time.Time) {
			for range HoldAfter {
				l.ObserveUnserved(now)
			}
		},
		"events stop, and the canary is silent": func(f *Fleet, l *Load, now time.Time) {
			l.ObserveEventsLost(now)
			f.ObserveRankProbe("dp", "10.0.0.1:8000", 1, silent, now)
		},
		"a token is overdue, and the canary is silent": func(f *Fleet, l *Load, now time.Time) {
			l.ObserveOverdue(now)
			f.ObserveRankProbe("dp", "10.0.0.1:8000", 1, silent, now)
		},
		"an answer is an error, and so is that to the canary": func(f *Fleet, l *Load, now time.Time) {
			l.ObserveServerError(now)
			f.ObserveRankProbe("dp", "10.0.0.1:8000", 1, refused, now)
		},
		"canaries fail": func(f *Fleet, _ *Load, now time.Time) {
			f.ObserveRankProbe("dp", "10.0.0.1:8000", 1, silent, now)
			f.ObserveRankProbe("dp", "10.0.0.1:8000", 1, silent, now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, first, second := twoRanks(t)
			fail(f, second, now)
			f.ObserveProbe("dp", "10.0.0.1:8000", Probe{Healthy: true, Asked: now}, now) // the server answers for its health

			if second.Admits(0, now) || !first.Admits(0, now) || !f.AnyRestricted() {
				t.Errorf("the first rank is admitted: %t, the second: %t", first.Admits(0, now), second.Admits(0, now))
			}
			if state := f.Snapshot().Worker("dp").State; state != Ready || first.HealthView().State != HealthReady {
				t.Errorf("the worker is %s, and the first rank %s", state, first.HealthView())
			}
			if second.HealthView().State == HealthReady {
				t.Errorf("the second rank is %s", second.HealthView())
			}
		})
	}
}

// TestRankComesBack: a rank whose canary is answered again gets one request, and is ready when some were served.
func TestRankComesBack(t *testing.T) {
	f, first, second := twoRanks(t)
	now := time.Unix(1000, 0)
	for range 2 {
		f.ObserveRankProbe("dp", "10.0.0.1:8000", 1, Probe{Detail: "no answer in time", Asked: now}, now)
	}
	if got := second.HealthView(); got.State != HealthDown {
		t.Fatalf("the rank is %s", got)
	}

	f.ObserveRankProbe("dp", "10.0.0.1:8000", 1, Probe{Healthy: true, Asked: now}, now)
	if !second.Admits(0, now) {
		t.Error("the rank gets no request although its canary is answered")
	}
	second.Picked(now)
	if second.Admits(1, now) || !first.Admits(1, now) {
		t.Error("the rank gets a second request before the first is served, or its sibling does not")
	}
	for range 4 {
		second.ObserveServed(now)
	}
	if got := second.HealthView(); got.State != HealthReady || f.AnyRestricted() {
		t.Errorf("the rank is %s", got)
	}
}

// TestEngineOfRanksEnds: when the engine refuses probes, all its ranks are down with it. A worker of one rank has no other health.
func TestEngineOfRanksEnds(t *testing.T) {
	f, first, second := twoRanks(t)
	now := time.Unix(1000, 0)
	first.ObserveUnserved(now)
	f.ObserveProbe("dp", "10.0.0.1:8000", Probe{Refused: true, Detail: "connection refused"}, now)
	if state := f.Snapshot().Worker("dp").State; state != Down || first.HealthView().State != HealthDown || second.HealthView().State != HealthDown {
		t.Errorf("the worker is %s, its ranks are %s and %s", state, first.HealthView(), second.HealthView())
	}
	if _, _, ok := f.ObserveRankProbe("dp", "10.0.0.1:8000", 2, Probe{}, now); ok {
		t.Error("a rank that does not exist was observed")
	}

	if f.Remove("dp"); f.AnyRestricted() {
		t.Error("a worker that has left restricts the picks")
	}
	if _, err := f.Put(Worker{Name: "one", Model: "m", Address: "10.0.0.2:8000", Engine: "vllm", Ranks: 1, Weight: 1, State: Ready}); err != nil {
		t.Fatal(err)
	}
	if f.Snapshot().Ranks[0].Load.RankHealth() != nil {
		t.Error("a worker of one rank has a health for the rank")
	}
}
