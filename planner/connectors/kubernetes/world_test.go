package kubernetes_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	api "github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/planner/connectors/kubernetes"
	"github.com/stator-project/stator/test/kubeapi"
	"github.com/stator-project/stator/test/testkit"
)

// world is a faked API server whose controllers and kubelets the test plays, a fleet, and a planner without a bus.
type world struct {
	t       *testing.T
	server  *kubeapi.Server // nil with a real API server
	url     string          // of the API server
	members *fleet.Fleet
	targets []kubernetes.Target
	rules   kubernetes.Rules
	drain   time.Duration
	pools   func() []api.PoolMembers
	// advisory means that plans are recommended, and not carried out.
	advisory bool

	mu sync.Mutex
	// wants is the number that the planner's own algorithm asks for, by role.
	wants   map[fleet.Role]int
	sets    map[string]*set
	last    plan.Plan
	reasons map[fleet.Role][]string // of all plans
	most    int                     // the most pods that there were at a moment
	failed  []string
	running sync.WaitGroup
}

// set is a played Deployment or StatefulSet.
type set struct {
	owner string // of its pods: ReplicaSet or StatefulSet
	role  fleet.Role
	next  int
	// revision labels new pods, as the controllers of Deployments do; empty for none. further labels are those of all pods.
	revision string
	further  map[string]string
	pods     map[string]kubeapi.Pod
	// starts is how long a pod takes to be ready, and ends how long to be gone. unscheduled pods never start; refused ones are not created.
	starts, ends         time.Duration
	unscheduled, refused string
}

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, members: fleet.New(fleet.Hooks{}), drain: time.Minute, wants: map[fleet.Role]int{}, sets: map[string]*set{},
	}
	// The server calls play, so it ends before.
	t.Cleanup(func() {
		w.running.Wait()
		for _, f := range w.failed {
			t.Error(f)
		}
	})
	w.server = kubeapi.New(t)
	w.url = w.server.URL
	return w
}

// add adds a target with ready pods.
func (w *world) add(kind, name string, role fleet.Role, replicas int) *set {
	return w.addSet(&set{role: role}, kind, name, replicas)
}

// addSet is add for a set with labels.
func (w *world) addSet(s *set, kind, name string, replicas int) *set {
	s.owner, s.pods, s.ends = "ReplicaSet", map[string]kubeapi.Pod{}, 100*time.Millisecond
	role, plural := s.role, "deployments"
	if kind == "StatefulSet" {
		s.owner, plural = kind, "statefulsets"
	}
	w.sets[name] = s
	w.wants[role] = replicas
	w.server.PutScaled(kubeapi.Scaled{
		APIVersion: "apps/v1", Kind: kind, Plural: plural, Namespace: "llm", Name: name, Replicas: replicas, Selector: "app=" + name,
		Changed: func(int) { w.play(name) },
	})
	w.targets = append(w.targets, kubernetes.Target{
		Object: api.Object{APIVersion: "apps/v1", Kind: kind, Namespace: "llm", Name: name}, Model: "m", Role: role, GPUs: 1,
	})
	w.play(name)
	return s
}

// play has a controller create and delete pods.
func (w *world) play(name string) {
	wanted := w.server.Replicas(name)
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.sets[name]
	var staying []kubeapi.Pod
	for _, p := range s.pods {
		if !p.Terminating {
			staying = append(staying, p)
		}
	}

	for n := len(staying); n < wanted && s.refused == ""; n++ {
		w.createLocked(name, s, n)
	}
	if s.refused != "" && len(staying) < wanted {
		w.server.PutFailedCreate("llm", name+"-abc", s.refused)
	}
	for n := len(staying); n > wanted; n-- {
		w.endLocked(s)
	}
}

