package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/engineprobe"
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
	// Metrics registers the metrics; nil for none.
	Metrics prometheus.Registerer
}

// Worker is an endpoint whose engine has answered.
type Worker struct {
	Endpoint
	// Engine is the answer.
	Engine engineprobe.Identity
}

// Source follows the endpoints of selections. Create it with [New].
//
// Watches, questions to engines and readers run beside each other. They share the groups alone, under mu, which is never held during I/O.
type Source struct {
	cfg Config
	// client asks engines, and slots bounds how many are asked at the same time: at the start of a router that may be thousands.
	client *http.Client
	slots  chan struct{}
	// troubles counts failures of the API; nil without metrics.
	troubles *prometheus.CounterVec

	mu     sync.Mutex
	groups []*group // never changes; the fields of a group are guarded by mu
	// changed is closed at the next change, and replaced: so any number of readers can wait, and none of them can miss a change that
	// comes between its reading and its waiting.
	changed chan struct{}
}

// group is the state of a selection. Its fields are guarded by Source.mu, except for the Selection, which never changes.
type group struct {
	Selection
	// endpoints has the ready endpoints by the name of the pod. Pods without one are left out.
	endpoints map[string][]Endpoint
	// asked has every endpoint of endpoints, and no other.
	asked map[Endpoint]*answer
	// answered has the answers of engines whose pods exist, by the name of the pod: a pod that is not ready for a moment is not asked
	// again. Half of all changes of a busy cluster are such ones, and an answer costs as much as three changes.
	answered map[string]map[Endpoint]*answer
	// synced means that the pods were listed once. It stays true while the API server is away.
	synced bool
	// troubles has the reasons why no changes arrive, by the resource. It is empty while all is well.
	troubles map[string]error
}

// answer is the state of the question to an engine.
//
//	identity   failed   state
//	nil        false    not asked yet; the source is not synced
//	nil        true     asked in vain, and asked again
//	set        false    answered; not asked any more
type answer struct {
	identity *engineprobe.Identity
	failed   bool
	stop     context.CancelFunc // ends the questions, when the endpoint is gone
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
	s := &Source{
		cfg: cfg, slots: make(chan struct{}, askedAtOnce), changed: make(chan struct{}),
		client: &http.Client{Timeout: askTime, Transport: &http.Transport{DisableKeepAlives: true}}, // each engine is asked once
	}
	for _, selection := range cfg.Selections {
		s.groups = append(s.groups, &group{
			Selection: selection,
			endpoints: map[string][]Endpoint{}, asked: map[Endpoint]*answer{}, answered: map[string]map[Endpoint]*answer{},
			troubles: map[string]error{},
		})
	}
	if cfg.Metrics != nil {
		part := metric.For(cfg.Metrics, "kubernetes")
		s.troubles = part.Counters("api_errors_total",
			"Lists and watches of the Kubernetes API that failed or ended early, by the resource. Workers stay meanwhile.", "resource")
		part.GaugeFunc("endpoints", "Ready endpoints of the selected pods.", func() float64 { return float64(s.count(false)) })
		part.GaugeFunc("unidentified_endpoints",
			"Ready endpoints whose engines have not answered yet which model they serve. They get no requests.",
			func() float64 { return float64(s.count(true)) })
	}
	return s
}

// Run follows the selections until ctx ends. It must be called once.
func (s *Source) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, g := range s.groups {
		all.Go(func() { s.follow(ctx, g) })
	}
	all.Wait()
}

