package fleet

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// patient is a Health with a clock, which words change.
type patient struct {
	*Health
	restricted atomic.Int64
	now        time.Time
	must       stay
}

func newPatient(first HealthState) *patient {
	p := &patient{now: time.Unix(1000, 0)}
	p.Health = newHealth(first, &p.restricted)
	return p
}

// do applies one piece of evidence, 10 ms after the one before.
func (p *patient) do(what string) {
	p.now = p.now.Add(10 * time.Millisecond)
	asked := p.now.Add(-5 * time.Millisecond)
	switch what {
	case "healthy":
		p.observeProbe(Probe{Healthy: true, Asked: asked}, p.must, p.now)
	case "refused":
		p.observeProbe(Probe{Refused: true, Detail: "connection refused", Asked: asked}, p.must, p.now)
	case "silent":
		p.observeProbe(Probe{Detail: "no answer in time", Asked: asked}, p.must, p.now)
	case "silent-busy": // the worker has made progress since it was asked
		p.ObserveProgress(p.now.Add(-time.Millisecond))
		p.observeProbe(Probe{Detail: "no answer in time", Asked: asked}, p.must, p.now)
	case "served":
		p.ObserveServed(p.now)
	case "unserved":
		p.ObserveUnserved(p.now)
	case "events-lost":
		p.ObserveEventsLost(p.now)
	case "overdue":
		p.ObserveOverdue(p.now)
	case "agent":
		p.trust(p.now)
	case "last":
		p.must = staysLast
	case "half":
		p.must = staysAside
	case "wait":
		p.now = p.now.Add(HoldTime)
	case "long":
		p.now = p.now.Add(rampTime)
	default:
		panic(what)
	}
}

// TestHealthTable walks workers through the table of their health. The words are evidence; each begins in the first state.
func TestHealthTable(t *testing.T) {
	for _, c := range []struct {
		first    HealthState
		evidence string
		want     HealthState
		admitted bool // with nothing booked
	}{
		{HealthUnknown, "", HealthUnknown, true},
		{HealthUnknown, "refused refused silent", HealthUnknown, true},
		{HealthUnknown, "unserved unserved unserved", HealthUnknown, true},
		{HealthUnknown, "healthy", HealthReady, true},
		{HealthUnknown, "agent", HealthReady, true},

		{HealthReady, "healthy served", HealthReady, true},
		{HealthReady, "refused", HealthSuspect, false},
		{HealthReady, "silent", HealthSuspect, false},
		{HealthReady, "silent-busy silent-busy silent-busy", HealthReady, true},
		{HealthReady, "unserved", HealthSuspect, true},
		{HealthReady, "unserved healthy", HealthReady, true},
		{HealthReady, "unserved healthy unserved healthy unserved", HealthHalfOpen, false},
		{HealthReady, "events-lost", HealthSuspect, true},
		{HealthReady, "overdue", HealthSuspect, true},
		{HealthReady, "healthy overdue", HealthReady, true},
		{HealthReady, "healthy wait overdue", HealthSuspect, true},

		{HealthReady, "refused refused", HealthDown, true},
		{HealthReady, "silent silent", HealthDown, true},
		{HealthReady, "silent refused", HealthDown, true},
		{HealthReady, "unserved refused", HealthDown, true},
		{HealthReady, "events-lost refused", HealthDown, true},
		{HealthReady, "overdue silent", HealthDown, true},
		{HealthReady, "refused healthy", HealthReady, true},
		{HealthReady, "refused served", HealthSuspect, false},
		{HealthReady, "unserved served", HealthReady, true},
		{HealthReady, "silent silent-busy", HealthSuspect, true},

		// The last worker of its pool is not taken out because the network may be down.
		{HealthReady, "last silent silent silent", HealthSuspect, true},
		{HealthReady, "last silent refused", HealthDown, true},
		// One of the last half stays too, and gets requests if no other worker can take them.
		{HealthReady, "half silent silent silent", HealthSuspect, false},
		{HealthReady, "half silent silent healthy", HealthReady, true},
		{HealthReady, "half silent refused", HealthDown, true},

		{HealthReady, "refused refused refused silent served unserved", HealthDown, true},
		{HealthReady, "refused refused healthy", HealthHalfOpen, true},
		{HealthReady, "refused refused agent", HealthReady, true},
		{HealthReady, "refused refused healthy served served served", HealthHalfOpen, true},
		{HealthReady, "refused refused healthy served served served served", HealthReady, true},
		{HealthReady, "refused refused healthy healthy", HealthHalfOpen, true},
		{HealthReady, "refused refused healthy long healthy", HealthReady, true},
		{HealthReady, "refused refused healthy unserved", HealthHalfOpen, false},
		{HealthReady, "refused refused healthy unserved wait", HealthHalfOpen, true},
		{HealthReady, "refused refused healthy silent", HealthSuspect, false},
		{HealthReady, "refused refused healthy silent healthy", HealthHalfOpen, true},
		{HealthReady, "refused refused healthy silent silent", HealthDown, true},

		// Without probes, requests alone find out.
		{HealthReady, "unserved unserved", HealthSuspect, true},
		{HealthReady, "unserved unserved served unserved unserved", HealthSuspect, true},
		{HealthReady, "unserved unserved unserved", HealthHalfOpen, false},
		{HealthReady, "unserved unserved unserved wait", HealthHalfOpen, true},
		{HealthReady, "unserved unserved unserved wait unserved", HealthHalfOpen, false},
		{HealthReady, "unserved unserved unserved wait served served served served", HealthReady, true},
	} {
		p := newPatient(c.first)
		for _, what := range strings.Fields(c.evidence) {
			p.do(what)
		}
		if got := p.View(); got.State != c.want || p.Admits(0, p.now) != c.admitted {
			t.Errorf("%s, %q: %s, admitted %v", c.first, c.evidence, got, p.Admits(0, p.now))
		}
	}
}

