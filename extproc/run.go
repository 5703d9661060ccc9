package extproc

import (
	"cmp"
	"context"
	"net"
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/grpcserve"
)

// RunConfig is read by Run.
type RunConfig struct {
	// Listen opens the listener for Envoy. It is called once.
	Listen func() (net.Listener, error)
	// Health is the listener of the port for health alone, from the start of Run to its end; nil for none.
	Health net.Listener
	// Bus is the bus to follow; nil for none.
	Bus *bus.Bus
	// Peers carries the messages between replicas of the router if there is no Bus; nil for a router alone. It needs no buckets.
	Peers *bus.Bus
	// AwaitFleet delays Listen until the workers on the bus are in the fleet.
	AwaitFleet bool
	// DrainTime bounds how long Run goes on after ctx has ended, with requests that have no decision yet and with responses that pass
	// through the router. It is over when Hard ends, which may be nil.
	DrainTime time.Duration
	Hard      context.Context
}

// hard returns Hard, or a context that never ends.
func (cfg *RunConfig) hard() context.Context {
	if cfg.Hard == nil {
		return context.Background()
	}
	return cfg.Hard
}

// Run follows the bus and the listed workers, and serves Envoy, until it is asked to end, by a context that ends, or serving fails. With
// other routers it goes on a little: see leaveTime. It must be called once.
func (r *Router) Run(asked context.Context, cfg RunConfig) error {
	ctx, stop := r.outlive(asked, &cfg)
	var followers sync.WaitGroup
	defer followers.Wait()
	defer stop()

	if cfg.Health != nil {
		defer serveHealth(cfg.Health, r.doors.health, r.log)()
	}
	// These need no bus. Each ends with ctx.
	for _, run := range []func(context.Context){
		r.sockets.Run, r.emitters.Run, r.members.Run, r.followList, r.doors.requests.Run, r.models.follow, r.models.followHub,
		r.loads.loadAdapters,
	} {
		followers.Go(func() { run(ctx) })
	}
	if cfg.Bus == nil && r.limits().HasBudgets() {
		r.log.Info("without a bus, the budgets of tenants are counted in the memory of this router alone, and at 0 again when it restarts")
	}
	if link := cmp.Or(cfg.Bus, cfg.Peers); link != nil {
		r.bus.Store(link)
		r.ends.join()
	}
	switch {
	case cfg.Bus != nil:
		followers.Go(func() { r.followBus(ctx, cfg.Bus) })
	case cfg.Peers != nil:
		r.indexes.link.Store(cfg.Peers)
		followers.Go(func() { r.followReplicas(ctx, cfg.Peers) })
		followers.Go(func() { r.members.Drains().Run(ctx, cfg.Peers) })
		followers.Go(func() { r.serveIndexes(ctx, cfg.Peers) })
		fallthrough
	default:
		followers.Go(func() { _ = r.members.FollowBus(ctx, nil) })
	}
	followers.Go(func() { r.followCoverage(ctx, r.members.Synced()) })

	// An empty fleet would refuse every request, so the router waits for the workers that there are.
	if cfg.Bus != nil && cfg.AwaitFleet {
		select {
		case <-r.members.Synced():
		case <-ctx.Done():
			return nil
		}
	}

	if cfg.Peers != nil {
		r.takeIndexes(ctx)
	}

	// Envoy serves by itself while it cannot connect. Listening ends that, so it comes last.
	ln, err := cfg.Listen()
	if err != nil {
		return err
	}
	r.listens.Store(true)
	if cfg.Bus != nil {
		// The last answers end while the server drains.
		defer func() { _ = r.shareBudgets(context.Background(), cfg.Bus) }()
	}
	return grpcserve.Run(ctx, r.doors.grpc, r.doors.endings.Listener(r.doors.accessLog.Listener(ln)), func(ctx context.Context) error {
		return r.runBesideServer(ctx, asked, &cfg)
	})
}

// leaveTime is the time from the request to end until a router refuses streams. It has no health any more then, so that Envoys open their
// streams at other routers: they check its health every two seconds. Without it requests go on undecided while Envoys still send them here.
const leaveTime = 2500 * time.Millisecond

// outlive returns a context that ends leaveTime after the request to end, or at once if no other router decides or there is no time to
// drain.
func (r *Router) outlive(asked context.Context, cfg *RunConfig) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancel(context.WithoutCancel(asked))
	over := context.AfterFunc(asked, func() {
		defer end()
		if r.peers.Live() == 0 {
			return
		}
		leaving, cancel := context.WithTimeout(cfg.hard(), min(leaveTime, cfg.DrainTime))
		defer cancel()
		select {
		case <-leaving.Done():
		case <-ctx.Done():
		}
	})
	return ctx, func() { over(); end() }
}

// runBesideServer runs the parts that belong to the serving of Envoy, until ctx ends: the settling of prefills, the decision log, and the
// watch for closed access logs. It closes the decision log after its last line. The router is not healthy any more once asked has ended.
func (r *Router) runBesideServer(ctx, asked context.Context, cfg *RunConfig) error {
	var all sync.WaitGroup
	all.Go(func() { r.settlePrefills(ctx) })
	all.Go(func() { r.followHealth(asked) })
	if r.doors.relayAt != nil {
		all.Go(func() { r.doors.serveRelay(ctx, cfg.DrainTime, cfg.hard()) })
		all.Go(func() { r.doors.turns.Run(ctx) })
	}
	if r.decisionLog != nil {
		all.Go(func() {
			r.decisionLog.Run(ctx)
			r.decisionLog.close()
		})
	}

	// The tracer goes on until the last request has ended, so that its span is exported too.
	tracing, stopTracing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopTracing()
	if r.tracer != nil {
		all.Go(func() { r.tracer.Run(tracing) })
	}

	err := r.doors.accessLog.Run(ctx)
	// The access log is not followed any more, so its streams need no end of their own. The streams of requests end first, because the
	// server resets what is left when it stops.
	drain, cancel := context.WithTimeout(cfg.hard(), cfg.DrainTime)
	defer cancel()
	r.doors.drain(drain)
	r.doors.requests.EndSpans(time.Now())
	stopTracing()
	all.Wait()
	return err
}

// settleEvery is short compared with a prefill, because the measured prefill times are as exact as this.
// A round over a thousand bookings takes some ten microseconds.
const settleEvery = 20 * time.Millisecond

// settlePrefills moves bookings from prefill to decode when events report their prompts' blocks.
func (r *Router) settlePrefills(ctx context.Context) {
	backoff.Every(ctx, settleEvery, func(now time.Time) { r.routes.SettlePrefills(now) })
}
