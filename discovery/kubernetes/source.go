package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
)

// Selection names pods: those of an InferencePool, or those with some labels. A pool is followed while it changes its selector and ports.
type Selection struct {
	Namespace string
	// Pool is the name of an InferencePool.
	Pool string
	// Labels are a selector such as "app=vllm,tier!=test", and Ports the ports of their engines. They count without a Pool.
	Labels string
	Ports  []int
}

// String returns the selection as messages name it.
func (s *Selection) String() string {
	if s.Pool != "" {
		return "InferencePool " + s.Namespace + "/" + s.Pool
	}
	return "pods of " + s.Namespace + " with " + s.Labels
}

// Config is read by New and not changed later.
type Config struct {
	Client *Client
	// Selections are at least one. Pods of the namespace of the first have short names.
	Selections []Selection
	Log        *slog.Logger
	// Engines makes the connections to engines; nil makes them without TLS.
	Engines *enginetls.Client
	// Metrics registers the metrics.
	Metrics prometheus.Registerer
}

// Worker is an endpoint whose engine has answered.
type Worker struct {
	Endpoint
	// Engine is the answer.
	Engine engineprobe.Identity
	// Taints name the place of the pod, as far as labels do, and PlaceFrom their source.
	Taints    fleet.Taints
	PlaceFrom fleet.PlaceSource
}

// Source follows the endpoints of selections. Create it with [New].
//
// Watches, questions to engines and readers run beside each other. They share the groups alone, under mu, which is never held during I/O.
type Source struct {
	cfg Config
	// client asks engines, and slots bounds how many are asked at the same time: at the start of a router that may be thousands.
	client   *http.Client
	slots    chan struct{}
	troubles *prometheus.CounterVec // failures of the API

	mu     sync.Mutex
	groups []*group        // never changes; the fields of a group are guarded by mu
	nodes  map[string]node // guarded by mu; the nodes of pods whose labels were read
	// changed is closed at the next change, and replaced: so any number of readers can wait, and none of them can miss a change that
	// comes between its reading and its waiting.
	changed chan struct{}
}

// group is the state of a selection. Its fields are guarded by Source.mu, except for the Selection, which never changes.
type group struct {
	Selection
	pods map[string]podState    // by name
	ask  func(Endpoint) *engine // starts the questions to an engine; set once, by follow
	// uid is the UID of the InferencePool; empty before it was read, and for pods by labels.
	uid string
	// synced means that the pods were listed once. It stays true while the API server is away.
	synced bool
	// troubles has the reasons why no changes arrive, by the resource. It is empty while all is well.
	troubles map[string]error
}

// podState has the known facts of a pod.
type podState struct {
	// ready has the endpoints; it is empty while the pod is not ready.
	ready []Endpoint
	// engines are those of the endpoints. While the pod is not ready, they are those that have answered: a pod that is not ready for a
	// moment is not asked again. Half of all changes of a busy cluster are such ones, and an answer costs as much as three changes.
	engines []*engine
	at      podPlace
}

// engine is an endpoint, and the state of the question which model it serves.
//
//	identity   failed   state
//	nil        false    not asked yet; the source is not synced
//	nil        true     asked in vain, and asked again
//	set        false    answered; not asked any more
type engine struct {
	Endpoint
	at       podPlace // of its pod
	identity *engineprobe.Identity
	failed   bool
	stop     context.CancelFunc // ends the questions
}

const (
	// askTime bounds one question. A frozen engine accepts connections and never answers.
	askTime = 3 * time.Second
	// askMin and askMax are the shortest and the longest pause between two questions to an engine that does not answer. Its kubelet
	// reports it as ready, so it is no engine, or its model is served under another port.
	askMin = 500 * time.Millisecond
	askMax = 10 * time.Second
	// askedAtOnce bounds the engines that are asked at the same time.
	askedAtOnce = 64
)

