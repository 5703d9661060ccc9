package discovery_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/test/testkit"
)

func planOf(term uint64, workers ...plan.Planned) plan.Plan {
	return plan.Plan{Term: term, Pools: []plan.Pool{{Model: "sim", Replicas: 1, Workers: workers}}}
}

// weights returns the names of a fleet's workers with their states and weights.
func weights(f *fleet.Fleet) string {
	var words []string
	for _, w := range f.Snapshot().Workers {
		words = append(words, fmt.Sprintf("%s %s %d", w.Name, w.State, w.Weight))
	}
	return strings.Join(words, ", ")
}

// TestPlansAreFenced: a plan of an earlier term and one that cannot be used have no effect, and are counted.
func TestPlansAreFenced(t *testing.T) {
	var log testkit.Log
	f, reg := fleet.New(fleet.Hooks{}), prometheus.NewRegistry()
	for _, name := range []string{"a", "b"} {
		if _, err := f.Put(worker(name)); err != nil {
			t.Fatal(err)
		}
	}
	p := discovery.NewPlans(discovery.PlansConfig{Fleet: f, Log: log.Logger(), Metrics: reg})
	for i, tt := range []struct {
		made plan.Plan
		want string
	}{
		{planOf(2, plan.Planned{Name: "a", Weight: 50, Drain: true}), "a draining 50, b ready 1"},
		{planOf(1, plan.Planned{Name: "a", Weight: 9}), "a draining 50, b ready 1"},
		{planOf(2, plan.Planned{Name: "b", Weight: 7}), "a ready 1, b ready 7"},
		{planOf(3, plan.Planned{Name: "b"}), "a ready 1, b ready 7"},
		{planOf(2), "a ready 1, b ready 1"}, // the refused plan is not the last one
	} {
		p.Apply(tt.made)
		if got := weights(f); got != tt.want {
			t.Errorf("plan %d: %s, want %s", i, got, tt.want)
		}
	}

	want := `
# HELP stator_plan_received_total Plans that were received for the fleet, by result: applied, earlier_term (of a planner that is not the leader any more; it has no effect) or refused.
# TYPE stator_plan_received_total counter
stator_plan_received_total{result="applied"} 3
stator_plan_received_total{result="earlier_term"} 1
stator_plan_received_total{result="refused"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "stator_plan_received_total"); err != nil {
		t.Error(err)
	}
	if log.Count("plan of an earlier term has no effect") != 1 || log.Count("plan not applied") != 1 {
		t.Error(log.String())
	}
}

// TestPlansComeOverTheBus: the plan that is there and later ones reach the fleet, and the last one stays without the bus.
func TestPlansComeOverTheBus(t *testing.T) {
	var log testkit.Log
	b, f := testkit.Bus(t), fleet.New(fleet.Hooks{})
	publish := func(p plan.Plan) {
		t.Helper()
		if err := b.PublishPlan(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	publish(planOf(1, plan.Planned{Name: "a", Weight: 50}))
	if _, err := f.Put(worker("a")); err != nil {
		t.Fatal(err)
	}

	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = discovery.NewPlans(discovery.PlansConfig{Fleet: f, Log: log.Logger()}).Run(ctx, b) })
	defer all.Wait()
	defer stop()
	await := func(want string) {
		t.Helper()
		testkit.Eventually(t, "workers are "+want, func() bool { return weights(f) == want })
	}
	await("a ready 50")
	publish(planOf(1, plan.Planned{Name: "a", Weight: 50, Drain: true}))
	await("a draining 50")
	stop()
	all.Wait()
	await("a draining 50")
}

// TestDrainedWorkerKeepsItsLease: a worker that only a plan drains stays when its lease expires, while its engine answers. It is
// ready again as soon as a plan does not drain it, although its lease has changed meanwhile.
func TestDrainedWorkerKeepsItsLease(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	c := follow(t, f, discovery.Config{Settle: time.Hour})
	e := startEngine(t)
	h := c.pause(e.worker("a"))
	c.await("a ready")
	c.hold(worker("b"))
	c.await("a ready, b starting")
	drain := func(workers ...fleet.Planned) {
		t.Helper()
		if _, err := f.SetPlanned(workers); err != nil {
			t.Fatal(err)
		}
	}
	drain(fleet.Planned{Name: "a", Weight: 1, Drain: true})
	c.await("a draining, b starting")

	h.set(func(w *fleet.Worker) { w.Blocks = 7 })
	testkit.Eventually(t, "the lease is applied", func() bool { return f.Snapshot().Worker("a").Blocks == 7 })
	drain()
	c.await("a ready, b starting")
	drain(fleet.Planned{Name: "a", Weight: 1, Drain: true})
	h.stopRenewing()
	c.awaitLog("worker without a lease serves")
	c.await("a draining, b starting")
	drain()
	c.await("a ready, b starting")
}

// TestPlanAheadOfTheClock: after a plan of a planner whose clock was ahead, one with the right time applies, as after a restart of the bus.
func TestPlanAheadOfTheClock(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	if _, err := f.Put(worker("a")); err != nil {
		t.Fatal(err)
	}
	p := discovery.NewPlans(discovery.PlansConfig{Fleet: f, Log: new(testkit.Log).Logger()})
	now := time.Now()
	for i, made := range []plan.Plan{
		planOf(uint64(now.Add(30*time.Minute).UnixMilli()), plan.Planned{Name: "a", Weight: 5}),
		planOf(uint64(now.UnixMilli()), plan.Planned{Name: "a", Weight: 6}),
		planOf(uint64(now.Add(-time.Minute).UnixMilli()), plan.Planned{Name: "a", Weight: 7}),
	} {
		p.Apply(made)
		if got, want := weights(f), []string{"a ready 5", "a ready 6", "a ready 6"}[i]; got != want {
			t.Errorf("plan %d: %s, want %s", i, got, want)
		}
	}
}
