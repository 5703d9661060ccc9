package extproc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/extproc/accesslog"
	"github.com/stator-project/stator/extproc/answers"
	"github.com/stator-project/stator/extproc/cachesync"
	"github.com/stator-project/stator/extproc/emitters"
	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/extproc/quota"
	"github.com/stator-project/stator/extproc/sockets"
	"github.com/stator-project/stator/extproc/spans"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/grpcserve"
	"github.com/stator-project/stator/internal/kv/drift"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/peers"
	"github.com/stator-project/stator/internal/route/pick"
)

// Config is read by New and not changed later.
type Config struct {
	// Settings is the configuration file. The parts of it that need no restart can be replaced with
	// Router.Reload.
	Settings *config.Config
	Log      *slog.Logger
	// Engines makes the connections to engines; nil makes them without TLS.
	Engines *enginetls.Client
	// Relay is the listener of the relay, which Run serves; nil for none. Envoys must reach its address as it is.
	Relay net.Listener
	// Shadow means that the router decides about copies of requests, and that none of them goes where it sends them. Its decision log has
	// them all, with the workers that served them.
	Shadow bool
	// LogRequests logs a line for each answered request, at most some a second.
	LogRequests bool
	// TenantKey returns the key of tenants' cache salts; see exchange.Config.
	TenantKey func() []byte
	// Metrics registers the metrics of all parts. Two routers must not share one.
	Metrics prometheus.Registerer
}

// Router is the router process. Create it with [New].
type Router struct {
	*state
	models *catalog
	doors  *doors

	// The parts that keep the state up to date.
	replica string // the name of this process among the replicas; every start has a new one
	ends    *foreignEnds
	members *discovery.Members // the workers of the fleet; a lease on the bus does not replace a listed one
	// lists has the list of a new configuration until it is applied. It has one place: a newer list replaces it.
	lists     chan []fleet.Worker
	socketsMu sync.Mutex // held from the reading of the listed workers to the setting of sockets
	sockets   *sockets.Reader
	emitters  *emitters.Set // nil for none
	caches    *cachesync.Syncer
	loads     *adapterLoads
	demand    *demand // the requests of clients to this replica
	indexes   indexes
	expected  atomic.Pointer[expectations]
	parts     bus.Parts      // of the cluster, by the bus
	lines     *answers.Lines // nil for none
	picks     *answers.Lines // of decisions; nil for none
	// answers are the metrics by model, worker and tenant.
	answers *answers.Metrics
	quotas  *quota.Table // of tenants
	sharing sync.Mutex   // held while the sums of quotas are shared
	listens atomic.Bool  // for Envoys

	// bus is nil without a bus, and before Run. Requests can end before Run, and then have nothing to publish.
	bus atomic.Pointer[bus.Bus]

	tracer       *spans.Tracer       // nil without tracing
	decisionLog  *decisionlog.Writer // nil without a decision log
	decisionFile *decisionFile       // nil without a decision log
}

// New returns a router with the models and workers of its configuration. It opens the decision log.
func New(cfg Config) (*Router, error) {
	settings := cfg.Settings
	r := &Router{
		state: &state{log: cfg.Log}, replica: newReplica(), lists: make(chan []fleet.Worker, 1), demand: newDemand(),
		answers: answers.New(cfg.Metrics), quotas: quota.New(), indexes: indexes{slots: make(chan struct{}, takenAtOnce)},
	}
	if cfg.LogRequests {
		r.lines = &answers.Lines{Log: cfg.Log, PerSecond: answers.LinesPerSecond}
	}
	if n := settings.Decisions.LinesPerSecond; n > 0 {
		r.picks = &answers.Lines{Log: cfg.Log, PerSecond: n}
	}
	r.models = newCatalog(r.state, cfg.Metrics)
	r.state.init(settings, r.replica, r.models.blockSize)
	r.loads = newAdapterLoads(&cfg, r.fleet, r.models.adapterPath)

	var err error
	r.decisionLog, r.decisionFile, err = newDecisionLog(&settings.Decisions, cfg.Log, cfg.Metrics)
	if err != nil {
		return nil, err
	}
	r.tracer, err = r.newTracer(cfg)
	if err != nil {
		return nil, err
	}
	r.emitters, err = emitters.New(emitters.Config{
		Emitters: listedEmitters(settings), BlockSize: r.models.blockSize, Log: cfg.Log, Metrics: cfg.Metrics,
	})
	if err != nil {
		return nil, err
	}
	r.routes, err = r.newRoutes(settings, cfg.Relay != nil, cfg.Shadow)
	if err != nil {
		return nil, err
	}

	if err := r.models.setModels(settings); err != nil {
		return nil, err
	}
	if err := r.addListedWorkers(cfg); err != nil {
		return nil, err
	}

	r.caches = cachesync.New(cachesync.Config{
		Fleet: r.fleet, Feed: r.feed, Excluded: r.members.Has, Log: cfg.Log, Metrics: cfg.Metrics,
	})
	r.expected.Store(newExpectations(settings))
	r.demand.setTargets(settings.Models)
	r.newDoors(cfg)
	// These collectors read the parts when they are scraped, so they are registered last.
	cfg.Metrics.MustRegister(
		metric.Collector(r.collect), NewDriftCollector(r.drift), NewBreaksCollector(r.routes.Breaks), metric.Collector(r.collectExpected),
		NewBudgetCollector(r.budgets),
		NewPartsCollector(r.parts.Names, func() map[bus.PartKind]int { return r.expected.Load().parts }),
	)
	return r, nil
}