// New returns a source that finds nothing until it runs.
func New(cfg Config) *Source {
	part := metric.For(cfg.Metrics, "kubernetes")
	s := &Source{
		cfg: cfg, slots: make(chan struct{}, askedAtOnce), changed: make(chan struct{}), nodes: map[string]node{},
		client: &http.Client{Timeout: askTime, Transport: &http.Transport{
			DisableKeepAlives: true, DialContext: cfg.Engines.Dial(askTime), // each engine is asked once
		}},
		troubles: part.Counters("api_errors_total",
			"Lists and watches of the Kubernetes API that failed or ended early, by the resource. Workers stay meanwhile.", "resource"),
	}
	for _, selection := range cfg.Selections {
		s.groups = append(s.groups, &group{Selection: selection, pods: map[string]podState{}, troubles: map[string]error{}})
	}
	part.GaugeFunc("endpoints", "Ready endpoints of the selected pods.", func() float64 { return float64(s.count(false)) })
	part.GaugeFunc("unidentified_endpoints",
		"Ready endpoints whose engines have not answered yet which model they serve. They get no requests.",
		func() float64 { return float64(s.count(true)) })
	return s
}

// Run follows the selections until ctx ends. It must be called once.
func (s *Source) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, g := range s.groups {
		all.Go(func() { s.follow(ctx, g) })
	}
	all.Go(func() { s.readNodes(ctx) })
	all.Wait()
}

// Changed returns a channel that is closed at the next change of Workers or Err.
func (s *Source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// enginesLocked iterates over the engines of the ready pods.
func (s *Source) enginesLocked(yield func(*engine) bool) {
	for _, g := range s.groups {
		for _, p := range g.pods {
			if len(p.ready) > 0 && slices.ContainsFunc(p.engines, func(e *engine) bool { return !yield(e) }) {
				return
			}
		}
	}
}

// Workers returns the endpoints whose engines have answered, sorted by name. An endpoint of two selections is there once.
func (s *Source) Workers() (workers []Worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := range s.enginesLocked {
		if e.identity != nil {
			taints, from := s.taintsLocked(&e.at)
			workers = append(workers, Worker{e.Endpoint, *e.identity, taints, from})
		}
	}

	// Replicas exchange bookings by the names of workers. The order is the same in every replica, and so is the endpoint that counts of two
	// with one address: for a moment there may be a pod that has gone and one that has its IP already.
	slices.SortFunc(workers, func(a, b Worker) int { return strings.Compare(a.Name, b.Name) })
	seen := map[string]bool{}
	return slices.DeleteFunc(workers, func(w Worker) bool {
		again := seen[w.Address]
		seen[w.Address] = true
		return again
	})
}

// PoolMembers is an InferencePool with the names of its ready endpoints.
type PoolMembers struct {
	Object
	UID     string
	Workers []string
}

// Pools returns the InferencePools that the source follows, in the order of its selections.
func (s *Source) Pools() (all []PoolMembers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.groups {
		if g.Pool == "" {
			continue
		}
		p := PoolMembers{Object: Object{poolVersion, "InferencePool", g.Namespace, g.Pool}, UID: g.uid}
		for _, pod := range g.pods {
			for i := range pod.ready {
				p.Workers = append(p.Workers, pod.ready[i].Name)
			}
		}
		all = append(all, p)
	}
	return all
}

// Synced reports whether the pods of all selections have been listed, and the engine of each has been asked once. A router that served
// before would answer 404 for models that it will know a moment later.
func (s *Source) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := range s.enginesLocked {
		if e.identity == nil && !e.failed {
			return false
		}
	}
	return !slices.ContainsFunc(s.groups, func(g *group) bool { return !g.synced })
}

// Err returns why a selection is not up to date; nil if all are. Workers stay as they were.
func (s *Source) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, g := range s.groups {
		for _, resource := range slices.Sorted(maps.Keys(g.troubles)) {
			errs = append(errs, fmt.Errorf("%s: %w", &g.Selection, g.troubles[resource]))
		}
		if !g.synced && len(g.troubles) == 0 {
			errs = append(errs, fmt.Errorf("%s: not listed yet", &g.Selection))
		}
	}
	return errors.Join(errs...)
}

// count returns the number of endpoints, or of those that have not answered.
func (s *Source) count(unidentified bool) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := range s.enginesLocked {
		if !unidentified || e.identity == nil {
			n++
		}
	}
	return n
}

// notifyLocked wakes the readers that wait for a change.
func (s *Source) notifyLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}