// createLocked creates the pod of an ordinal.
func (w *world) createLocked(name string, s *set, n int) {
	p := kubeapi.Pod{
		Namespace: "llm", Name: fmt.Sprintf("%s-%d", name, n), IP: "10.0.0.1", Labels: map[string]string{"app": name}, Owner: s.owner,
		Created: time.Now(), Unscheduled: s.unscheduled,
	}
	maps.Copy(p.Labels, s.further)
	if s.revision != "" {
		p.Labels["pod-template-hash"] = s.revision
	}
	if s.owner == "ReplicaSet" {
		p.Name = fmt.Sprintf("%s-x%d", name, s.next)
	}
	s.next++
	p.UID = p.Name
	w.putLocked(s, p)
	if s.unscheduled == "" {
		w.after(s.starts, func() { w.ready(s, p.Name) })
	}
}

// surge begins a rollout: a further pod has another revision.
func (w *world) surge(name, revision string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.sets[name]
	s.revision = revision
	w.createLocked(name, s, len(s.pods))
}

// finish ends a rollout: all pods of other revisions end, and others come in their place.
func (w *world) finish(name string) {
	w.mu.Lock()
	s := w.sets[name]
	for _, p := range s.pods {
		if p.Labels["pod-template-hash"] != s.revision {
			w.endPodLocked(s, p)
		}
	}
	w.mu.Unlock()
	w.play(name)
}

// endLocked deletes the pod that a real controller would delete.
func (w *world) endLocked(s *set) {
	var victim *kubeapi.Pod
	for _, p := range s.pods {
		if p.Terminating || victim != nil && !w.before(s, &p, victim) {
			continue
		}
		victim = &p
	}
	w.endPodLocked(s, *victim)
}

// endPodLocked deletes a pod.
func (w *world) endPodLocked(s *set, p kubeapi.Pod) {
	if n := w.requests(p.Name); n > 0 {
		w.failed = append(w.failed, fmt.Sprintf("%s ends with %d requests", p.Name, n))
	}
	p.Terminating, p.Ready = true, false
	w.putLocked(s, p)
	w.members.Remove(p.Name)
	w.after(s.ends, func() {
		w.mu.Lock()
		delete(s.pods, p.Name)
		w.mu.Unlock()
		w.server.DeletePod("llm", p.Name)
	})
}

// before reports whether a controller deletes a before b.
func (w *world) before(s *set, a, b *kubeapi.Pod) bool {
	if s.owner == "StatefulSet" {
		return a.Name > b.Name
	}
	if a.Ready != b.Ready {
		return !a.Ready
	}
	costA, costB := w.server.Cost("llm", a.Name), w.server.Cost("llm", b.Name)
	if costA != costB {
		return costA > costB // the costs of these tests are negative, and less than none
	}
	return a.Created.After(b.Created)
}

func (w *world) putLocked(s *set, p kubeapi.Pod) {
	s.pods[p.Name] = p
	n := 0
	for _, x := range w.sets {
		n += len(x.pods)
	}
	w.most = max(w.most, n)
	w.server.PutPod(p)
}

// ready has a kubelet report a pod as ready, and adds its worker to the fleet.
func (w *world) ready(s *set, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, there := s.pods[name]
	if !there || p.Terminating {
		return
	}
	p.Ready = true
	w.putLocked(s, p)
	w.serve(name, s.role)
}

// serve adds a worker to the fleet.
func (w *world) serve(name string, role fleet.Role) {
	x := fleet.Worker{
		Name: name, Model: "m", Role: role, Address: "127.0.0.1:1", Engine: "vllm", Epoch: 1, Ranks: 1, Weight: 1, State: fleet.Ready,
	}
	if _, err := w.members.Put(x); err != nil {
		w.t.Error(err)
	}
}

func (w *world) after(d time.Duration, do func()) {
	w.running.Go(func() {
		time.Sleep(d)
		do()
	})
}

// requests returns the requests of a worker as routers have booked them.
func (w *world) requests(name string) int64 {
	rank, ok := w.members.Snapshot().Rank(name, 0)
	if !ok {
		return 0
	}
	return rank.Load.Booked().Requests
}