// TestHalfOpenShare: a worker that is back gets one request at a time, then more at once. If the end of one is lost, another
// goes there after some time.
func TestHalfOpenShare(t *testing.T) {
	p := newPatient(HealthReady)
	for _, what := range strings.Fields("refused refused healthy") {
		p.do(what)
	}
	for served, share := range []int64{1, 2, 4, 8} {
		if !p.Admits(share-1, p.now) || p.Admits(share, p.now) {
			t.Errorf("after %d requests it does not admit %d at once", served, share)
		}
		p.do("served")
	}
	if !p.Admits(1000, p.now) || p.View().State != HealthReady {
		t.Errorf("after all: %s", p.View())
	}

	for _, what := range strings.Fields("refused refused healthy") {
		p.do(what)
	}
	p.Picked(p.now)
	if p.Admits(1, p.now.Add(HoldTime-1)) || !p.Admits(1, p.now.Add(HoldTime)) {
		t.Error("a request whose end is lost keeps all others away")
	}
}

// TestHealthWakes: evidence of requests has the engine probed at once, and probes themselves do not.
func TestHealthWakes(t *testing.T) {
	for what, want := range map[string]bool{
		"unserved": true, "overdue": true, "events-lost": true, "healthy": false, "refused": false, "silent": false, "served": false,
	} {
		p := newPatient(HealthReady)
		p.do(what)
		if got := len(p.Wake()) == 1; got != want {
			t.Errorf("%s: woken %v", what, got)
		}
	}
}

// TestHealthProperties applies random evidence, and checks the invariants.
func TestHealthProperties(t *testing.T) {
	words := strings.Fields("healthy refused silent silent-busy served unserved events-lost overdue wait")
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p := newPatient([]HealthState{HealthUnknown, HealthReady}[rng.IntN(2)])
		history := ""
		for range 30 {
			before := p.View().State
			what := words[rng.IntN(len(words))]
			history += " " + what
			p.do(what)
			after := p.View().State

			probed := what == "refused" || what == "silent" || what == "silent-busy"
			if after == HealthDown && before != HealthDown && (!probed || before != HealthSuspect) {
				t.Fatalf("%s: down without a suspicion that a probe confirms", history)
			}
			if before == HealthDown && after != HealthDown && what != "healthy" {
				t.Fatalf("%s: back without an answer", history)
			}
			if before == HealthUnknown && after != HealthUnknown && what != "healthy" {
				t.Fatalf("%s: it was never probed", history)
			}
			if n := p.restricted.Load(); n != 0 && n != 1 || n == 0 && !p.Admits(1000, p.now) {
				t.Fatalf("%s: %d restricted, %s", history, n, p.View())
			}
		}

		// A worker that works is ready in the end, whatever came before.
		for _, what := range strings.Fields("healthy healthy wait served served served served served") {
			p.do(what)
		}
		if p.View().State != HealthReady || !p.Admits(1000, p.now) || p.HasFailed() {
			t.Fatalf("%s: it works and is %s", history, p.View())
		}
		p.retire()
		if n := p.restricted.Load(); n != 0 {
			t.Fatalf("%s: %d restricted after its end", history, n)
		}
	}
}

