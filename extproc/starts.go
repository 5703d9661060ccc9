package extproc

import (
	"slices"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/route"
)

// starts returns whether the planner starts a worker of a model because requests wait. The plan of a planner that has ended stays in
// force, and starts nothing.
func (r *Router) starts(model string) route.Start {
	planners, settled := r.parts.Names(bus.PartPlanner, time.Now())
	if len(planners) == 0 && settled {
		return route.Start{Not: "no planner is there that would start one"}
	}
	return startsBy(r.members.Plan(), model)
}

// Idle reports whether a model has no ready worker, and one starts as soon as requests wait.
func (r *Router) Idle(model string) bool {
	ready := slices.ContainsFunc(r.fleet.Snapshot().Workers, func(w *fleet.Worker) bool {
		return w.Model == model && w.State == fleet.Ready
	})
	return !ready && r.starts(model).Not == ""
}

// startsBy returns whether workers of a model start by a plan. Without one of its pools no request could be served.
func startsBy(made plan.Plan, model string) (s route.Start) {
	pools := 0
	for i := range made.Pools {
		p := &made.Pools[i]
		if p.Model != model {
			continue
		}
		pools++
		if p.StartUp == 0 {
			return route.Start{Not: "the planner starts none"}
		}
		s.After = max(s.After, p.StartUp)
		s.Decode = s.Decode || p.Role == fleet.Decode
	}
	if pools == 0 {
		return route.Start{Not: "no planner has made a plan for it"}
	}
	return s
}
