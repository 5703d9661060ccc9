package planner

import (
	"context"
	"reflect"

	"github.com/stator-project/stator/internal/plan"
)

// publish publishes a plan if it differs from the last one, and gives it to the connector. A connector thereby knows that this planner
// still leads.
func (p *Planner) publish(ctx context.Context, next plan.Plan) {
	if !reflect.DeepEqual(next, p.published) {
		if err := p.cfg.Bus.PublishPlan(ctx, next); err != nil {
			if ctx.Err() == nil {
				p.metrics.plans.WithLabelValues("error").Inc()
				p.cfg.Log.Warn("plan not published; the last one stays in force", "err", err)
			}
			return
		}
		p.metrics.plans.WithLabelValues("published").Inc()
		p.metrics.last.SetToCurrentTime()
		p.logChanges(&next)
		p.published = next
	}

	if p.advisory.Load() {
		if c, ok := p.cfg.Connector.(Adviser); ok {
			c.Advise(next)
		}
		return
	}
	if p.cfg.Connector == nil {
		return
	}
	err := p.cfg.Connector.Apply(ctx, next)
	if err != nil && ctx.Err() == nil {
		p.metrics.carried.WithLabelValues("error").Inc()
		p.cfg.Log.Warn("plan not carried out; trying again with the next one", "err", err)
		return
	}
	p.metrics.carried.WithLabelValues("accepted").Inc()
}

// logChanges logs the pools whose replicas are others than in the last plan.
func (p *Planner) logChanges(next *plan.Plan) {
	for i := range next.Pools {
		now := &next.Pools[i]
		before := -1
		for k := range p.published.Pools {
			if was := &p.published.Pools[k]; was.Model == now.Model && was.Role == now.Role {
				before = was.Replicas
			}
		}
		if before != now.Replicas {
			p.cfg.Log.Info("plan", "model", now.Model, "role", now.Role.String(), "replicas", now.Replicas, "ready", now.Ready,
				"reason", now.Reason)
		}
	}
}