// TestFleetHealth: the state of a worker in snapshots follows from its health, and the fleet counts restricted workers.
func TestFleetHealth(t *testing.T) {
	f, now := New(Hooks{}), time.Unix(1000, 0)
	put := func(name string) {
		t.Helper()
		w := Worker{Name: name, Model: "m", Address: "10.0.0.1:80", Ranks: 2, State: Ready, HealthPath: "/health"}
		if _, err := f.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	probe := func(name string, p Probe, want string) {
		t.Helper()
		p.Asked = now
		now = now.Add(time.Second)
		version := f.Snapshot().Version
		_, after, ok := f.ObserveProbe(name, "10.0.0.1:80", p, now)
		got := fmt.Sprintf("%s, %s, restricted %v, changed %v", after, f.Snapshot().Worker(name).State, f.AnyRestricted(),
			f.Snapshot().Version != version)
		if !ok || got != want {
			t.Errorf("%s: %s; want %s", name, got, want)
		}
	}
	put("a")
	put("b")
	if s := f.Snapshot().Worker("a").State; s != Starting {
		t.Errorf("never probed: %s", s)
	}

	probe("a", Probe{Refused: true, Detail: "connection refused"}, "unknown: connection refused, starting, restricted false, changed false")
	probe("a", Probe{Healthy: true}, "ready, ready, restricted false, changed true")
	probe("b", Probe{Healthy: true}, "ready, ready, restricted false, changed true")
	probe("b", Probe{Detail: "no answer in time"}, "suspect: no answer in time, ready, restricted true, changed false")
	probe("b", Probe{Detail: "no answer in time"}, "down: no answer in time, down, restricted false, changed true")
	probe("a", Probe{Detail: "no answer in time"}, "suspect: no answer in time, ready, restricted true, changed false")
	probe("a", Probe{Detail: "no answer in time"},
		"suspect: no answer in time; it stays because no other worker of its pool is ready, ready, restricted false, changed false")
	if got := f.Snapshot().Unready("m"); got != "b is down (no answer in time)" {
		t.Errorf("unready: %q", got)
	}
	probe("b", Probe{Healthy: true}, "half-open: the engine answers again, ready, restricted true, changed true")

	if _, _, ok := f.ObserveProbe("b", "10.0.0.2:80", Probe{Healthy: true}, now); ok {
		t.Error("the answer of another address counts")
	}
	put("b") // unchanged
	if f.Snapshot().Worker("b").State != Ready || !f.AnyRestricted() {
		t.Error("putting it again has changed its health")
	}
	f.Remove("b")
	if f.AnyRestricted() {
		t.Error("a worker that left is restricted")
	}
}

// TestSleepingEngine: a worker whose engine sleeps admits no request, whatever its health page answers, until it is awake or gone.
func TestSleepingEngine(t *testing.T) {
	f, now := New(Hooks{}), time.Unix(1000, 0)
	if _, err := f.Put(Worker{Name: "a", Model: "m", Address: "10.0.0.1:80", Ranks: 1, State: Ready}); err != nil {
		t.Fatal(err)
	}
	h := f.Snapshot().Ranks[0].Load.Health()
	check := func(asleep bool) {
		t.Helper()
		if h.Admits(0, now) == asleep || f.AnyRestricted() != asleep || h.View().Asleep != asleep || h.View().State != HealthReady {
			t.Errorf("asleep %v: %+v, admits %v", asleep, h.View(), h.Admits(0, now))
		}
	}
	check(false)
	h.ObserveAsleep(true)
	h.ObserveServed(now) // a request that was on its way
	check(true)
	h.ObserveAsleep(false)
	check(false)
	h.ObserveAsleep(true)
	f.Remove("a")
	if f.AnyRestricted() {
		t.Error("a worker that left is restricted")
	}
}

// TestUpdate changes one field of a worker, and keeps the others.
func TestUpdate(t *testing.T) {
	f := New(Hooks{})
	if _, err := f.Put(Worker{Name: "a", Model: "m", Address: "10.0.0.1:80", Ranks: 1, State: Ready, Blocks: 5}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		changed, err := f.Update("a", func(w *Worker) { w.MaxModelLen = 100 })
		if err != nil || changed != want {
			t.Errorf("changed %v, %v", changed, err)
		}
	}
	if w := f.Snapshot().Worker("a"); w.MaxModelLen != 100 || w.Blocks != 5 {
		t.Errorf("%+v", w)
	}
	if changed, err := f.Update("b", func(*Worker) {}); changed || err != nil {
		t.Errorf("a worker that is not there: %v, %v", changed, err)
	}
}

// TestHalfOfAPoolStays: of five workers whose connections are reset, two leave. One that refuses connections leaves all the same.
func TestHalfOfAPoolStays(t *testing.T) {
	f := New(Hooks{})
	now := time.Unix(1000, 0)
	names := []string{"a", "b", "c", "d", "e"}
	for _, name := range names {
		if _, err := f.Put(Worker{Name: name, Model: "m", Address: "10.0.0.1:80", Ranks: 2, State: Ready}); err != nil {
			t.Fatal(err)
		}
	}
	probe := func(name string, p Probe) {
		now = now.Add(time.Second)
		p.Asked = now
		f.ObserveProbe(name, "10.0.0.1:80", p, now)
	}
	down := func() (n int) {
		for _, w := range f.Snapshot().Workers {
			if w.State == Down {
				n++
			}
		}
		return n
	}

	for range 3 {
		for _, name := range names {
			probe(name, Probe{Detail: "connection reset"})
		}
	}
	if n := down(); n != 2 {
		t.Errorf("%d of 5 silent workers are down", n)
	}
	probe("e", Probe{Refused: true, Detail: "connection refused"})
	if n := down(); n != 3 {
		t.Errorf("%d are down after a refusal", n)
	}
}

// TestCaching: an engine without a prefix cache has none until it reports one. After a doubt it has none until it has answered a later
// question.
func TestCaching(t *testing.T) {
	f := New(Hooks{})
	if _, err := f.Put(Worker{Name: "a", Model: "m", Address: "10.0.0.1:1", Ranks: 2, State: Ready}); err != nil {
		t.Fatal(err)
	}
	h, rank := f.Snapshot().Ranks[0].Load.Health(), f.Snapshot().Ranks[1].Load
	now := time.Unix(1000, 0)
	for _, step := range []struct {
		what        string
		do          func()
		caches, off bool
	}{
		{"at first", func() {}, true, false},
		{"it reports none", func() { h.ObserveCaching(true, now) }, false, true},
		{"it reports one", func() { h.ObserveCaching(false, now) }, true, false},
		{"in doubt", func() { h.DoubtCaching(now.Add(2)) }, false, false},
		{"an answer of the process before", func() { h.ObserveCaching(false, now.Add(1)) }, false, false},
		{"the new process has none", func() { h.ObserveCaching(true, now.Add(3)) }, false, true},
		{"in doubt again", func() { h.DoubtCaching(now.Add(4)) }, false, false},
		{"the new process has one", func() { h.ObserveCaching(false, now.Add(5)) }, true, false},
		{"in doubt once more", func() { h.DoubtCaching(now.Add(6)) }, false, false},
		{"the process before answers without metrics", func() { h.EndCachingDoubt(now.Add(5)) }, false, false},
		{"the new process answers without metrics", func() { h.EndCachingDoubt(now.Add(7)) }, true, false},
		{"it has none", func() { h.ObserveCaching(true, now.Add(8)) }, false, true},
		{"its metrics are not read once", func() { h.EndCachingDoubt(now.Add(9)) }, false, true},
	} {
		step.do()
		if caches, off := rank.Caches(), rank.HealthView().CachingOff; caches != step.caches || off != step.off {
			t.Errorf("%s: caches %v, off %v", step.what, caches, off)
		}
	}
}