// newRoutes returns the part that decides, without models.
func (r *Router) newRoutes(settings *config.Config, relayed, shadow bool) (*route.Router, error) {
	speeds, err := ProfiledSpeeds(settings)
	if err != nil {
		return nil, err
	}

	// The seed differs between replicas and starts, so that decision ids never repeat.
	cfg := route.Config{
		Seed: rand.Uint64(), Replica: r.replica, PredictFor: r.feed.Lifetime, Speeds: speeds,
		Served: r.requestServed, Missing: r.loads.want, Relayed: relayed, Counted: r.decided,
		Others: r.peers.Live, Starts: r.starts, Waits: r.demand.urge, Outside: r.emitters.Outside(),
	}
	if shadow {
		// No adapter is loaded for copies, and the planner counts requests once. The decision log needs all candidates.
		cfg.Shadow = true
		cfg.Missing = nil
		cfg.Counted = nil
		cfg.Decisions = shadowDecisions
		cfg.Candidates = shadowCandidates
	}
	if r.decisionLog != nil {
		cfg.Decided = r.decisionLog.Decided
	}
	return route.New(cfg, r.fleet, r.index), nil
}

// listedEmitters returns the caches outside engines of a configuration.
func listedEmitters(settings *config.Config) (list []emitters.Emitter) {
	for i := range settings.Models {
		m := &settings.Models[i]
		for _, e := range m.Emitters {
			list = append(list, emitters.Emitter{
				Name: e.Name, Model: m.Name, KVEvents: e.KVEvents, KVReplay: e.KVReplay, Topic: e.Topic, Node: e.Node, Workers: e.Workers,
			})
		}
	}
	return list
}

// decided counts a final decision about a client's request: as demand for its model, which planners count, and as a refusal if it is
// one. Answers are counted when they have ended. With decisions.linesPerSecond it logs the pick, with the cache state of the rank: a
// prompt that is cached there by an index that is not exact may not be.
func (r *Router) decided(d *decision.Decision) {
	r.demand.decided(d)
	r.answers.Refused(d)
	r.doors.turns.Decided(d)
	if r.picks == nil || d.Outcome != decision.Picked {
		return
	}
	if rank, ok := r.fleet.Snapshot().Rank(d.Worker, d.Rank); ok {
		r.picks.Picked(d, r.feed.State(rank).String(), d.At)
	}
}

// logClosed tells the other replicas that an Envoy closed its access log.
func (r *Router) logClosed(source string, closed time.Time) {
	if b := r.bus.Load(); b != nil {
		r.publishGone(b, source, closed)
	}
}

// requestEnded counts the end of a request, and writes it to the decision log. Entries without a decision are left out there:
// their requests went past the router.
func (r *Router) requestEnded(e *messages.Entry, outcome string, k *pick.Booking, now time.Time) {
	f := r.fleet.Snapshot()
	if k == nil && e.Booking != "" {
		// The relay has ended the bookings of its attempts.
		if last, ok := r.doors.requests.LastBooking(e.Booking); ok {
			k = &last
		}
	}
	r.demand.ended(e, k, f)
	if isEmpty, regular := e.IsEmptyAnswer(); regular {
		r.doors.requests.Answered(e.Booking, isEmpty, now)
	}
	trace := ""
	if r.tracer != nil {
		trace = r.doors.requests.EndSpan(e.Booking, answerOf(e, outcome), now)
	}
	if k != nil {
		how := answers.How{Retried: outcome == accesslog.Retried, Tokens: r.doors.requests.Settings().AnswerTokens, Trace: trace}
		tokens := r.answers.Ended(k, e, how, f)
		r.doors.requests.ChargeAnswer(k.Caller.Value().Account, tokens, now)
		if r.lines != nil {
			r.lines.Answered(k, e, now)
		}
	}

	if r.decisionLog != nil && e.Decision != "" {
		r.decisionLog.Ended(endOf(e, outcome, now))
	}
}

