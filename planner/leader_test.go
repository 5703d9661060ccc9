package planner_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/planner"
	"github.com/stator-project/stator/test/testkit"
)

// start runs a planner on a connection of its own, until stop is called.
func start(t *testing.T, server *bus.Embedded, replicas int) (p *planner.Planner, stop func()) {
	settings := &plan.Settings{Models: []plan.Model{{Name: "m", Pools: []plan.Configured{{Replicas: replicas}}}}}
	p = planner.New(planner.Config{
		Settings: settings, Fleet: fleet.New(fleet.Hooks{}), Bus: testkit.JoinBus(t, bus.Config{Embedded: server}),
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Interval: 100 * time.Millisecond,
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(ctx) })
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return p, stop
}

// Of two planners on a real bus one leads. When it ends, the other one goes on with a later term, and all that follow plans have its plan.
func TestStandbyTakesOver(t *testing.T) {
	server := testkit.Server(t)
	var mu sync.Mutex
	var last plan.Plan
	follower := testkit.JoinBus(t, bus.Config{Embedded: server})
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() {
		_ = follower.WatchPlan(ctx, func(p plan.Plan) {
			mu.Lock()
			defer mu.Unlock()
			last = p
		})
	})
	defer following.Wait()
	defer cancel()
	published := func() plan.Plan {
		mu.Lock()
		defer mu.Unlock()
		return last
	}

	first, stop := start(t, server, 1)
	testkit.Eventually(t, "the first publishes", func() bool { p := published(); return len(p.Pools) == 1 && p.Pools[0].Replicas == 1 })
	term := published().Term
	second, _ := start(t, server, 2)
	if first.Current().Term == 0 || second.Current().Term != 0 {
		t.Fatal("the first one must lead")
	}

	stop()
	testkit.Eventually(t, "the second publishes", func() bool { p := published(); return p.Pools[0].Replicas == 2 && p.Term > term })
}
