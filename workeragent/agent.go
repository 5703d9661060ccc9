package workeragent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kvsource/sources"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/workeragent/engine"
)

// Config is read by New and not changed later.
type Config struct {
	// Launches are the engines to keep alive. Their names are unique in the cluster.
	Launches []engine.Launch
	// Scaled has the planner choose which launches run, on the bus. Without it spare launches have no effect.
	Scaled bool
	// Node is the name of this node, which the names of its workers begin with; empty for none.
	Node string
	// Site has the IP, the ports and the folder for them. Its ports may be used by other agents of the
	// host too; its folder belongs to this agent.
	Site engine.Site
	// State is the folder of engines that survive the agent; nil if none does.
	State   *State
	Bus     *bus.Bus
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// Engines makes the connections to engines; nil makes them without TLS.
	Engines *enginetls.Client
	// IndexBytes bounds the memory of the index of the engines' caches, from which a router that
	// starts late gets a snapshot; default 256 MiB. Snapshots that are being pulled use as much again
	// at most.
	IndexBytes int64
	// PastBatches bounds the batches of one engine that are kept for routers that missed some;
	// default 10,000, as many as vLLM keeps. A higher value replaces snapshots by replays.
	PastBatches int
	// Store returns the store of KV blocks of a model on this node, of which routers take account. It may be nil.
	Store func(model string) fleet.Store
	// Files returns when the files of a model are in its folder on this node; progress is called while they come. Engines start after it.
	// It may be nil.
	Files func(ctx context.Context, model, folder string, progress func(done, total int64)) error
	// DrainTime bounds how long engines may go on with their requests after Run's context has ended, without new ones; 0 stops
	// them at once.
	DrainTime time.Duration
	// Hard ends when engines must be killed instead of stopped. Nil never ends.
	Hard context.Context
}

// Agent keeps the engines of one node running, and publishes their state on the bus.
type Agent struct {
	cfg     Config
	probing probing
	// draining sets how engines drain.
	draining draining
	metrics  *metrics
	mirror   *cacheMirror
	events   *bus.EventWriter
	roster   roster

	assigned     assignments
	slotsChanged chan struct{} // has one place: a change that finds it full is covered by the one before it
}

// New returns an agent that has started nothing yet. The error lists everything that is wrong with the
// launches.
func New(cfg Config) (*Agent, error) {
	if cfg.Hard == nil {
		cfg.Hard = context.Background()
	}
	if cfg.Store == nil {
		cfg.Store = func(string) (none fleet.Store) { return none }
	}
	if cfg.PastBatches <= 0 {
		cfg.PastBatches = pastBatches
	}
	a := &Agent{
		cfg: cfg, probing: usualProbing, draining: usualDraining, mirror: newCacheMirror(cfg.IndexBytes),
		slotsChanged: make(chan struct{}, 1),
	}
	a.events = cfg.Bus.EventWriter(cfg.Node)
	a.metrics = newMetrics(cfg.Metrics, a.mirror)

	// All mistakes are reported together, before anything is started.
	names := map[string]bool{}
	var errs []error
	if err := cfg.Site.Validate(); err != nil {
		errs = append(errs, err)
	}
	for _, l := range cfg.Launches {
		if names[l.Name] {
			errs = append(errs, fmt.Errorf("worker name %q is there twice", l.Name))
		}
		names[l.Name] = true
		if err := cfg.check(&l); err != nil {
			errs = append(errs, err)
		}

		if cfg.Scaled || !l.Spare {
			a.roster.engines = append(a.roster.engines, newSupervisor(l, a))
		}
	}
	cfg.Metrics.MustRegister(metric.Collector(a.collectEngines, engineDown))
	part := metric.For(cfg.Metrics, "agent")
	part.GaugeFunc("engines_wanted", "Engines that should run: those that the plan assigns to this agent, or all that are configured.",
		func() float64 { return float64(a.Wanted()) })
	part.GaugeFunc("engines_running", "Engines whose process runs; those that drain are among them.",
		func() float64 { return float64(len(a.Processes())) })
	return a, errors.Join(errs...)
}

// check returns what is wrong with a launch.
func (cfg *Config) check(l *engine.Launch) error {
	var errs []error
	if !fleet.ValidWorkerName(l.Name) {
		errs = append(errs, fmt.Errorf("worker name %q is not valid", l.Name))
	}
	if err := l.Validate(); err != nil {
		errs = append(errs, err)
	}
	if l.Survive && cfg.State == nil {
		errs = append(errs, fmt.Errorf("launch %s: its engine is to survive the agent, which needs --state-dir", l.Name))
	}
	return errors.Join(errs...)
}

// expireEvery is the interval at which the agent looks for snapshots that no router pulls any more.
const expireEvery = time.Second

// stopObsolete stops the engines that have survived an earlier agent, and that no launch names any more.
func (a *Agent) stopObsolete() {
	keep := map[string]bool{}
	for _, s := range a.roster.all() {
		keep[s.launch.Name] = s.launch.Survive
	}
	if err := a.cfg.State.StopEngines(a.cfg.Hard, keep, a.cfg.Log); err != nil {
		a.cfg.Log.Warn("engines of an earlier agent are not stopped", "err", err)
	}
}

