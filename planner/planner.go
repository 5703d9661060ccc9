// Package planner is the loop around plan.Next: it observes the fleet, makes a plan, and
// publishes it when it has changed.
//
// It does not decide (package plan does) and does not start or stop workers: agents and
// connectors read the plan.
//
// # Concurrency
//
// Run owns its one goroutine, the caller's. Current may be called from any.
package planner

import (
	"context"
	"log/slog"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// Publisher takes a plan to those who carry it out. *bus.Bus is one.
type Publisher interface {
	PublishPlan(ctx context.Context, p plan.Plan) error
	// Back returns a channel that is closed when the way there next opens again after it was
	// lost: what was published may be forgotten by then.
	Back() <-chan struct{}
}

// interval is how often the plan is looked at again even when nothing has happened.
const interval = 10 * time.Second

// Planner makes plans for one cluster.
type Planner struct {
	pools   atomic.Pointer[[]plan.Configured]
	reload  chan struct{}
	fleet   *fleet.Fleet
	to      Publisher
	log     *slog.Logger
	metrics *metrics
	current atomic.Pointer[plan.Plan]
	// Touched by Run alone.
	again bool // the current plan must be published once more
}

// New returns a planner that does nothing until Run.
func New(pools []plan.Configured, f *fleet.Fleet, to Publisher, log *slog.Logger, reg prometheus.Registerer) *Planner {
	p := &Planner{reload: make(chan struct{}, 1), fleet: f, to: to, log: log, metrics: newMetrics(reg)}
	p.pools.Store(&pools)
	p.current.Store(&plan.Plan{})
	return p
}

// Reload replaces the configured pools; Run plans what follows from them.
func (p *Planner) Reload(pools []plan.Configured) {
	p.pools.Store(&pools)
	select {
	case p.reload <- struct{}{}:
	default: // a look is due already
	}
}

// Current is the plan that was published last.
func (p *Planner) Current() plan.Plan { return *p.current.Load() }

// Run plans at every change of the fleet or the configuration and every ten seconds, until ctx
// ends.
func (p *Planner) Run(ctx context.Context) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		changed, back := p.fleet.Changed(), p.to.Back()
		p.once(ctx)
		select {
		case <-changed:
		case <-p.reload:
		case <-back:
			p.again = true
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// once publishes the next plan where it differs, or where the last may be forgotten. A plan that cannot be published stays
// unpublished until the next look: the last one stays in force.
func (p *Planner) once(ctx context.Context) {
	next := plan.Next(plan.Observation{Pools: *p.pools.Load(), Fleet: p.fleet.Snapshot()})
	if !p.again && reflect.DeepEqual(next, p.Current()) {
		return
	}
	if err := p.to.PublishPlan(ctx, next); err != nil {
		if ctx.Err() == nil {
			p.metrics.plans.WithLabelValues("error").Inc()
			p.log.Warn("plan not published; the last one stays in force", "err", err)
		}
		return
	}
	p.metrics.plans.WithLabelValues("published").Inc()
	p.metrics.last.SetToCurrentTime()
	p.current.Store(&next)
	p.again = false
	p.log.Debug("plan published", "pools", len(next.Pools))
}

type metrics struct {
	plans *prometheus.CounterVec
	last  prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		plans: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stator", Subsystem: "planner", Name: "plans_total",
			Help: "Plans by result: published or error.",
		}, []string{"result"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "stator", Subsystem: "planner", Name: "last_plan_timestamp_seconds",
			Help: "When a plan was last published.",
		}),
	}
	for _, result := range []string{"published", "error"} {
		m.plans.WithLabelValues(result)
	}
	reg.MustRegister(m.plans, m.last)
	return m
}
