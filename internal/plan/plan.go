// Package plan decides how many workers each pool should have, which of them are drained, and what share of traffic each gets.
//
// [Next] is the whole decision, pure: from observations to a [Plan] with its reasons, printable and comparable. It does not start
// or stop anything; connectors do. An [Observation] has everything that a plan depends on, the configuration included, so a plan
// can be made again from a log of observations.
//
// All functions are pure; a Plan must not change once it is published.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Plan has the number of workers that each pool should have. Pools are sorted by model and role.
type Plan struct {
	// Term is the number of the leader that published the plan: a plan of an earlier term than the last one has no effect.
	Term  uint64
	Pools []Pool
}

// Pool is the plan of one model's workers in one role.
type Pool struct {
	Model string
	Role  fleet.Role
	// Replicas is the number of workers that there should be. Ready is the number that were ready when the plan was made.
	Replicas, Ready int
	// Rate is the requests per second that are expected now, and Expected the rate that the plan is made for: the rate expected
	// when a new worker is ready, and the requests that wait until then. Both are 0 if no forecast counts.
	Rate, Expected float64
	// StartUp is the time in which a worker is ready that starts because requests wait, as far as is known, in whole milliseconds; 0 if
	// none starts for that reason. Pools of models without IdleAfter have 0.
	StartUp time.Duration `json:",omitempty"`
	// Workers are those whose weight or drain the plan sets, sorted by name. Others keep their configured weight.
	Workers []Planned
	// Reason is one sentence about why.
	Reason string
	// Unknown lists figures that were not known.
	Unknown []string
}

// Planned has the settings of a plan for one worker.
type Planned struct {
	Name string
	// Weight is its share of traffic: 1 to fleet.MaxWeight.
	Weight uint32
	// Drain means that it gets no new requests, and ends when its present requests have ended.
	Drain bool
}

// Next returns the plan for an observation, and the state for the next one.
func Next(s State, o Observation) (Plan, State) {
	var pools []*pool
	for i := range o.Settings.Models {
		m := &o.Settings.Models[i]
		memory := s.memoryOf(m)
		pools = append(pools, memory.plan(&o, m)...)
		s = s.with(memory)
	}
	slices.SortFunc(pools, func(a, b *pool) int {
		return cmp.Or(strings.Compare(a.model.Name, b.model.Name), int(a.configured.Role)-int(b.configured.Role))
	})

	// All models share the budget, so it is applied when all needs are there.
	b := &o.Settings.Budget
	fit(pools, float64(b.MinGPUs), float64(b.MaxGPUs), "GPUs", func(c *Configured) float64 { return float64(max(1, c.GPUs)) })
	fit(pools, 0, b.MaxWatts, "W", func(c *Configured) float64 { return c.Watts })

	var out Plan
	for _, p := range pools {
		if p.model.UpOnly {
			p.onlyAdd()
		}
		p.explainStarts(o.At)
		p.explainWait(o.Waits)
		out.Pools = append(out.Pools, p.result(o.At))
	}
	return out, s
}

// plan returns the pools of a model with their needs.
func (m *memory) plan(o *Observation, model *Model) []*pool {
	var d *Demand
	for i := range o.Demand {
		if o.Demand[i].Model == model.Name {
			d = &o.Demand[i]
		}
	}
	rate := -1.0
	if d != nil && d.Over > 0 {
		rate = float64(d.Requests) / d.Over.Seconds()
	}
	m.observeDemand(o, d)

	var pools []*pool
	shape := m.shape.capacity()
	for i := range model.Pools {
		c := &model.Pools[i]
		pools = append(pools, newPool(o, model, c, m.pool(c.Role), shape, rate, d))
	}
	switch {
	case model.Rule != nil:
		m.planByRule(o, d, model.Rule, pools)
	case model.Algorithm == AlgorithmSLA:
		m.planSLA(o, d, pools)
	case model.Algorithm == AlgorithmReactive:
		for _, p := range pools {
			p.planReactive(o)
		}
	default:
		for _, p := range pools {
			p.replicas = p.configured.Replicas
			p.reason = "the configuration names that many"
		}
	}
	m.rest(o, model, d, pools)
	for _, p := range pools {
		p.keep(o.Held)
	}
	return pools
}

// isConfigured reports whether the configured replicas are the plan.
func (m *Model) isConfigured() bool {
	return m.Rule == nil && (m.Algorithm == "" || m.Algorithm == AlgorithmConfigured)
}

// result returns the plan of a pool, and remembers it.
func (p *pool) result(now time.Time) Pool {
	out := Pool{
		Model: p.model.Name, Role: p.configured.Role, Replicas: p.replicas, Ready: p.count(fleet.Ready),
		Reason: p.reason, Unknown: p.unknown, Rate: p.rate, Expected: p.expected, StartUp: p.wakesIn(),
	}
	p.memory.replicas = p.replicas
	if p.model.isConfigured() {
		return out
	}

	var drain map[string]bool
	if !p.held && p.rollout == nil { // otherwise its autoscaler or its controller chooses which of them end
		var spared *Worker
		drain, spared = p.victims(now)
		if spared != nil {
			out.Reason += fmt.Sprintf("; %s stays, the last %s worker of its place: %s", spared.Name, spared.Role, spared.Place.String())
		}
	}
	var rest []Worker
	p.memory.drained = nil
	for _, w := range p.workers {
		if drain[w.Name] {
			p.memory.drained = append(p.memory.drained, w.Name)
			out.Workers = append(out.Workers, Planned{Name: w.Name, Weight: 1, Drain: true})
			continue
		}
		served := *w
		if served.State == fleet.Draining {
			served.State = fleet.Ready // it comes back
		}
		rest = append(rest, served)
	}

	p.memory.weights = Weights(rest, p.memory.weights)
	out.Workers = append(out.Workers, p.memory.weights...)
	slices.SortFunc(out.Workers, func(a, b Planned) int { return strings.Compare(a.Name, b.Name) })
	return out
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
