// Package virtual publishes the wanted workers of a plan on the bus, for a program that starts and stops workers and is not Stator's: a
// script, an operator of a platform, a person.
//
// The program watches the key "wanted" of the bucket stator-CLUSTER-scale, a JSON object, carries it out, and writes {"decision": N} to the
// key "done". Decisions that it has not carried out yet do not stop the planner: the next plan counts the workers that are there.
package virtual

import (
	"context"
	"reflect"
	"slices"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/plan"
)

// Bus has the methods of the bus that the connector needs. *bus.Bus implements it.
type Bus interface {
	PutWanted(ctx context.Context, w bus.Wanted) error
	Wanted(ctx context.Context) (bus.Wanted, bus.Done, error)
}

// Connector publishes plans. Create it with [New]. It belongs to one goroutine.
type Connector struct {
	bus  Bus
	last bus.Wanted
}

// New returns a connector that has published nothing.
func New(b Bus) *Connector { return &Connector{bus: b} }

// Apply publishes the wanted pools of a plan if they differ from the last ones. Its decisions go on after the decisions of
// earlier planners.
func (c *Connector) Apply(ctx context.Context, p plan.Plan) error {
	next := wanted(&p)
	if c.last.Term != p.Term {
		there, _, err := c.bus.Wanted(ctx)
		if err != nil {
			return err
		}
		c.last = bus.Wanted{Decision: there.Decision, Term: p.Term}
	}
	if slices.EqualFunc(next, c.last.Pools, equal) {
		return nil
	}

	w := bus.Wanted{Decision: c.last.Decision + 1, Term: p.Term, Pools: next}
	if err := c.bus.PutWanted(ctx, w); err != nil {
		return err
	}
	c.last = w
	return nil
}

// equal reports whether two pools ask for the same. Reasons have figures that change with each plan, and alone are no change.
func equal(a, b bus.WantedPool) bool {
	a.Reason, b.Reason = "", ""
	return reflect.DeepEqual(a, b)
}

// wanted returns the pools of a plan.
func wanted(p *plan.Plan) []bus.WantedPool {
	var out []bus.WantedPool
	for i := range p.Pools {
		pool := &p.Pools[i]
		w := bus.WantedPool{Model: pool.Model, Role: pool.Role.String(), Replicas: pool.Replicas, Drained: []string{}, Reason: pool.Reason}
		for _, x := range pool.Workers {
			if x.Drain {
				w.Drained = append(w.Drained, x.Name)
			}
		}
		out = append(out, w)
	}
	return out
}
