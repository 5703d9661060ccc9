package local_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/planner/connectors/local"
	"github.com/stator-project/stator/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// agent publishes the slots of a node, and collects its assignments.
type agent struct {
	mu   sync.Mutex
	last bus.Assignment
}

func (a *agent) apply(x bus.Assignment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = x
}

// await waits for an assignment: its term, the workers to run, and those that drain with booked requests.
func (a *agent) await(t *testing.T, want string) {
	t.Helper()
	testkit.Eventually(t, "the assignment "+want, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return fmt.Sprint(a.last.Term, a.last.Run, a.last.Busy) == want
	})
}

// runAll runs functions until the test ends.
func runAll(t *testing.T, all ...func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, f := range all {
		running.Go(func() {
			if err := f(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

func startAgent(t *testing.T, b *bus.Bus, node string, names ...string) *agent {
	a := &agent{}
	slots := bus.Slots{Node: node}
	for _, name := range names {
		slots.Slots = append(slots.Slots, bus.Slot{Name: name, Model: "m"})
	}
	runAll(t,
		func(ctx context.Context) error { return b.HoldSlots(ctx, func() bus.Slots { return slots }, nil) },
		func(ctx context.Context) error { return b.WatchAssignment(ctx, node, a.apply, func() {}) })
	return a
}

func planOf(term uint64, replicas int, drained ...string) plan.Plan {
	pool := plan.Pool{Model: "m", Replicas: replicas}
	for _, name := range drained {
		pool.Workers = append(pool.Workers, plan.Planned{Name: name, Weight: 1, Drain: true})
	}
	return plan.Plan{Term: term, Pools: []plan.Pool{pool}}
}

// TestAgentsGetAssignments: plans reach the agents as assignments, an agent that comes later is used, requests that routers have booked are
// passed on, and a planner that does not lead any more writes nothing.
func TestAgentsGetAssignments(t *testing.T) {
	server := testkit.Server(t)
	b := testkit.JoinBus(t, bus.Config{Embedded: server})
	members := fleet.New(fleet.Hooks{})
	log := &testkit.Log{}
	c := local.New(local.Config{Bus: b, Fleet: members, Drain: time.Minute, Log: log.Logger()})
	runAll(t, c.Run)
	first := startAgent(t, b, "n1", "n1.a", "n1.b")
	apply := func(p plan.Plan) {
		if err := c.Apply(t.Context(), p); err != nil {
			t.Error(err)
		}
	}
	apply(planOf(5, 3))
	first.await(t, "5 [n1.a n1.b] []")
	second := startAgent(t, testkit.JoinBus(t, bus.Config{Embedded: server}), "n2", "n2.a")
	second.await(t, "5 [n2.a] []")

	// A router has booked a request for the worker that the plan drains.
	w := fleet.Worker{Name: "n1.b", Model: "m", Address: "127.0.0.1:1", Engine: "vllm", Epoch: 1, Ranks: 1, Weight: 1, State: fleet.Ready}
	if _, err := members.Put(w); err != nil {
		t.Fatal(err)
	}
	rank, _ := members.Snapshot().Rank("n1.b", 0)
	request := fleet.Amount{Requests: 1}
	rank.Load.Add(request, time.Time{})
	apply(planOf(5, 2, "n1.b"))
	first.await(t, "5 [n1.a] [n1.b]")
	rank.Load.Add(request.Negative(), time.Time{})
	first.await(t, "5 [n1.a] []")

	if err := b.PutAssignment(t.Context(), bus.Assignment{Term: 6, Node: "n1", Run: []string{"n1.b"}}); err != nil {
		t.Fatal(err)
	}
	apply(planOf(5, 0))
	time.Sleep(200 * time.Millisecond) // long enough for a write
	first.await(t, "6 [n1.b] []")
	apply(planOf(7, 0))
	first.await(t, "7 [] []")
	second.await(t, "7 [] []")
}