// Fleet returns the router's workers.
func (r *Router) Fleet() *fleet.Fleet { return r.fleet }

// Feed returns the cache states.
func (r *Router) Feed() *feed.Feed { return r.feed }

// Promises returns the tokens that decisions have promised of each worker's cache, and the tokens that its engine has found. An engine
// that finds fewer has lost blocks that the index still lists.
func (r *Router) Promises() []drift.WorkerStats { return r.drift.Stats() }

// DryRun returns the decision that a request would get now, without its effects: see [exchange.Service.DryRun]. Operators ask for it by
// the admin port, beside requests of clients: it takes no turn of theirs, and its body counts in the same bound.
func (r *Router) DryRun(path, tenant string, body []byte) (*decision.Decision, error) {
	return r.doors.requests.DryRun(path, tenant, body, time.Now())
}

// Emitters returns the caches outside engines.
func (r *Router) Emitters() []emitters.State { return r.emitters.States() }

// Drains returns the orders of operators. All routers and control planes of a cluster keep the same ones, because an operator may send
// an order to any of them.
func (r *Router) Drains() *discovery.Drains { return r.members.Drains() }

// Peers returns the bookings of the other replicas. Without them two replicas would send their requests to the same free worker at
// once.
func (r *Router) Peers() *peers.Receiver { return r.peers }

// Envoys returns the connected Envoys, with the sources of the ends of their requests.
func (r *Router) Envoys() []accesslog.Envoy { return r.doors.accessLog.Envoys() }

// Routes returns the part that decides.
func (r *Router) Routes() *route.Router { return r.routes }

// BusLost marks the cache states that depend on the bus as stale. It is made for bus.Config.Lost. The blocks
// stay in the index: most of them are still right when the bus is back.
func (r *Router) BusLost() { r.caches.Disconnected() }

// Listening returns an error before Run listens for Envoys. A gateway that sent requests until then would get no decision: what it does
// with them depends on its failure mode. The admin port is open before, so its /readyz asks here.
func (r *Router) Listening() error {
	if r.listens.Load() {
		return nil
	}
	return errStarts
}

var errStarts = errors.New("the router waits for the workers on the bus, or takes the cache states of other replicas")

// ReadyModels returns an error unless every model has a ready worker, or one starts as soon as requests wait. The error names the workers
// that are not ready, and why. One model without a worker is enough: a load balancer cannot send the requests of the others here alone.
func (r *Router) ReadyModels() error {
	for _, m := range r.routes.Models() {
		if m.Ready > 0 || m.Adapter != "" {
			continue // adapters come and go, and need no worker
		}
		if r.Idle(m.Pool) {
			continue // its requests wait here for a worker that starts for them
		}
		err := fmt.Errorf("model %s has no ready worker", m.Name)
		if unready := r.fleet.Snapshot().Unready(m.Name); unready != "" {
			err = fmt.Errorf("%w: %s", err, unready)
		}
		return err
	}
	return nil
}

// Degraded returns why requests are decided without the files of their models; nil if all have them. The router serves all the same: see
// [hubFiles].
func (r *Router) Degraded() error { return errors.Join(r.models.hubErr(), r.absent(), r.absentParts()) }

// Reload replaces the models and settings that need no restart; see the package comment. After an error the old
// ones stay in use.
func (r *Router) Reload(settings *config.Config) error {
	workers, err := settings.FleetWorkers()
	if err != nil {
		return err
	}
	if err := r.models.setModels(settings); err != nil {
		return err
	}

	select {
	case <-r.lists:
	default:
	}
	r.lists <- workers // Reload is not called concurrently, so there is room
	r.expected.Store(newExpectations(settings))
	r.demand.setTargets(settings.Models)
	r.doors.requests.Reload(requestSettings(settings))
	r.routes.Wake(time.Now()) // queued requests may fit the new limits
	return nil
}

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
	followers.Go(func() { r.sockets.Run(ctx) })
	followers.Go(func() { r.emitters.Run(ctx) })
	followers.Go(func() { r.members.Run(ctx) })
	followers.Go(func() { r.followList(ctx) })
	followers.Go(func() { r.doors.requests.Run(ctx) })
	followers.Go(func() { r.models.follow(ctx) })
	followers.Go(func() { r.models.followHub(ctx) })
	followers.Go(func() { r.loads.loadAdapters(ctx) })
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
			r.decisionFile.close()
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
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()

	for {
		select {
		case now := <-tick.C:
			r.routes.SettlePrefills(now)
		case <-ctx.Done():
			return
		}
	}
}
