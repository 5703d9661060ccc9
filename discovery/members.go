package discovery

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// MembersConfig is read by NewMembers and not changed later.
type MembersConfig struct {
	Fleet *fleet.Fleet
	// Listed are the workers of the configuration.
	Listed []fleet.Worker
	Log    *slog.Logger
	// Engines makes the connections to engines; nil makes them without TLS.
	Engines *enginetls.Client
	// Metrics registers the metrics of plans and probes; nil for none.
	Metrics prometheus.Registerer

	// IgnorePlan leaves the weights and drains of the plan out. It is for planners, which publish the plan and may not read it on the bus.
	IgnorePlan bool
	// Settle is the time for which a worker with a lease that became ready stays in state starting; see [Config]. 0 waits for none.
	Settle time.Duration
	// Later is the time that a new address of a listed worker waits, and Moved is called when it is used; see [ResolveConfig].
	Later time.Duration
	Moved func()
	// Died is called when the process of an engine has ended, and Canary returns the interval of canaries; see [ProbeConfig]. Both may be
	// nil.
	Died   func(*fleet.Worker)
	Canary func(model string) time.Duration
}

// Members keeps the workers of a fleet up to date, from the configuration, DNS names, the answers of engines, and the leases and the plan
// on a bus. Every process that has a fleet follows it by Members, so that all of them have the same workers.
type Members struct {
	*Listed
	cfg    MembersConfig
	plans  *Plans // nil if the plan is ignored
	drains *Drains
	synced chan struct{} // closed when the workers of the bus are in the fleet
}

// NewMembers puts the listed workers into the fleet.
func NewMembers(cfg MembersConfig) (*Members, error) {
	listed, err := NewListed(cfg.Fleet, cfg.Listed)
	if err != nil {
		return nil, err
	}
	m := &Members{Listed: listed, cfg: cfg, drains: NewDrains(cfg.Fleet, cfg.Log), synced: make(chan struct{})}
	if !cfg.IgnorePlan {
		m.plans = NewPlans(PlansConfig{Fleet: cfg.Fleet, Log: cfg.Log, Metrics: cfg.Metrics})
	}
	return m, nil
}

// Run looks up names and asks engines, until ctx ends.
func (m *Members) Run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() {
		Resolve(ctx, ResolveConfig{Listed: m.Listed, Log: m.cfg.Log, Later: m.cfg.Later, Moved: m.cfg.Moved})
	})
	all.Go(func() {
		Probe(ctx, ProbeConfig{
			Fleet: m.cfg.Fleet, Log: m.cfg.Log, Engines: m.cfg.Engines, Metrics: m.cfg.Metrics, Canary: m.cfg.Canary, Died: m.cfg.Died,
		})
	})
	all.Wait()
}

// FollowBus applies the leases and the plan on a bus, until ctx ends or the bus refuses a subscription. It must be called once. Nil is no
// bus, which has no workers.
func (m *Members) FollowBus(ctx context.Context, b *bus.Bus) error {
	synced := func() { close(m.synced) }
	if b == nil {
		synced()
		<-ctx.Done()
		return nil
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var leases, plans error
	var all sync.WaitGroup
	all.Go(func() {
		defer stop()
		leases = Bus(ctx, Config{Bus: b, Fleet: m.cfg.Fleet, Log: m.cfg.Log, Listed: m.Listed, Settle: m.cfg.Settle, Synced: synced})
	})
	all.Go(func() { m.drains.Run(ctx, b) })
	if m.plans != nil {
		all.Go(func() {
			defer stop()
			plans = m.plans.Run(ctx, b)
		})
	}
	all.Wait()
	return errors.Join(leases, plans)
}

// Plan returns the last plan that was applied; the zero value before the first, and if the plan is ignored.
func (m *Members) Plan() (none plan.Plan) {
	if m.plans == nil {
		return none
	}
	return m.plans.Plan()
}

// Drains returns the orders of operators.
func (m *Members) Drains() *Drains { return m.drains }

// Synced returns a channel that is closed when the workers that the bus had at the start are in the fleet.
func (m *Members) Synced() <-chan struct{} { return m.synced }

// AwaitComplete waits until the workers that the bus had at the start are in the fleet, and the engine of each worker was asked once. It
// returns early when ctx ends.
func (m *Members) AwaitComplete(ctx context.Context) {
	select {
	case <-m.synced:
	case <-ctx.Done():
	}
	AwaitFirstAnswers(ctx, m.cfg.Fleet)
}
