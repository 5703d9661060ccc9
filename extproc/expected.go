package extproc

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/plan"
)

// Expected compares the workers that agents should run with the workers that are there.
type Expected struct {
	Model string
	Role  fleet.Role
	// Node is where the configuration has them. It is empty for agents without a name, and if a plan decides how many there are, on any
	// node.
	Node   string
	ByPlan bool
	// Want is their number, and There the number of those that serve, drain or start.
	Want, There int
}

// expectations are the workers that the configuration has agents run, and the parts that it expects.
type expectations struct {
	list  []Expected
	parts map[bus.PartKind]int // other parts
}

// newExpectations reads a configuration. The workers of launches with one model, role and node are counted together. Those of a pool of
// which a launch can have more or fewer engines are where the planner has room for them.
func newExpectations(cfg *config.Config) *expectations {
	x := &expectations{parts: expectedParts(&cfg.Expected)}
	carriedOut := cfg.Planner.ByAgents() && !cfg.Planner.Advisory
	for i := range cfg.Models {
		m := &cfg.Models[i]
		for k := range m.Launch {
			l := &m.Launch[k]
			role, err := fleet.ParseRole(l.Role)
			if err != nil || l.Target != "" {
				continue // Validate has refused it, or no agent starts it
			}
			// Several launches may share a pool. The planner counts its engines together, wherever they are.
			one := Expected{Model: m.Name, Role: role, Node: l.Node, Want: l.Count}
			if carriedOut && slices.ContainsFunc(m.Launch, func(o config.Launch) bool { return o.Role == l.Role && o.Min < o.Max }) {
				one.ByPlan = true
				one.Node = ""
			}
			x.add(one)
		}
	}
	return x
}

// add adds workers to the entry of their model, role and node. A file may have several launches of them, with other arguments.
func (x *expectations) add(one Expected) {
	for i := range x.list {
		if e := &x.list[i]; e.Model == one.Model && e.Role == one.Role && e.Node == one.Node {
			e.Want += one.Want
			return
		}
	}
	x.list = append(x.list, one)
}

// compare returns the expectations with the numbers of a plan, if they follow one, and of a fleet. Workers that the configuration lists
// are left out: they have no agent.
func (x *expectations) compare(made plan.Plan, f *fleet.Snapshot, listed func(name string) bool) []Expected {
	out := make([]Expected, len(x.list))
	for i, e := range x.list {
		// A pool that the plan does not have yet begins with the numbers of the configuration.
		for k := range made.Pools {
			if p := &made.Pools[k]; e.ByPlan && p.Model == e.Model && p.Role == e.Role {
				e.Want = p.Replicas
			}
		}

		// A worker that is down is as good as absent, whatever its lease says. One that starts is on its way.
		for _, w := range f.Workers {
			ofPool := w.Model == e.Model && w.Role == e.Role && (e.ByPlan || fleet.NodeOf(w.Name) == e.Node)
			if ofPool && w.State != fleet.Down && !listed(w.Name) {
				e.There++
			}
		}
		out[i] = e
	}
	return out
}

// Expected returns the workers that agents should run, by model and node.
func (r *Router) Expected() []Expected {
	return r.expected.Load().compare(r.members.Plan(), r.fleet.Snapshot(), r.members.Has)
}

// absent returns an error that names the nodes and models of which workers are missing; nil if none is.
func (r *Router) absent() error {
	var errs []error
	// While an agent starts its engines they are missing, too: the process serves with less than it should have.
	for _, e := range r.Expected() {
		if e.There < e.Want {
			errs = append(errs, errors.New(e.String()))
		}
	}
	// Plans have terms, so the zero value is none.
	scaled := func(e Expected) bool { return e.ByPlan }
	if slices.ContainsFunc(r.expected.Load().list, scaled) && r.members.Plan().Term == 0 {
		errs = append(errs, errors.New("no plan has arrived: no planner leads, or the bus has lost its plan"))
	}
	return errors.Join(errs...)
}

// String describes the entry for people, as in "node gpu-1: 1 of 2 workers of model m are there".
func (e *Expected) String() string {
	var b strings.Builder
	switch {
	case e.ByPlan:
		b.WriteString("the plan: ")
	case e.Node == "":
		b.WriteString("agents without a node: ")
	default:
		b.WriteString("node " + e.Node + ": ")
	}
	fmt.Fprintf(&b, "%d of %d ", e.There, e.Want)
	if e.Role != fleet.Aggregated {
		b.WriteString(e.Role.String() + " ")
	}
	b.WriteString("workers of model " + e.Model + " are there")
	return b.String()
}

// The workers of agents. Those that the file lists, and those that are discovered, have no expected number.
var (
	workersExpected = metric.Desc("fleet", "expected_workers",
		"Workers that agents should run, by the configuration, or by the plan if it decides: then without a node.", "model", "role", "node")
	workersThere = metric.Desc("fleet", "present_workers", "Workers of these that are there: they serve, start or drain.",
		"model", "role", "node")
)

// collectExpected compares the fleet with the configuration and the plan. The series of a node or a model that the configuration has no
// more are gone with the next collection.
func (r *Router) collectExpected(out metric.Scrape) {
	// Both metrics have the same labels, so that a difference is one expression of Prometheus.
	for _, e := range r.Expected() {
		out.Gauge(workersExpected, float64(e.Want), e.Model, e.Role.String(), e.Node)
		out.Gauge(workersThere, float64(e.There), e.Model, e.Role.String(), e.Node)
	}
}
