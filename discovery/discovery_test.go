package discovery_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func worker(name string) fleet.Worker {
	return fleet.Worker{Name: name, Model: "sim", Address: "10.0.0.1:8000", Ranks: 1, Epoch: 1, State: fleet.Ready}
}

// members returns the names of a fleet's workers with their states.
func members(f *fleet.Fleet) string {
	var words []string
	for _, w := range f.Snapshot().Workers {
		words = append(words, w.Name+" "+w.State.String())
	}
	return strings.Join(words, ", ")
}

// TestListedWorkers: the fleet has the workers of the list, and follows its changes. An engine's own reports stay, and
// another engine is another epoch.
func TestListedWorkers(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	a, b := worker("a"), worker("b")
	a.HealthPath = "/health"
	a.Epoch, b.Epoch = 0, 0
	l, err := discovery.NewListed(f, []fleet.Worker{a, b})
	if err != nil {
		t.Fatal(err)
	}
	set := func(want string, workers ...fleet.Worker) {
		t.Helper()
		if err := l.Set(workers); err != nil {
			t.Error(err)
		}
		if got := members(f); got != want {
			t.Errorf("members: %s, want %s", got, want)
		}
	}
	version := f.Snapshot().Version
	set("a starting, b ready", a, b)
	if f.Snapshot().Version != version {
		t.Error("the same list changed something")
	}
	before, _ := f.Snapshot().Rank("b", 0)
	if _, err := f.Update("b", func(w *fleet.Worker) { w.MaxModelLen, w.Blocks = 100, 50 }); err != nil {
		t.Fatal(err)
	}

	b.Weight, b.Taints, b.PlaceFrom = 7, "zone=a,", fleet.ByNodeLabels
	set("b ready, c ready", b, worker("c"))
	after, _ := f.Snapshot().Rank("b", 0)
	if w := after.Worker; after.Load != before.Load || w.Weight != 7 || w.MaxModelLen != 100 || w.Blocks != 50 || w.Epoch != 0 {
		t.Errorf("b is %+v", w)
	} else if place := w.Place(); place.String() != "zone=a" || w.PlaceFrom != fleet.ByNodeLabels {
		t.Errorf("b is at %s, by %s", place.String(), w.PlaceFrom)
	}
	b.Address = "10.0.0.9:8000"
	set("b ready, c ready", b, worker("c"))
	moved, _ := f.Snapshot().Rank("b", 0)
	if moved.Load == before.Load || moved.Worker.Epoch != 1 || moved.Worker.MaxModelLen != 0 || l.Workers()[0].Epoch != 1 {
		t.Errorf("b has moved and is %+v", moved.Worker)
	}

	l.Drop([]fleet.Worker{worker("c"), worker("d")})
	if got := members(f); got != "c ready" || l.Has("b") || !l.Has("c") {
		t.Errorf("members: %s", got)
	}
}

// TestListRefusesAWrongWorker: the error names the worker, and no worker leaves the fleet.
func TestListRefusesAWrongWorker(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	l, err := discovery.NewListed(f, []fleet.Worker{worker("a")})
	if err != nil {
		t.Fatal(err)
	}
	bad := worker("b")
	bad.Address = "localhost:8000"
	err = l.Set([]fleet.Worker{bad})
	if err == nil || !strings.HasPrefix(err.Error(), `add worker of the configuration: worker b: address "localhost:8000"`) {
		t.Errorf("got %v", err)
	}
	if got := members(f); got != "a ready" {
		t.Errorf("members: %s", got)
	}
}

// cluster is a bus and a fleet that follows it.
type cluster struct {
	t     *testing.T
	bus   *bus.Bus
	fleet *fleet.Fleet
	log   testkit.Log
}

// follow makes f follow a new bus until the test ends. The fields that every test needs are filled in.
func follow(t *testing.T, f *fleet.Fleet, cfg discovery.Config) *cluster {
	b := testkit.Bus(t)
	c := &cluster{t: t, bus: b, fleet: f}
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		cfg.Bus, cfg.Fleet = b, f
		cfg.Log = c.log.Logger()
		if err := discovery.Bus(ctx, cfg); err != nil {
			t.Error(err)
		}
	})
	done.Go(func() { discovery.Probe(ctx, discovery.ProbeConfig{Fleet: f, Log: c.log.Logger()}) })
	t.Cleanup(func() { stop(); done.Wait() })
	return c
}

// held is a worker's lease.
type held struct {
	mu      sync.Mutex
	worker  fleet.Worker // guarded by mu
	changed chan struct{}
	release func()
}

// hold asserts a lease until release, or the end of the test.
func (c *cluster) hold(w fleet.Worker) *held { return c.holdBy(w, func() {}) }

// holdBy is hold; it calls before whenever the lease is about to be written.
func (c *cluster) holdBy(w fleet.Worker, before func()) *held {
	h := &held{worker: w, changed: make(chan struct{}, 1)}
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		_ = c.bus.HoldWorker(ctx, bus.Claim{Name: w.Name, Changed: h.changed, Current: func() fleet.Worker {
			before()
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.worker
		}})
	})
	h.release = func() { stop(); done.Wait() }
	c.t.Cleanup(h.release)
	return h
}

