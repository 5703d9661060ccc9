package workeragent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/workeragent/engine"
)

// Config says what an agent looks after.
type Config struct {
	// Launches are the engines to keep alive; their names are unique in the cluster.
	Launches []engine.Launch
	Bus      *bus.Bus
	Log      *slog.Logger
	Metrics  prometheus.Registerer
	// IndexBytes bounds what is remembered of the engines' caches, so that a router that starts
	// late can be told; default 256 MiB. Snapshots on their way take as much again at most.
	IndexBytes int64
	// PastBatches bounds the batches of one engine that are remembered for routers that missed
	// some; default 10,000, as many as vLLM keeps. Raising it replaces snapshots by replays.
	PastBatches int
	// EngineLine receives each line that an engine writes. Nil: they go to Log at level debug,
	// and the last one is named when the engine dies.
	EngineLine func(worker, line string)
	// Hard, once it has ended, makes the stopping of engines kill them at once. Nil never does.
	Hard context.Context
}

// Agent keeps a node's engines.
type Agent struct {
	cfg     Config
	pace    pace
	metrics *metrics
	know    *knowledge
	keepers []*keeper
}

// New returns an agent that has started nothing yet.
func New(cfg Config) (*Agent, error) {
	if cfg.Hard == nil {
		cfg.Hard = context.Background()
	}
	if cfg.PastBatches <= 0 {
		cfg.PastBatches = pastBatches
	}
	a := &Agent{cfg: cfg, pace: usualPace, know: newKnowledge(cfg.IndexBytes)}
	a.metrics = newMetrics(cfg.Metrics, a.know)
	names := map[string]bool{}
	var errs []error
	for _, l := range cfg.Launches {
		if !fleet.ValidName(l.Name) || names[l.Name] {
			errs = append(errs, fmt.Errorf("worker name %q is not valid or is there twice", l.Name))
		}
		names[l.Name] = true
		if err := l.Validate(); err != nil {
			errs = append(errs, err)
		}
		a.keepers = append(a.keepers, newKeeper(l, a))
	}
	return a, errors.Join(errs...)
}

// Run keeps the engines until ctx ends, then stops them and returns when they are gone.
func (a *Agent) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, k := range a.keepers {
		all.Go(func() { k.run(ctx) })
	}
	all.Go(func() {
		for pause(ctx, time.Second) == nil {
			a.know.expire(time.Now())
		}
	})
	all.Wait()
	return nil
}

// Processes lists the process ids of the engines that run now, by worker.
func (a *Agent) Processes() map[string]int {
	pids := map[string]int{}
	for _, k := range a.keepers {
		if pid := k.processID(); pid != 0 {
			pids[k.launch.Name] = pid
		}
	}
	return pids
}

type metrics struct {
	restarts *prometheus.CounterVec
	events   *prometheus.CounterVec
	unsent   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, k *knowledge) *metrics {
	m := &metrics{
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stator", Subsystem: "agent", Name: "engine_starts_total",
			Help: "Starts of an engine process, the first included.",
		}, []string{"worker"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stator", Subsystem: "agent", Name: "event_batches_total",
			Help: "Batches of KV events relayed from an engine to the bus.",
		}, []string{"worker"}),
		unsent: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "stator", Subsystem: "agent", Name: "unsent_batches_total",
			Help: "Batches that could not be put on the bus; routers see the gap and ask for them.",
		}),
	}
	reg.MustRegister(m.restarts, m.events, m.unsent)
	reg.MustRegister(knowledgeMetrics(k)...)
	return m
}

// knowledgeMetrics say what the agent itself knows of its engines' caches.
func knowledgeMetrics(k *knowledge) []prometheus.Collector {
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "stator", Subsystem: "agent", Name: name, Help: help}, read)
	}
	counter := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "stator", Subsystem: "agent", Name: name, Help: help}, read)
	}
	return []prometheus.Collector{
		gauge("index_bytes", "Memory of the agent's index of its engines' caches.", func() float64 { return float64(k.index.Stats().Bytes) }),
		counter("index_evictions_total", "Holdings the agent forgot because the bound was reached: snapshots lack them.",
			func() float64 { return float64(k.index.Stats().Evicted) }),
		counter("gaps_given_up_total", "Gaps in engines' events that no replay could fill: snapshots are not whole until the cache was empty once.",
			func() float64 { return float64(k.feed.Stats().GivenUp) }),
		counter("snapshots_total", "Snapshots made of a rank's cache, for a router.", func() float64 { return float64(k.made.Load()) }),
		counter("snapshots_shared_total", "Requests for a snapshot that were answered by one made for another router.",
			func() float64 { return float64(k.shared.Load()) }),
		gauge("snapshot_bytes", "Memory of the snapshots that routers pull.", func() float64 { return float64(k.keptBytes()) }),
	}
}