// Changed returns a channel that is closed at the next change of Workers or Err.
func (s *Source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Workers returns the endpoints whose engines have answered, sorted by name. An endpoint of two selections is there once.
func (s *Source) Workers() []Worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	var workers []Worker
	for _, g := range s.groups {
		for e, a := range g.asked {
			if a.identity != nil {
				workers = append(workers, Worker{e, *a.identity})
			}
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

// Synced reports whether the pods of all selections have been listed, and the engine of each has been asked once. A router that served
// before would answer 404 for models that it will know a moment later.
func (s *Source) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.groups {
		if !g.synced {
			return false
		}
		for _, a := range g.asked {
			if a.identity == nil && !a.failed {
				return false
			}
		}
	}
	return true
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
	for _, g := range s.groups {
		for _, a := range g.asked {
			if !unidentified || a.identity == nil {
				n++
			}
		}
	}
	return n
}

// notifyLocked wakes the readers that wait for a change.
func (s *Source) notifyLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// target is what the pods of a group are selected by. The zero value is the target of a pool that has not been found.
type target struct {
	labels string
	ports  []int
}

func (t *target) equal(other *target) bool {
	return t.labels == other.labels && slices.Equal(t.ports, other.ports)
}

// The resources that are followed, as the API names them.
const (
	resourcePods  = "pods"
	resourcePools = "inferencepools"
)

// poolsPath and podsPath return the paths of the lists of a namespace.
func poolsPath(namespace string) string {
	return "/apis/inference.networking.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/" + resourcePools
}

func podsPath(namespace string) string {
	return "/api/v1/namespaces/" + url.PathEscape(namespace) + "/" + resourcePods
}

// follow follows the pods of one selection until ctx ends. If the selection is an InferencePool, its object is followed too.
func (s *Source) follow(ctx context.Context, g *group) {
	var engines sync.WaitGroup // that are asked
	defer engines.Wait()
	start := func(e Endpoint) *answer {
		inner, stop := context.WithCancel(ctx)
		a := &answer{stop: stop}
		engines.Go(func() { s.ask(inner, e, a) })
		return a
	}

	if g.Pool == "" {
		s.followPods(ctx, g, target{g.Labels, g.Ports}, start)
		return
	}
	s.followPool(ctx, g, start)
}

// followPool follows an InferencePool and its pods until ctx ends. A pool that is deleted leaves its workers, because a mistake there would
// stop all traffic.
func (s *Source) followPool(ctx context.Context, g *group, start func(Endpoint) *answer) {
	// now is what the pods are selected by. Only the goroutine of the follower below changes it, so it needs no lock. It stays when the
	// pool is deleted.
	var now target
	var pods sync.WaitGroup
	stop := func() {} // ends the watch of the pods
	defer func() {
		stop()
		pods.Wait()
	}()
	apply := func(p inferencePool) {
		next := targetOf(&p)
		if next.labels == "" || len(next.ports) == 0 || next.equal(&now) {
			return
		}
		// One watch at a time changes the pods of a group. The workers of the old pods stay until the new ones are listed.
		stop()
		pods.Wait()
		now = next
		s.trouble(g, resourcePools, nil)
		inner, cancel := context.WithCancel(ctx)
		stop = cancel
		pods.Go(func() { s.followPods(inner, g, next, start) })
	}

	(&follower[inferencePool]{
		client: s.cfg.Client, path: poolsPath(g.Namespace),
		query: url.Values{"fieldSelector": {"metadata.name=" + g.Pool}},
		apply: apply,
		remove: func(string) {
			s.cfg.Log.Warn("the InferencePool was deleted; its pods stay workers while this process runs", "pool", g.String())
		},
		synced: func() {},
		trouble: func(err error) {
			if err == nil && now.labels == "" {
				err = errNoPool
			}
			s.trouble(g, resourcePools, err)
		},
	}).run(ctx)
}

var errNoPool = errors.New("there is no such object with a selector and target ports: create it, or name another one with --inference-pool")

// targetOf returns the selector and the ports of a pool.
func targetOf(p *inferencePool) target {
	var t target
	labels := p.Spec.Selector.MatchLabels
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		t.labels += "," + key + "=" + labels[key]
	}
	t.labels = strings.TrimPrefix(t.labels, ",")
	for _, port := range p.Spec.TargetPorts {
		t.ports = append(t.ports, port.Number)
	}
	return t
}

// followPods follows the pods that a target selects until ctx ends. The first list removes the pods of an earlier target: until then they
// serve, and pods that both targets select are not asked again.
func (s *Source) followPods(ctx context.Context, g *group, t target, start func(Endpoint) *answer) {
	home := s.cfg.Selections[0].Namespace
	listed := map[string]bool{} // by the first list; nil after it

	(&follower[pod]{
		client: s.cfg.Client, path: podsPath(g.Namespace),
		query: url.Values{"labelSelector": {t.labels}},
		apply: func(p pod) {
			if listed != nil {
				listed[p.Metadata.Name] = true
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.setLocked(g, p.Metadata.Name, endpoints(&p, t.ports, home), start)
		},
		remove: func(name string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.setLocked(g, name, nil, start)
			delete(g.answered, name)
		},
		synced: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			for name := range g.endpoints {
				if listed != nil && !listed[name] {
					s.setLocked(g, name, nil, start)
				}
			}
			maps.DeleteFunc(g.answered, func(name string, _ map[Endpoint]*answer) bool { return listed != nil && !listed[name] })
			listed = nil
			g.synced = true
			s.notifyLocked()
		},
		trouble: func(err error) { s.trouble(g, resourcePods, err) },
	}).run(ctx)
}

// setLocked makes these the endpoints of a pod. The engines of new ones are asked, and questions to others end. An endpoint whose epoch,
// role or revision has changed is another one, and is asked again.
func (s *Source) setLocked(g *group, name string, now []Endpoint, start func(Endpoint) *answer) {
	before := g.endpoints[name]
	if slices.Equal(before, now) {
		return // most changes of a pod change nothing here
	}
	// Questions end first: the same address may come again with another epoch.
	for _, e := range before {
		if !slices.Contains(now, e) {
			g.keepLocked(name, e)
			delete(g.asked, e)
		}
	}
	for _, e := range now {
		switch {
		case g.asked[e] != nil:
		case g.answered[name][e] != nil:
			g.asked[e] = g.answered[name][e]
		default:
			g.asked[e] = start(e)
		}
	}

	g.endpoints[name] = now
	if len(now) == 0 {
		delete(g.endpoints, name)
	}
	s.notifyLocked()
}

// keepLocked keeps the answer of an engine that is no endpoint any more, in case it is one again. Without an answer, the questions end.
// The epoch is a part of an endpoint, so that an engine that has restarted meanwhile is asked.
func (g *group) keepLocked(name string, e Endpoint) {
	a := g.asked[e]
	a.stop()
	if a.identity == nil {
		return
	}
	if g.answered[name] == nil || len(g.answered[name]) >= maxKept {
		g.answered[name] = map[Endpoint]*answer{}
	}
	g.answered[name][e] = a
}

// maxKept bounds the answers that are kept of a pod: one for each port, and for epochs that are over.
const maxKept = 16

// ask asks an engine for its identity until it answers, or until ctx ends. It is not asked again after that: what a process serves under
// its name does not change, and adapters are followed elsewhere. A restart is another endpoint.
func (s *Source) ask(ctx context.Context, e Endpoint, a *answer) {
	retry := backoff.Backoff{Min: askMin, Max: askMax}
	for ctx.Err() == nil {
		identity, err := s.askOnce(ctx, e)
		if ctx.Err() != nil {
			return
		}

		s.mu.Lock()
		first := !a.failed
		a.failed = err != nil
		if err == nil {
			a.identity = &identity
		}
		s.notifyLocked()
		s.mu.Unlock()

		if err == nil {
			a.stop() // frees its context; the endpoint stays
			s.cfg.Log.Info("engine found", "worker", e.Name, "address", e.Address, "engine", identity.Kind, "model", identity.Name,
				"ranks", identity.Ranks, "block_size", identity.BlockSize, "role", e.Role.String())
			return
		}
		if first { // later failures are the same one
			s.cfg.Log.Warn("an engine does not answer which model it serves; it gets no requests", "worker", e.Name, "address", e.Address,
				"err", err)
		}
		_ = retry.Wait(ctx)
	}
}

// askOnce asks an engine when a slot is free.
func (s *Source) askOnce(ctx context.Context, e Endpoint) (engineprobe.Identity, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return engineprobe.Identity{}, ctx.Err()
	}
	return engineprobe.Identify(ctx, s.client, e.Address)
}

// trouble records why no changes of a resource arrive; nil if they do again. Each reason is logged once, because a server that is away
// for an hour fails thousands of requests.
func (s *Source) trouble(g *group, resource string, err error) {
	if err != nil && s.troubles != nil {
		s.troubles.WithLabelValues(resource).Inc()
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	before := g.troubles[resource]
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		g.troubles[resource] = err
		s.cfg.Log.Warn("the Kubernetes API cannot be read; the workers stay as they are", "selection", g.String(), "err", err)
	case err == nil && before != nil:
		delete(g.troubles, resource)
		s.cfg.Log.Info("the Kubernetes API is read again", "selection", g.String(), "resource", resource)
	default:
		return
	}
	s.notifyLocked()
}
