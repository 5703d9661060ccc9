// Package plan decides how many workers each pool should have.
//
// [Next] is the whole decision, pure: from what was observed to a [Plan] with its reasons,
// printable and comparable. It does not start or stop anything; connectors do.
//
// Today a pool gets the replicas that the configuration names, and that is the reason of the plan. Demand
// and targets do not count yet.
//
// All functions are pure; a Plan must not change once it is published.
package plan

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/stator-project/stator/internal/fleet"
)

// Plan is how many workers there should be. Pools are sorted by model and role.
type Plan struct {
	Pools []Pool
}

// Pool is the plan of one model's workers in one role.
type Pool struct {
	Model string
	Role  fleet.Role
	// Replicas is how many workers there should be. Ready is how many were ready when the plan was made.
	Replicas, Ready int
	// Reason is one sentence about why.
	Reason string
}

// Observation is the input of a plan: the configured pools, and the fleet as it is.
type Observation struct {
	Pools []Configured
	Fleet *fleet.Snapshot
}

// Configured is a pool as the configuration names it.
type Configured struct {
	Model    string
	Role     fleet.Role
	Replicas int
}

// Next returns the plan for an observation.
func Next(o Observation) Plan {
	var p Plan
	for _, c := range o.Pools {
		p.Pools = append(p.Pools, Pool{
			Model: c.Model, Role: c.Role, Replicas: c.Replicas, Ready: ready(o.Fleet, c),
			Reason: "the configuration names that many",
		})
	}
	slices.SortFunc(p.Pools, func(a, b Pool) int {
		if n := strings.Compare(a.Model, b.Model); n != 0 {
			return n
		}
		return int(a.Role) - int(b.Role)
	})
	return p
}

// ready counts the ready workers of a pool. A worker is in the snapshot once for each of its ranks.
func ready(s *fleet.Snapshot, c Configured) (n int) {
	for _, r := range s.Pool(c.Model, c.Role) {
		if r.Number == 0 && r.Worker.State == fleet.Ready {
			n++
		}
	}
	return n
}

// String prints the plan as an aligned table.
func (p Plan) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MODEL\tROLE\tREPLICAS\tREADY\tREASON")
	for _, pool := range p.Pools {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", pool.Model, pool.Role, pool.Replicas, pool.Ready, pool.Reason)
	}
	_ = w.Flush() // writing to a strings.Builder never fails
	return b.String()
}
