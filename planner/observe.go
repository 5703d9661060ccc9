package planner

import (
	"context"
	"time"

	"github.com/stator-project/stator/internal/plan"
)

// observe collects the observation that a plan is made from.
func (p *Planner) observe(ctx context.Context, between bool) *plan.Observation {
	now := time.Now().Round(0) // without the monotonic clock, which a log does not have
	p.bookings.Expire(now)
	f := p.cfg.Fleet.Snapshot()
	o := &plan.Observation{At: now, Settings: p.settings.Load(), Between: between, Workers: plan.WorkersOf(f)}
	if between {
		if last := p.seen.Load(); last != nil {
			keepLoads(o.Workers, last.Workers)
		}
		o.Demand = p.demands.waiting(now)
		p.observeConnector(o)
		return o
	}

	o.Demand = p.demands.take(now)
	if p.cfg.Demand != nil {
		var err error
		o.Demand, err = p.cfg.Demand.Take(ctx, now)
		if err != nil && ctx.Err() == nil {
			p.metrics.demandErrors.Inc()
			p.cfg.Log.Warn("demand not known", "err", err)
		}
	}
	p.loads.take(o.Workers, f, now)
	p.observeConnector(o)
	return o
}

// observeConnector adds what the connector knows to an observation.
func (p *Planner) observeConnector(o *plan.Observation) {
	if c, ok := p.cfg.Connector.(Observer); ok {
		c.Observe(o)
	}
}

// keepLoads gives workers the loads that were observed last: reports are read once in an interval.
func keepLoads(workers, last []plan.Worker) {
	known := make(map[string]*plan.Load, len(last))
	for i := range last {
		known[last[i].Name] = last[i].Load
	}
	for i := range workers {
		workers[i].Load = known[workers[i].Name]
	}
}
