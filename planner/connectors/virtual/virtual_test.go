package virtual_test

import (
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/planner/connectors/virtual"
	"github.com/stator-project/stator/test/testkit"
)

func somePlan(term uint64, replicas int, reason string, drained ...string) plan.Plan {
	pool := plan.Pool{Model: "m", Role: fleet.Decode, Replicas: replicas, Reason: reason}
	for _, name := range drained {
		pool.Workers = append(pool.Workers, plan.Planned{Name: name, Weight: 1, Drain: true})
	}
	pool.Workers = append(pool.Workers, plan.Planned{Name: "z", Weight: 50})
	return plan.Plan{Term: term, Pools: []plan.Pool{pool}}
}

// A program finds on the bus how many workers there should be and which to stop. Decisions grow, also with another leader, and plans that
// differ in their reasons alone are one decision.
func TestWanted(t *testing.T) {
	b := testkit.Bus(t)
	c := virtual.New(b)
	apply := func(c *virtual.Connector, p plan.Plan, want uint64) {
		t.Helper()
		if err := c.Apply(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		w, _, err := b.Wanted(t.Context())
		if err != nil || w.Decision != want || w.Term != p.Term {
			t.Fatalf("%+v, %v: want decision %d of term %d", w, err, want, p.Term)
		}
	}

	apply(c, somePlan(5, 3, "for 10 requests/s"), 1)
	apply(c, somePlan(5, 3, "for 11 requests/s"), 1)
	apply(c, somePlan(5, 2, "for 7 requests/s", "a"), 2)
	w, done, err := b.Wanted(t.Context())
	if err != nil || done.Decision != 0 {
		t.Fatal(done, err)
	}
	if p := w.Pools[0]; p.Model != "m" || p.Role != "decode" || p.Replicas != 2 || len(p.Drained) != 1 || p.Drained[0] != "a" {
		t.Errorf("%+v", p)
	}

	apply(virtual.New(b), somePlan(6, 2, "for 7 requests/s", "a"), 3)
	if err := c.Apply(t.Context(), somePlan(5, 9, "")); err == nil {
		t.Error("a planner of an earlier term must be refused")
	}
}
