// Package planner observes a cluster, makes plans with plan.Next, publishes them on the bus, and has a connector carry them out.
//
// Package plan makes the decision. The planner collects the observations for it: demand, which every router reports, the load of
// engines, which agents report, what routers have booked, and the workers. Plans are made at regular intervals, and between them
// when workers come or go, and when requests begin to wait for a model without workers. Any number of planners may run. All of them
// observe, so that their forecasts are warm, and one leads: it publishes, and its connector acts.
//
// # Failures
//
//	event                         effect
//	a figure is missing           the plan is made from the others, and lists the unknown values
//	the bus is away               plans are made and not published; the published one stays in force
//	the leader dies               another planner leads when the lease has expired
//	a plan of an earlier leader   refused by the bus and by all that apply plans
//	the connector fails           counted and logged; it gets the next plan
//
// # Concurrency
//
// Run uses the goroutines that it starts, and ends them. Current, Observed and Reload may be called from any goroutine.
package planner

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/route/peers"
)

// Bus has the methods that the planner needs of the bus. *bus.Bus implements it.
type Bus interface {
	// Lead calls lead while this process leads, until ctx ends.
	Lead(ctx context.Context, lead func(ctx context.Context, term uint64)) error
	// PublishPlan replaces the published plan.
	PublishPlan(ctx context.Context, p plan.Plan) error
	// Back returns a channel that is closed when a lost connection is back. The published plan may be lost by then.
	Back() <-chan struct{}
	SubscribeDemand(ctx context.Context, apply func(*bus.Demand)) error
	SubscribeLoad(ctx context.Context, apply func(bus.Load)) error
	SubscribeBookings(ctx context.Context, apply func(*peers.Update)) error
}

// Connector carries plans out.
type Connector interface {
	// Apply starts to carry out a plan, and does not wait until that is done. It gets every plan of a planner that leads, also if it is
	// the same as the last one. Its calls come one at a time.
	Apply(ctx context.Context, p plan.Plan) error
}

// Observer is a connector that knows of workers before they are in the fleet, and what hinders plans.
type Observer interface {
	// Observe adds that to an observation. It is called before each plan.
	Observe(o *plan.Observation)
}

// Adviser is a connector that shows the plans of an advisory planner where its users look.
type Adviser interface {
	// Advise gets every advisory plan of a planner that leads, in place of Apply, and changes no number.
	Advise(p plan.Plan)
}

// Runner is a connector that works beside the planner. Run returns when ctx ends.
type Runner interface {
	Run(ctx context.Context) error
}

// Source supplies demand instead of the routers on the bus.
type Source interface {
	// Take returns the demand since the last call; nil if it is not known.
	Take(ctx context.Context, now time.Time) ([]plan.Demand, error)
}

// Config is read by New and not changed later.
type Config struct {
	// Settings can be replaced with Reload.
	Settings *plan.Settings
	// Fleet has the workers. Bookings of routers are added to the loads of its ranks.
	Fleet *fleet.Fleet
	Bus   Bus
	// Connector carries plans out; nil for none.
	Connector Connector
	// Demand replaces the demand that routers report; nil for that.
	Demand Source
	// Advisory publishes plans without drains and weights, and carries nothing out. It can be replaced with Reload.
	Advisory bool
	// Interval is the time between two regular plans; 0 means plan.DefaultEvery.
	Interval time.Duration
	// State is the memory with which plans begin.
	State plan.State
	// Record receives every observation and its plan, in order, for a log; nil for none. It must keep neither.
	Record  func(o *plan.Observation, p *plan.Plan) error
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Planner makes plans for one cluster. Create it with [New].
type Planner struct {
	cfg      Config
	settings atomic.Pointer[plan.Settings]
	advisory atomic.Bool
	reload   chan struct{} // has a token when settings changed since the last plan
	leads    chan struct{} // has a token when this process has begun to lead
	waits    chan struct{} // has a token when requests have begun to wait for a pool without workers
	demands  *demands
	loads    *loads
	bookings *peers.Receiver
	metrics  *metrics

	term    atomic.Uint64             // of this leadership; 0 while another planner leads
	current atomic.Pointer[plan.Plan] // the last one that was made
	seen    atomic.Pointer[plan.Observation]

	// Run's loop alone uses these.
	state     plan.State
	published plan.Plan // empty if the bus may have lost it
}

// New returns a planner, which makes no plan before Run. It registers the metrics.
func New(cfg Config) *Planner {
	if cfg.Interval <= 0 {
		cfg.Interval = plan.DefaultEvery
	}
	p := &Planner{
		cfg: cfg, reload: make(chan struct{}, 1), leads: make(chan struct{}, 1),
		waits: make(chan struct{}, 1), metrics: newMetrics(cfg.Metrics),
		demands: newDemands(), loads: newLoads(), bookings: peers.NewReceiver("planner", cfg.Fleet, nil), state: cfg.State,
	}
	p.settings.Store(cfg.Settings)
	p.advisory.Store(cfg.Advisory)
	p.current.Store(&plan.Plan{})
	return p
}

// Reload replaces the settings, and whether plans are carried out. Run makes the next plan.
func (p *Planner) Reload(s *plan.Settings, advisory bool) {
	p.settings.Store(s)
	p.advisory.Store(advisory)
	wake(p.reload)
}

// Connector returns the one of the configuration; nil for none.
func (p *Planner) Connector() Connector { return p.cfg.Connector }

// wake puts a token into a channel with one place. A token that is there covers this one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Current returns the last plan that was made here. Another planner may have published another one if this one does not lead.
func (p *Planner) Current() plan.Plan { return *p.current.Load() }

// Run makes plans until ctx ends.
func (p *Planner) Run(ctx context.Context) error {
	return p.run(ctx, func(ctx context.Context) error {
		var leading sync.WaitGroup
		defer leading.Wait()
		leading.Go(func() { _ = p.cfg.Bus.Lead(ctx, p.lead) })
		p.loop(ctx)
		return nil
	})
}

// run has the connector and the subscriptions run beside a function.
func (p *Planner) run(ctx context.Context, do func(ctx context.Context) error) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	// A subscription ends early only if the bus refuses it. Plans are made without its figures then.
	subscribe := func(of string, run func() error) {
		all.Go(func() {
			if err := run(); err != nil {
				p.cfg.Log.Error("bus subscription ended; plans are made without its figures", "of", of, "err", err)
			}
		})
	}
	subscribe("demand", func() error {
		return p.cfg.Bus.SubscribeDemand(ctx, p.applyDemand)
	})
	subscribe("load", func() error { return p.cfg.Bus.SubscribeLoad(ctx, p.applyLoad) })
	subscribe("bookings", func() error {
		return p.cfg.Bus.SubscribeBookings(ctx, func(u *peers.Update) { p.bookings.Apply(u, time.Now()) })
	})
	if c, ok := p.cfg.Connector.(Runner); ok { // without a plan it does nothing
		all.Go(func() { _ = c.Run(ctx) })
	}
	return do(ctx)
}

