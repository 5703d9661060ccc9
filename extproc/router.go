package extproc

import (
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
	"github.com/stator-project/stator/extproc/cachesync"
	"github.com/stator-project/stator/extproc/emitters"
	"github.com/stator-project/stator/extproc/quota"
	"github.com/stator-project/stator/extproc/sockets"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/drift"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/peers"
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
	models *catalog // of the configuration, with the names that clients use for them
	doors  *doors   // the servers that Envoy connects to

	// The parts that keep the state up to date.
	replica string             // the name of this process among the replicas; every start has a new one
	ends    *foreignEnds       // of requests that other replicas have decided
	members *discovery.Members // the workers of the fleet; a lease on the bus does not replace a listed one
	// lists has the list of a new configuration until it is applied. It has one place: a newer list replaces it.
	lists     chan []fleet.Worker
	socketsMu sync.Mutex                   // held from the reading of the listed workers to the setting of sockets
	sockets   *sockets.Reader              // of the engines that this router reads itself
	emitters  *emitters.Set                // nil for none
	caches    *cachesync.Syncer            // of the engines that the bus has events of
	loads     *adapterLoads                // has workers load the adapters that requests name
	indexes   indexes                      // from and for other replicas
	expected  atomic.Pointer[expectations] // of the configuration in force
	parts     bus.Parts                    // of the cluster, by the bus
	quotas    *quota.Table                 // of tenants
	sharing   sync.Mutex                   // held while the sums of quotas are shared
	listens   atomic.Bool                  // for Envoys

	// bus is nil without a bus, and before Run. Requests can end before Run, and then have nothing to publish.
	bus atomic.Pointer[bus.Bus]

	records
}

// New returns a router with the models and workers of its configuration. It opens the decision log.
func New(cfg Config) (*Router, error) {
	settings := cfg.Settings
	r := &Router{
		state: &state{log: cfg.Log}, replica: newReplica(), lists: make(chan []fleet.Worker, 1),
		quotas: quota.New(), indexes: indexes{slots: make(chan struct{}, takenAtOnce)},
	}
	r.models = newCatalog(r.state, cfg.Metrics)
	r.state.init(settings, r.replica, r.models.blockSize)
	r.loads = newAdapterLoads(&cfg, r.fleet, r.models.adapterPath)

	var err error
	r.records, err = newRecords(&cfg, r.replica)
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
		Others: r.peers.Live, Predicted: r.sharePrompt, Starts: r.starts, Waits: r.demand.urge, Outside: r.emitters.Outside(),
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