func (h *held) set(change func(w *fleet.Worker)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.worker)
	h.changed <- struct{}{}
}

func (c *cluster) await(want string) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); members(c.fleet) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("members are %q and do not become %q\n%s", members(c.fleet), want, &c.log)
		}
	}
}

// wantLog waits until the log has these lines: some are written after the fleet has changed.
func (c *cluster) wantLog(lines ...string) {
	c.t.Helper()
	for _, l := range lines {
		c.awaitLog(l)
	}
}

// TestFleetFollowsLeases: workers come, change state and go, and the log has a line for each.
func TestFleetFollowsLeases(t *testing.T) {
	c := follow(t, fleet.New(fleet.Hooks{}), discovery.Config{})
	starting := worker("a")
	starting.State = fleet.Starting
	a := c.hold(starting)
	c.await("a starting")
	a.set(func(w *fleet.Worker) { w.State = fleet.Ready })
	c.await("a ready")
	b := c.hold(worker("b"))
	c.await("a ready, b ready")
	a.set(func(w *fleet.Worker) { w.State = fleet.Down })
	c.await("a down, b ready")
	a.set(func(w *fleet.Worker) { w.State, w.Epoch, w.Address = fleet.Ready, 2, "10.0.0.2:8000" })
	c.await("a ready, b ready")
	if w := c.fleet.Snapshot().Worker("a"); w.Epoch != 2 || w.Address != "10.0.0.2:8000" {
		t.Errorf("a is %+v", w)
	}
	a.release()
	c.await("b ready")
	b.release()
	c.await("")
	c.wantLog(
		`level=INFO msg="worker changed state" worker=a state=starting model=sim address=10.0.0.1:8000`,
		`level=INFO msg="worker changed state" worker=a state=ready model=sim address=10.0.0.1:8000`,
		`level=WARN msg="worker down" worker=a model=sim`,
		`level=INFO msg="worker changed state" worker=a state=ready model=sim address=10.0.0.2:8000`,
		`level=INFO msg="worker gone" worker=a`,
	)
}

// TestSmallChangesAreLoggedForDebugging: a change of the weight is applied, and logged at level debug only.
func TestSmallChangesAreLoggedForDebugging(t *testing.T) {
	c := follow(t, fleet.New(fleet.Hooks{}), discovery.Config{})
	a := c.hold(worker("a"))
	c.await("a ready")
	a.set(func(w *fleet.Worker) { w.Weight = 5 })
	testkit.Eventually(t, "the weight is applied", func() bool { return c.fleet.Snapshot().Worker("a").Weight == 5 })
	if n := strings.Count(c.log.String(), "level=INFO"); n != 1 {
		t.Errorf("%d lines:\n%s", n, &c.log)
	}
}

// TestConfiguredWorkersIgnoreLeases: no lease changes or removes a worker that the configuration names.
func TestConfiguredWorkersIgnoreLeases(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	listed, err := discovery.NewListed(f, []fleet.Worker{worker("mine")})
	if err != nil {
		t.Fatal(err)
	}
	c := follow(t, f, discovery.Config{Listed: listed})
	down := worker("mine")
	down.State = fleet.Down
	mine := c.hold(down)
	other := c.hold(worker("other"))
	c.await("mine ready, other ready")
	mine.release()
	other.release()
	c.await("mine ready")
}

// TestReadyWorkerSettlesFirst: a worker that becomes ready beside others stays in state starting until Envoys have its endpoint. A
// renewal of its lease does not extend that time.
func TestReadyWorkerSettlesFirst(t *testing.T) {
	// Longer than the lease's assertions are apart, which come every third of a second, and long enough to see the state on a busy machine.
	const settle = 3 * time.Second
	c := follow(t, fleet.New(fleet.Hooks{}), discovery.Config{Settle: settle})
	c.hold(worker("first"))
	c.await("first ready")
	began := time.Now()
	second := c.hold(worker("second"))
	c.await("first ready, second starting")
	c.await("first ready, second ready")
	if took := time.Since(began); took < settle {
		t.Errorf("it settled for %s only", took)
	}
	// It is known now, and does not settle again.
	second.set(func(w *fleet.Worker) { w.State = fleet.Down })
	c.await("first ready, second down")
	second.release()
	c.await("first ready")
}

// TestSettlingWorkerThatChanges: a worker that goes or changes while it settles does not come back with its old state.
func TestSettlingWorkerThatChanges(t *testing.T) {
	const settle = 2 * time.Second // long enough to see the state on a busy machine
	c := follow(t, fleet.New(fleet.Hooks{}), discovery.Config{Settle: settle})
	c.hold(worker("first"))
	c.await("first ready")
	second := c.hold(worker("second"))
	c.await("first ready, second starting")
	second.release()
	c.await("first ready")
	third := c.hold(worker("third"))
	c.await("first ready, third starting")
	third.set(func(w *fleet.Worker) { w.State = fleet.Down })
	c.await("first ready, third down")
	for began := time.Now(); time.Since(began) < settle+100*time.Millisecond; time.Sleep(time.Millisecond) {
		if got := members(c.fleet); got != "first ready, third down" {
			t.Fatalf("members are %s again", got)
		}
	}
}
