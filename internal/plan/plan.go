// Package plan decides how many workers each pool should have, which of them are drained, and what share of traffic each gets.
//
// [Next] is the whole decision, pure: from what was observed to a [Plan] with its reasons, printable and comparable. It does not
// start or stop anything; connectors do. An [Observation] has everything that a plan depends on, the configuration included, so a
// plan can be made again from a log of observations.
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
	// Term is the number of the leader that published the plan: a plan of an earlier term than the last one has no effect.
	Term  uint64
	Pools []Pool
}

// Pool is the plan of one model's workers in one role.
type Pool struct {
	Model string
	Role  fleet.Role
	// Replicas is how many workers there should be. Ready is how many were ready when the plan was made.
	Replicas, Ready int
	// Workers are those whose weight or drain the plan sets, sorted by name. Others have what they are configured with.
	Workers []Planned
	// Reason is one sentence about why.
	Reason string
	// Unknown lists figures that were not known.
	Unknown []string
}

// Planned is what a plan sets for one worker.
type Planned struct {
	Name string
	// Weight is its share of traffic: 1 to fleet.MaxWeight.
	Weight uint32
	// Drain means that it gets no new requests, and ends when those that it has have ended.
	Drain bool
}

// State is what plans remember of earlier observations. It is a value: Next does not change its argument.
type State struct{}

// Next returns the plan for an observation, and the state for the next one.
func Next(s State, o Observation) (Plan, State) {
	var p Plan
	for i := range o.Settings.Models {
		m := &o.Settings.Models[i]
		for _, c := range m.Pools {
			p.Pools = append(p.Pools, Pool{
				Model: m.Name, Role: c.Role, Replicas: c.Replicas, Ready: ready(o.Workers, m.Name, c.Role),
				Reason: "the configuration names that many",
			})
		}
	}

	slices.SortFunc(p.Pools, func(a, b Pool) int {
		if n := strings.Compare(a.Model, b.Model); n != 0 {
			return n
		}
		return int(a.Role) - int(b.Role)
	})
	return p, s
}

// ready counts the ready workers of a pool.
func ready(workers []Worker, model string, role fleet.Role) (n int) {
	for i := range workers {
		w := &workers[i]
		if w.Model == model && w.Role == role && w.State == fleet.Ready {
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
