// Package planner observes the fleet, makes a plan with plan.Next, and publishes the plan when it changes.
//
// Package plan makes the decision. The planner starts and stops no workers; programs that do read the plan from
// the bus.
//
// # Concurrency
//
// Run uses the goroutine of its caller alone. Current and Reload may be called from any goroutine.
package planner

import (
	"context"
	"log/slog"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/plan"
)

// Publisher publishes plans. *bus.Bus implements it.
type Publisher interface {
	// PublishPlan replaces the published plan.
	PublishPlan(ctx context.Context, p plan.Plan) error
	// Back returns a channel that is closed when a lost connection is back. The published plan may be lost by
	// then.
	Back() <-chan struct{}
}

// interval is how often a plan is made without a change of the fleet or the configuration.
const interval = 10 * time.Second

// Planner makes plans for one cluster.
type Planner struct {
	settings atomic.Pointer[plan.Settings]
	reload   chan struct{}
	fleet    *fleet.Fleet
	to       Publisher
	log      *slog.Logger
	metrics  *metrics
	current  atomic.Pointer[plan.Plan]
	// state is what plans remember. Run alone uses it.
	state plan.State
	// again means that the current plan must be published once more. Run alone uses it.
	again bool
}

// New returns a planner, which makes no plan before Run.
func New(s *plan.Settings, f *fleet.Fleet, to Publisher, log *slog.Logger, reg prometheus.Registerer) *Planner {
	p := &Planner{reload: make(chan struct{}, 1), fleet: f, to: to, log: log, metrics: newMetrics(reg)}
	p.settings.Store(s)
	p.current.Store(&plan.Plan{})
	return p
}

// Reload replaces the settings. Run makes the next plan.
func (p *Planner) Reload(s *plan.Settings) {
	p.settings.Store(s)
	select {
	case p.reload <- struct{}{}:
	default: // Run makes a plan soon
	}
}

// Current returns the last published plan.
func (p *Planner) Current() plan.Plan { return *p.current.Load() }

// Run makes a plan after every change of the fleet or the configuration, and every ten seconds, until ctx ends.
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

// once makes a plan. It publishes the plan if it differs from the last one, or if the last one may be lost. Where
// that fails, the last plan stays in force until the next one.
func (p *Planner) once(ctx context.Context) {
	next, state := plan.Next(p.state, plan.Observation{
		At: time.Now(), Settings: p.settings.Load(), Workers: plan.WorkersOf(p.fleet.Snapshot()),
	})
	p.state = state
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

// metrics count plans.
type metrics struct {
	plans *prometheus.CounterVec
	last  prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	part := metric.For(reg, "planner")
	m := &metrics{
		plans: part.Counters("plans_total", "Plans by result: published or error.", "result"),
		last:  part.Gauge("last_plan_timestamp_seconds", "Time of the last published plan."),
	}

	for _, result := range []string{"published", "error"} { // present before the first plan
		m.plans.WithLabelValues(result)
	}
	return m
}
