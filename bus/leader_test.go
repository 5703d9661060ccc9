package bus_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/test/testkit"
)

// candidate is a process that wants to lead.
type candidate struct {
	bus  *bus.Bus
	term atomic.Uint64 // 0 while it does not lead
	stop context.CancelFunc
	done chan struct{}
}

func newCandidate(t *testing.T, b *bus.Bus) *candidate {
	ctx, stop := context.WithCancel(t.Context())
	c := &candidate{bus: b, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		_ = b.Lead(ctx, func(ctx context.Context, term uint64) {
			c.term.Store(term)
			<-ctx.Done()
			c.term.Store(0)
		})
	}()
	t.Cleanup(c.end)
	return c
}

func (c *candidate) end() {
	c.stop()
	<-c.done
}

// One planner leads at a time. When it stops, another one leads with a later term, and a plan of the first one is refused.
func TestOneLeads(t *testing.T) {
	e := embed(t, -1)
	defer e.Close()
	a := newCandidate(t, connect(t, e.URL()))
	testkit.Eventually(t, "the first leads", func() bool { return a.term.Load() > 0 })
	first := a.term.Load()
	b := newCandidate(t, connect(t, e.URL()))
	if err := a.bus.PublishPlan(t.Context(), plan.Plan{Term: first}); err != nil {
		t.Fatal(err)
	}
	if b.term.Load() != 0 {
		t.Fatal("two lead")
	}

	a.end()
	testkit.Eventually(t, "the second leads", func() bool { return b.term.Load() > first })
	if err := b.bus.PublishPlan(t.Context(), plan.Plan{Term: b.term.Load()}); err != nil {
		t.Fatal(err)
	}
	if err := a.bus.PublishPlan(t.Context(), plan.Plan{Term: first}); !errors.Is(err, bus.ErrEarlierTerm) {
		t.Errorf("the plan of an earlier leader: %v", err)
	}
}

// A leader that cannot reach the bus gives up before its lease has expired, and leads again when the bus is back, also if it is empty then.
func TestLeaderLosesTheBus(t *testing.T) {
	port := testkit.Port(t)
	e := embed(t, port)
	a := newCandidate(t, connect(t, e.URL()))
	testkit.Eventually(t, "it leads", func() bool { return a.term.Load() > 0 })
	first := a.term.Load()

	e.Close()
	testkit.Eventually(t, "it gives up", func() bool { return a.term.Load() == 0 })
	again := embed(t, port)
	defer again.Close()
	testkit.Eventually(t, "it leads again", func() bool { return a.term.Load() > first })
}

func TestDemandArrives(t *testing.T) {
	b := testkit.Bus(t)
	got := make(chan *bus.Demand, 100)
	running(t, func(ctx context.Context) error { return b.SubscribeDemand(ctx, func(d *bus.Demand) { got <- d }) })
	sent := &bus.Demand{Replica: "r", Models: []bus.ModelDemand{{Model: "m", Requests: 3, PromptTokens: 900, Waiting: 2}}}

	testkit.Eventually(t, "the demand arrives", func() bool {
		if err := b.PublishDemand(sent); err != nil {
			t.Fatal(err)
		}
		return len(got) > 0
	})
	if d := <-got; d.Replica != "r" || d.Models[0] != sent.Models[0] {
		t.Errorf("sent %+v, got %+v", sent, d)
	}
}
