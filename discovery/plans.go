package discovery

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/plan"
)

// PlansConfig is read by NewPlans and not changed later.
type PlansConfig struct {
	Fleet *fleet.Fleet
	Log   *slog.Logger
	// Metrics registers the metrics; nil for none.
	Metrics prometheus.Registerer
}

// Plans applies the weights and drains of the cluster's plans to a fleet. Create it with [NewPlans].
//
//	event                            effect on the fleet
//	plan of the last term, or later  its weights and drains replace the weights and drains of the last plan
//	plan of an earlier term          none; it is counted. If the last term is ahead of the clock, the same as a later one
//	plan that cannot be used         none; it is counted
//	bus lost                         none: the last plan stays
//
// The router and the control plane apply the same plans, so that Envoy spreads the requests without a pick as the router
// spreads the others.
type Plans struct {
	PlansConfig
	applied *prometheus.CounterVec // by result; nil without metrics
	term    prometheus.Gauge       // nil without metrics

	mu   sync.Mutex
	made plan.Plan // guarded by mu; the last one that was applied
}

// The values of the label result.
const (
	planApplied = "applied"
	planEarlier = "earlier_term"
	planRefused = "refused"
)

// NewPlans returns a follower that has applied no plan. It registers the metrics.
func NewPlans(cfg PlansConfig) *Plans {
	p := &Plans{PlansConfig: cfg}
	if cfg.Metrics == nil {
		return p
	}

	part := metric.For(cfg.Metrics, "plan")
	p.applied = part.Counters("received_total", "Plans that were received for the fleet, by result: applied, earlier_term "+
		"(of a planner that is not the leader any more; it has no effect) or refused.", "result")
	for _, result := range []string{planApplied, planEarlier, planRefused} {
		p.applied.WithLabelValues(result)
	}
	p.term = part.Gauge("term", "Term of the last plan that was applied to the fleet.")
	return p
}

// Run applies the plans on the bus until ctx ends.
func (p *Plans) Run(ctx context.Context, b *bus.Bus) error { return b.WatchPlan(ctx, p.Apply) }

// Apply applies one plan. It is safe for concurrent use.
func (p *Plans) Apply(made plan.Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// A last term that is ahead of the clock is of a planner whose clock was, and proves nothing about the next one. The bus refuses plans
	// of earlier terms by itself, as long as it has the last one.
	if made.Term < p.made.Term && p.made.Term <= uint64(time.Now().UnixMilli()) {
		p.count(planEarlier)
		p.Log.Warn("plan of an earlier term has no effect", "term", made.Term, "last", p.made.Term)
		return
	}

	changed, err := p.Fleet.SetPlanned(planned(made))
	if err != nil {
		p.count(planRefused)
		p.Log.Error("plan not applied; the last one stays in force", "term", made.Term, "err", err)
		return
	}
	p.made = made
	p.count(planApplied)
	if p.term != nil {
		p.term.Set(float64(made.Term))
	}
	if changed {
		p.Log.Debug("plan changed weights or drains", "term", made.Term)
	}
}

// Plan returns the last plan that was applied; the zero value before the first.
func (p *Plans) Plan() plan.Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made
}

// count counts a plan.
func (p *Plans) count(result string) {
	if p.applied != nil {
		p.applied.WithLabelValues(result).Inc()
	}
}

// planned returns the settings of a plan for workers, of all pools.
func planned(made plan.Plan) (out []fleet.Planned) {
	for i := range made.Pools {
		for _, w := range made.Pools[i].Workers {
			out = append(out, fleet.Planned{Name: w.Name, Weight: w.Weight, Drain: w.Drain})
		}
	}
	return out
}