// applyDemand adds a router's report. Where requests have begun to wait for a model without workers, a plan is due.
func (p *Planner) applyDemand(d *bus.Demand) {
	waiting := p.demands.apply(d, time.Now())
	if slices.ContainsFunc(p.Current().Pools, func(x plan.Pool) bool { return x.Replicas == 0 && slices.Contains(waiting, x.Model) }) {
		wake(p.waits)
	}
}

// applyLoad adds an engine's report. The tokens that decode engines generate are the answers of the model.
func (p *Planner) applyLoad(l bus.Load) {
	gaps := p.loads.apply(l, time.Now())
	if w := p.cfg.Fleet.Snapshot().Worker(l.Worker); w != nil && gaps > 0 {
		p.demands.generated(w.Model, gaps)
	}
}

// lead has the loop publish plans until ctx ends.
func (p *Planner) lead(ctx context.Context, term uint64) {
	p.term.Store(term)
	p.metrics.leading.Set(1)
	p.cfg.Log.Info("this planner leads", "term", term)
	wake(p.leads)

	<-ctx.Done()
	p.term.Store(0)
	p.metrics.leading.Set(0)
}

// together is the time for which changes of the fleet are collected before a plan is made for them.
const together = 100 * time.Millisecond

// loop makes a plan at every interval, and between them after a change of the fleet or the settings, and for requests that wait.
func (p *Planner) loop(ctx context.Context) {
	tick := time.NewTicker(p.cfg.Interval)
	defer tick.Stop()

	between := true
	for ctx.Err() == nil {
		// The channels are taken before the plan is made, so that a change meanwhile starts another one.
		changed, back := p.cfg.Fleet.Changed(), p.cfg.Bus.Back()
		p.once(ctx, between)
		between = p.await(ctx, changed, back, tick.C)
	}
}

// await returns when a plan is due, or ctx has ended: at a tick, or between two of them.
func (p *Planner) await(ctx context.Context, changed, back <-chan struct{}, tick <-chan time.Time) (between bool) {
	var due <-chan time.Time
	for {
		select {
		case <-changed:
			changed = nil // one change is enough for a plan
			due = time.After(together)
		case <-due:
			return true
		case <-p.reload:
			return true
		case <-p.waits:
			return true
		case <-p.leads:
			return true // with a new term, so the plan differs from the published one
		case <-back:
			p.published = plan.Plan{}
			return true
		case <-tick:
			return false
		case <-ctx.Done():
			return true
		}
	}
}

// once makes a plan, and publishes it if this planner leads. between means that no interval has ended.
func (p *Planner) once(ctx context.Context, between bool) {
	o := p.observe(ctx, between)
	next, state := plan.Next(p.state, *o)
	p.state = state
	next.Term = p.term.Load()
	if p.cfg.Record != nil {
		if err := p.cfg.Record(o, &next); err != nil {
			p.metrics.unrecorded.Inc()
			p.cfg.Log.Warn("plan not written to its log", "err", err)
		}
	}
	for i := range next.Pools {
		if p.advisory.Load() {
			next.Pools[i].Workers = nil
		}
		if p.advisory.Load() || p.cfg.Connector == nil {
			next.Pools[i].StartUp = 0 // nothing starts, so no request waits for it
		}
	}

	p.current.Store(&next)
	p.seen.Store(o)
	p.metrics.observe(&next)
	if next.Term > 0 {
		p.publish(ctx, next)
	}
}