// book adds requests to a worker.
func (w *world) book(name string, n int64) {
	w.t.Helper()
	rank, ok := w.members.Snapshot().Rank(name, 0)
	if !ok {
		w.t.Fatal("no worker ", name)
	}
	rank.Load.Add(fleet.Amount{Requests: n}, time.Time{})
}

// drainsNone checks that the last plan drains no worker of the first pool.
func (w *world) drainsNone(when string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.last.Pools[0].Workers {
		if p.Drain {
			w.t.Errorf("%s is drained %s", p.Name, when)
		}
	}
}

// run starts a connector, and a planner that makes a plan every 100 ms, of a term. It returns the end of both.
func (w *world) run(term uint64) (stop func()) {
	w.t.Helper()
	return w.runWanting(term, w.wants)
}

// runWanting is run for a planner that asks for other numbers than w.want sets.
func (w *world) runWanting(term uint64, wants map[fleet.Role]int) (stop func()) {
	client, err := api.NewClient(w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	log := &testkit.Log{}
	c := kubernetes.New(kubernetes.Config{
		Client: client, Targets: w.targets, Home: w.targets[0].Namespace, Fleet: w.members, Rules: w.rules, Drain: w.drain, Interval: time.Second,
		Log: log.Logger(), Metrics: prometheus.NewRegistry(), Pools: w.pools,
	})
	c.KnowBookings()
	ctx, cancel := context.WithCancel(w.t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = c.Run(ctx) })
	all.Go(func() { w.plan(ctx, c, term, wants) })
	stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	w.t.Cleanup(func() {
		stop()
		if w.t.Failed() {
			w.t.Logf("the plan is\n%s\nand the log of the connector is\n%s", w.last, log)
		}
	})
	return stop
}

// plan makes plans until ctx ends.
func (w *world) plan(ctx context.Context, c *kubernetes.Connector, term uint64, wanted map[fleet.Role]int) {
	m := plan.Model{Name: "m", Algorithm: "wanted", UpOnly: w.rules.UpOnly, Rule: func(_ any, _ *plan.Observation, _ *plan.Demand,
		pools []plan.Situation) (wants []plan.Want, after any) {
		for _, p := range pools {
			n := wanted[p.Configured.Role]
			wants = append(wants, plan.Want{Replicas: n, Reason: fmt.Sprintf("%d by the test", n)})
		}
		return wants, nil
	}}
	for _, t := range w.targets {
		m.Pools = append(m.Pools, plan.Configured{Role: t.Role, Replicas: 1, Max: 16, GPUs: 1, StartUp: time.Second})
	}
	settings := &plan.Settings{Models: []plan.Model{m}, Budget: plan.Budget{MaxGPUs: w.rules.MaxGPUs}}
	state := plan.State{}
	for ctx.Err() == nil {
		o := plan.Observation{At: time.Now(), Settings: settings, Workers: plan.WorkersOf(w.members.Snapshot())}
		c.Observe(&o)
		w.mu.Lock()
		w.last, state = plan.Next(state, o)
		w.last.Term = term
		p := w.last
		if w.reasons == nil {
			w.reasons = map[fleet.Role][]string{}
		}
		for i := range p.Pools {
			role := p.Pools[i].Role
			w.reasons[role] = append(w.reasons[role], p.Pools[i].Reason)
		}
		w.mu.Unlock()
		if w.advisory {
			c.Advise(p)
		} else {
			_ = c.Apply(ctx, p)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (w *world) want(role fleet.Role, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wants[role] = n
}

// reason returns the reason of the last plan of a role.
func (w *world) reason(role fleet.Role) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.last.Pools {
		if p.Role == role {
			return p.Reason
		}
	}
	return ""
}

// await waits until a target has so many replicas, and as many ready workers.
func (w *world) await(name string, n int) {
	w.t.Helper()
	testkit.Eventually(w.t, fmt.Sprintf("%d replicas of %s that are ready", n, name), func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		ready := 0
		for _, p := range w.sets[name].pods {
			if p.Ready {
				ready++
			}
		}
		return w.server.Replicas(name) == n && ready == n && len(w.sets[name].pods) == n
	})
}