// Run keeps the engines running until ctx ends, then drains and stops them, and returns when they are gone. Engines that
// survive the agent run on.
func (a *Agent) Run(ctx context.Context) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx)) // of the engines
	defer end()

	// Engines publish events until they have ended, which may be some time after ctx.
	var writer sync.WaitGroup
	defer writer.Wait()
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	writer.Go(func() { a.events.Run(serving) })

	var all sync.WaitGroup
	if a.cfg.State != nil {
		all.Go(a.stopObsolete)
		all.Go(func() { a.saveCaches(ctx) })
	}
	if a.cfg.Scaled {
		a.followPlan(ctx, &all)
	}
	shut := a.roster.open(func(s *supervisor) {
		own, quit := context.WithCancel(life)
		s.quit = quit
		all.Go(func() {
			defer quit()
			s.keepAlive(own)
		})
	})
	all.Go(func() { a.forgetObsolete(ctx) })
	all.Go(func() {
		for backoff.Sleep(ctx, expireEvery) == nil {
			a.mirror.snapshots.Expire(time.Now())
		}
	})

	<-ctx.Done()
	shut()
	a.drainAll()
	end()
	all.Wait()
	return nil
}

// drainAll drains the engines that end with the agent, and returns when they have ended, or must be killed.
func (a *Agent) drainAll() {
	if a.cfg.DrainTime <= 0 {
		return
	}
	for _, s := range a.roster.all() {
		if !s.launch.Survive {
			s.order(orders{drain: a.cfg.DrainTime})
		}
	}

	left := func() bool {
		return slices.ContainsFunc(a.roster.all(), func(s *supervisor) bool { return !s.launch.Survive && s.isRunning() })
	}
	for left() && backoff.Sleep(a.cfg.Hard, a.draining.look) == nil { // each drain ends at its deadline
	}
}

// Processes returns the process ids of the engines that run now, by worker.
func (a *Agent) Processes() map[string]int {
	pids := map[string]int{}
	for _, e := range a.roster.all() {
		if pid := e.processID(); pid != 0 {
			pids[e.launch.Name] = pid
		}
	}
	return pids
}

// metrics are the agent's figures. Their label is the name of a configured worker.
type metrics struct {
	starts *prometheus.CounterVec
	events *prometheus.CounterVec
	unsent prometheus.Counter
	drains *prometheus.CounterVec // by result
	// drainTimes has the durations of drains that ended an engine.
	drainTimes prometheus.Histogram
	native     nativeMetrics
	cacheFiles *prometheus.CounterVec // by result
	// sources are the running sources of the engines' events.
	sources *sources.Set
}

// newMetrics registers the agent's metrics. The mirror's metrics are read when they are collected.
func newMetrics(reg prometheus.Registerer, m *cacheMirror) *metrics {
	part := metric.For(reg, "agent")

	part.GaugeFunc("index_bytes", "Memory of the agent's index of its engines' caches.",
		func() float64 { return float64(m.index.Stats().Bytes) })
	part.CounterFunc("index_evictions_total", "Blocks dropped from the agent's index because it reached its bound; snapshots lack them.",
		func() float64 { return float64(m.index.Stats().Evicted) })
	part.CounterFunc("unrecovered_gaps_total",
		"Gaps in engines' events that no replay filled; snapshots stay incomplete until the engine's cache was empty once.",
		func() float64 { return float64(m.feed.Stats().UnrecoveredGaps) })
	part.CounterFunc("snapshots_total", "Snapshots of a rank's cache made for a router.",
		func() float64 { return float64(m.snapshots.Made.Load()) })
	part.CounterFunc("snapshots_shared_total", "Requests for a snapshot answered with one that was made for another router.",
		func() float64 { return float64(m.snapshots.Shared.Load()) })
	part.GaugeFunc("snapshot_bytes", "Memory of the snapshots that routers pull.",
		func() float64 { return float64(m.snapshots.Bytes()) })

	drains := part.Counters("drains_total", "Engines that the plan did not want any more, by how that ended: idle (all requests had "+
		"ended), deadline (planner.drainTimeout was over), blind (whether requests were left is not known), not_ready (there were none "+
		"yet), ended (by itself or with the agent) or taken_back (the plan wants it again).", "result")
	for _, r := range drainResults {
		drains.WithLabelValues(string(r))
	}

	cacheFiles := part.Counters("cache_files_total", "Files with the cache state of a rank that survives the agent: saved, not_saved "+
		"(the disk is full, or it is too large), restored (a new agent begins with it), or refused (it is of another process, or broken).",
		"result")
	for _, r := range []string{cacheSaved, cacheNotSaved, cacheRestored, cacheRefused} {
		cacheFiles.WithLabelValues(r)
	}

	return &metrics{
		drains: drains, cacheFiles: cacheFiles,
		drainTimes: part.Histogram("drain_seconds", "Time from the decision to stop an engine until it had no requests.",
			[]float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}),
		native: newNativeMetrics(part),
		starts: part.Counters("engine_starts_total", "Starts of an engine process, the first one included.", "worker"),
		events: part.Counters("event_batches_total", "Batches of KV events relayed from an engine to the bus.", "worker"),
		unsent: part.Counter("unsent_batches_total", "Batches of KV events that could not be published; routers find the gap and "+
			"request a replay."),
		sources: sources.Register(reg, "agent"),
	}
}

// drained counts a drain.
func (m *metrics) drained(r drainResult, took time.Duration) {
	m.drains.WithLabelValues(string(r)).Inc()
	if r == drainIdle || r == drainDeadline || r == drainBlind {
		m.drainTimes.Observe(took.Seconds())
	}
}
