package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/plan"
)

// Config is read by New and not changed later.
type Config struct {
	Client *kubernetes.Client
	// Targets are at most one for each pool. Home is the namespace whose pods have short names, see
	// kubernetes.Endpoint.
	Targets []Target
	Home    string
	// Fleet has the workers, with what routers have booked.
	Fleet *fleet.Fleet
	// Rules and Drain can be replaced with Set. Drain is the longest time that a drain may take.
	Rules Rules
	Drain time.Duration
	// Interval is the time between two plans. A plan counts for two of them and 5 s: then another planner may lead.
	Interval time.Duration
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// Connector scales the targets. Create it with [New].
type Connector struct {
	cfg     Config
	wake    chan struct{} // has a token when something has changed
	rules   atomic.Pointer[Rules]
	drain   atomic.Int64
	metrics *metrics

	// targets never changes. Some fields of a target are guarded by mu, and Run's loop alone uses the others.
	targets []*target

	mu sync.Mutex
	// plan is the last one that was handed over, at the time applied, and made with the numbers of others in known. All three are guarded
	// by mu. A number that is not among them is respected until a plan has seen it.
	plan    *plan.Plan
	applied time.Time
	known   []plan.Held
	// held has the numbers of others of the last observation, which the next plan is made from. It is guarded by mu.
	held []plan.Held
	// last is the result of the last pass, for the reasons of the next plan. It is guarded by mu.
	last ChangeSet

	// Run's loop alone uses these.
	//
	// began is when bookings of routers began to arrive.
	began time.Time
	// drained is since when the plan drains a worker.
	drained map[string]time.Time
	// autoscalers are by namespace.
	autoscalers map[string]*scalers
	// decision counts the numbers that this process has set, or tried to set.
	decision int
}

// target is the memory of one target. Run's loop alone uses the fields that are not marked.
type target struct {
	Target

	// scale is the last answer of the API server, and counts if read is true.
	scale kubernetes.Scale
	read  bool
	// own means that a planner had set the number at an earlier look: whoever sets it later, in whatever way, does not want the planner's.
	own bool
	// written is when this planner has set the number last.
	written time.Time
	// allowed means that a trial has succeeded since the last refusal.
	allowed bool
	// err is the error of the last attempt, nil after a success, failedAt the time of the first failure in a row, and next the time of the
	// next attempt.
	err      error
	failedAt time.Time
	retry    backoff.Backoff
	next     time.Time
	// missing is since when pods are missing, or when events were read last for that; zero if no pod is missing.
	missing time.Time
	// selector is the one of the watch that runs, and stop ends the watch.
	selector string
	stop     func()

	// The fields below are guarded by mu. Watches write the first four of them.
	pods    map[string]kubernetes.ScaledPod
	listed  bool // pods has all that there were at the start of the watch
	podsErr error
	podsAt  time.Time // since when podsErr is not nil
	// state is the result of the last pass, for observations.
	state State
	// uncreated is why pods are not created, and lacksFrom since when some are missing; zero if none is.
	uncreated string
	lacksFrom time.Time
}

// scalers are the autoscalers of a namespace.
type scalers struct {
	all  []kubernetes.Autoscaler // nil before the first list
	err  error
	read time.Time // when they were listed last
	next time.Time
}

// metrics are the connector's figures. They belong to the planner's.
type metrics struct {
	writes *prometheus.CounterVec
	errors prometheus.Counter
	held   prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	part := metric.For(reg, "planner")
	m := &metrics{
		writes: part.Counters("scale_writes_total",
			"Numbers of replicas that were set in Kubernetes, by result: written, conflict (the object has changed), refused or error.",
			"result"),
		errors: part.Counter("scale_errors_total", "Failed reads of Kubernetes objects that the planner scales. They are tried again."),
		held: part.Gauge("held_targets",
			"Kubernetes objects whose number the planner does not set now: another one has set it, or it cannot be set."),
	}
	for _, result := range []string{"written", "conflict", "refused", "error"} {
		m.writes.WithLabelValues(result)
	}
	return m
}

// New returns a connector that has changed nothing. It registers the metrics.
func New(cfg Config) *Connector {
	c := &Connector{
		cfg: cfg, wake: make(chan struct{}, 1), metrics: newMetrics(cfg.Metrics), drained: map[string]time.Time{},
		autoscalers: map[string]*scalers{}, began: time.Now(),
	}
	c.Set(cfg.Rules, cfg.Drain)
	for _, t := range cfg.Targets {
		c.targets = append(c.targets, &target{
			Target: t, retry: backoff.Backoff{Min: time.Second, Max: retryMax}, pods: map[string]kubernetes.ScaledPod{},
			state: State{Target: t}, stop: func() {},
		})
	}
	slices.SortFunc(c.targets, func(a, b *target) int {
		return cmp.Or(strings.Compare(a.Model, b.Model), int(a.Role)-int(b.Role))
	})
	return c
}

// Set replaces the rules, and the longest time that a drain may take.
func (c *Connector) Set(r Rules, drain time.Duration) {
	c.rules.Store(&r)
	c.drain.Store(int64(drain))
}

// Apply has Run carry out a plan, which was made from the last observation. It returns nil.
func (c *Connector) Apply(_ context.Context, p plan.Plan) error {
	c.mu.Lock()
	c.plan, c.applied = &p, time.Now()
	c.known = c.held // of the observation that the plan was made from
	c.mu.Unlock()
	c.changed()
	return nil
}

// changed has Run look again. A token that is there covers this one.
func (c *Connector) changed() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

const (
	// lookEvery is the interval at which targets are read if nothing has changed. readEvery is the least time between two reads of one, and
	// together between two looks at all of them. A change of the plan or of a pod wakes the loop.
	lookEvery = 2 * time.Second
	readEvery = time.Second
	together  = 500 * time.Millisecond
	// troubleFor is for how long failures that pass by themselves are no reason to keep a number: meanwhile drains go on.
	troubleFor = 10 * time.Second
	// retryMax is the longest pause between attempts that fail.
	retryMax = 10 * time.Second
	// scalersEvery is the interval at which autoscalers are listed.
	scalersEvery = 10 * time.Second
	// bookingsKnown is after how long the bookings of all routers are known: they publish full lists more often.
	bookingsKnown = 15 * time.Second
	// settle is the time from a drain until no router and no Envoy sends requests any more.
	settle = 3 * time.Second
)

// Run observes and scales until ctx ends.
func (c *Connector) Run(ctx context.Context) error {
	var watches sync.WaitGroup
	defer watches.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		c.once(ctx, &watches, time.Now())
		_ = backoff.Sleep(ctx, together)
		select {
		case <-c.wake:
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// once reads the targets, and carries out the changes that are due.
func (c *Connector) once(ctx context.Context, watches *sync.WaitGroup, now time.Time) {
	for _, t := range c.targets {
		c.look(ctx, t, watches, now)
	}
	p, states := c.assemble(now)
	var set ChangeSet
	if p != nil {
		set = Changes(p, states, *c.rules.Load(), now)
	}
	c.mu.Lock()
	before := c.last
	c.last = set
	c.mu.Unlock()
	for _, w := range slices.Concat(set.Refused, set.Waits) {
		same := func(b plan.Wait) bool { return b.Model == w.Model && b.Role == w.Role }
		if !slices.ContainsFunc(before.Refused, same) && !slices.ContainsFunc(before.Waits, same) {
			c.cfg.Log.Info("not carried out yet", "model", w.Model, "role", w.Role.String(), "why", w.Why)
		}
	}
	if ctx.Err() == nil {
		c.carryOut(ctx, &set, now)
	}
}

// look reads a target, if that is due.
func (c *Connector) look(ctx context.Context, t *target, watches *sync.WaitGroup, now time.Time) {
	c.lookForScalers(ctx, t.Namespace, now)
	if now.Before(t.next) {
		return
	}
	scale, err := c.cfg.Client.Scale(ctx, &t.Object)
	if err == nil && !t.allowed {
		// A trial finds missing rights before a worker is drained for a change that would be refused.
		err = c.cfg.Client.SetScale(ctx, &t.Object, scale.Replicas, scale.Version, c.writer(0), true)
		t.allowed = err == nil
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		c.metrics.errors.Inc()
		c.fail(t, err, now)
		return
	}

	if t.err != nil {
		c.cfg.Log.Info("the target can be scaled again", "target", t.Object.String())
	}
	t.err = nil
	t.retry.Reset()
	t.next = now.Add(readEvery)
	t.scale, t.read = scale, true
	if isPlanner(scale.Writer) {
		t.own = true
	}
	if scale.Selector != t.selector && scale.Selector != "" {
		c.follow(ctx, t, watches)
	}
	c.lookForMissing(ctx, t, now)
}

// fail records why a target cannot be read or changed, and when it is tried again. An error that comes again and again is logged once.
func (c *Connector) fail(t *target, err error, now time.Time) {
	if t.err == nil || t.err.Error() != err.Error() {
		c.cfg.Log.Warn("target cannot be scaled; it keeps its number", "target", t.Object.String(), "err", err)
	}
	if t.err == nil {
		t.failedAt = now
	}
	t.err = err
	t.next = now.Add(t.retry.Next())
}

// lookForScalers lists the autoscalers of a namespace, if that is due. An object does not show which autoscaler it has.
func (c *Connector) lookForScalers(ctx context.Context, namespace string, now time.Time) {
	s := c.autoscalers[namespace]
	if s == nil {
		s = &scalers{}
		c.autoscalers[namespace] = s
	}
	if now.Before(s.next) {
		return
	}
	s.next = now.Add(scalersEvery)
	ctx, stop := context.WithTimeout(ctx, scalersEvery)
	defer stop()
	all, err := c.cfg.Client.Autoscalers(ctx, namespace)
	s.err = err
	if err != nil {
		s.next = now.Add(time.Second)
		return
	}
	s.all, s.read = append([]kubernetes.Autoscaler{}, all...), now
}

// follow watches the pods of a target, by another selector than before. A selector changes when an object is deleted and created again, and
// appears when its controller reports it for the first time.
func (c *Connector) follow(ctx context.Context, t *target, watches *sync.WaitGroup) {
	t.stop()
	t.selector = t.scale.Selector
	inner, stop := context.WithCancel(ctx)
	t.stop = stop

	pods := map[string]kubernetes.ScaledPod{}
	c.mu.Lock()
	t.pods, t.listed = pods, false
	c.mu.Unlock()
	// A watch that has been stopped may change its own pods once more, and nothing else.
	locked := func(set func()) {
		c.mu.Lock()
		if inner.Err() == nil {
			set()
		}
		c.mu.Unlock()
		c.changed()
	}
	watches.Go(func() {
		c.cfg.Client.FollowScaledPods(inner, t.Namespace, t.selector, c.cfg.Home, func(name string, p *kubernetes.ScaledPod) {
			locked(func() {
				delete(pods, name)
				if p != nil {
					pods[name] = *p
				}
			})
		}, func() { locked(func() { t.listed = true }) }, func(err error) {
			locked(func() {
				if t.podsErr == nil {
					t.podsAt = time.Now()
				}
				t.podsErr = err
			})
		})
	})
}

// lookForMissing finds out why pods are missing for long. A pod that a quota refuses does not exist, so no pod could show the reason: the
// controller that could not create it writes an event.
func (c *Connector) lookForMissing(ctx context.Context, t *target, now time.Time) {
	c.mu.Lock()
	there := 0
	for _, p := range t.pods {
		if !p.Follows && !p.Terminating {
			there++
		}
	}
	if isMissing := t.listed && there < t.scale.Replicas; !isMissing {
		t.uncreated = ""
		t.lacksFrom, t.missing = time.Time{}, time.Time{}
	} else if t.lacksFrom.IsZero() {
		t.lacksFrom, t.missing = now, now
	}
	c.mu.Unlock()

	if t.missing.IsZero() || now.Sub(t.missing) < missingFor {
		return
	}
	t.missing = now // asked again after another while
	ctx, stop := context.WithTimeout(ctx, scalersEvery)
	defer stop()
	why, err := c.cfg.Client.Uncreated(ctx, &t.Object)
	if err != nil {
		why = "its events cannot be read: " + err.Error()
	}
	c.mu.Lock()
	t.uncreated = why
	c.mu.Unlock()
}

// missingFor is how long pods may be missing before events are read, and between two times.
const missingFor = 5 * time.Second

// writerPrefix begins the field managers of planners.
const writerPrefix = "stator-planner."

// isPlanner reports whether a field manager is a planner.
func isPlanner(writer string) bool { return strings.HasPrefix(writer, writerPrefix) }

// writer returns the field manager of a number, with the term of the planner and the count of its decisions.
func (c *Connector) writer(term uint64) string {
	return fmt.Sprintf("%s%d.%d", writerPrefix, term, c.decision)
}

// termOf returns the term in a field manager; 0 if it has none.
func termOf(writer string) (term uint64) {
	_, _ = fmt.Sscanf(strings.TrimPrefix(writer, writerPrefix), "%d.", &term)
	return term
}

// trouble returns why a target cannot be read or changed now, and whether that keeps its number: refusals do, and failures that last.
//
// Workers that drain get requests again when a number is kept. A watch that was cut off for a moment must not cause that.
func (c *Connector) trouble(t *target, now time.Time) (err error, lasts bool) {
	scalers := c.autoscalers[t.Namespace]
	var status *kubernetes.Status
	switch {
	case t.err != nil:
		refused := errors.As(t.err, &status) && status.Code < http.StatusInternalServerError && status.Code != http.StatusTooManyRequests
		return t.err, refused || errors.Is(t.err, kubernetes.ErrNoScale) || now.Sub(t.failedAt) >= troubleFor
	case scalers.err != nil:
		err := fmt.Errorf("it is not known whether an autoscaler scales %s: %w", &t.Object, scalers.err)
		return err, scalers.all == nil || now.Sub(scalers.read) >= troubleFor+scalersEvery
	case t.podsErr != nil:
		return t.podsErr, now.Sub(t.podsAt) >= troubleFor
	case t.read && t.scale.Selector == "":
		return fmt.Errorf("%s names no selector of its pods: does its controller run?", &t.Object), true
	}
	return nil, false
}

// holder returns why the planner does not set the number of a target; nil if it does.
//
// An object has a number from its creation, by kubectl, Helm or an operator. That is no wish about a running fleet, so the planner
// takes over. The subresource is another matter: whoever uses it means the number.
func (c *Connector) holder(t *target, term uint64, now time.Time) *plan.Held {
	h := &plan.Held{Model: t.Model, Role: t.Role, Replicas: t.scale.Replicas, Always: true}
	if err, lasts := c.trouble(t, now); lasts {
		h.Why = err.Error()
		return h
	}
	if !t.read {
		return nil
	}

	for _, a := range c.autoscalers[t.Namespace].all {
		if a.Scales(&t.Object) {
			h.Why = fmt.Sprintf("%s %s scales %s: delete it, or remove the target from the configuration", a.Kind, a.Name, &t.Object)
			return h
		}
	}
	switch writer := t.scale.Writer; {
	case isPlanner(writer) && termOf(writer) > term && term > 0:
		h.Why = fmt.Sprintf("a planner of the later term %d has set it", termOf(writer))
	case writer == "" || isPlanner(writer) || writer == hpaManager || !t.scale.ByScale && !t.own:
		return nil
	default:
		h.Always = false
		h.Why = fmt.Sprintf("%s has set it in %s", writer, &t.Object)
	}
	return h
}

// hpaManager is the field manager of HorizontalPodAutoscalers. One that was deleted sets nothing any more.
const hpaManager = "kube-controller-manager"

// assemble makes the states of the targets, for this pass and for observations. The plan is nil if none is in force.
func (c *Connector) assemble(now time.Time) (*plan.Plan, []State) {
	f := c.cfg.Fleet.Snapshot()
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.plan
	if p != nil && now.Sub(c.applied) > 2*c.cfg.Interval+5*time.Second {
		p = nil
	}
	var term uint64
	if p != nil {
		term = p.Term
	}
	c.observeDrainsLocked(p, now)

	held := 0
	states := make([]State, 0, len(c.targets))
	for _, t := range c.targets {
		s := State{Target: t.Target, Read: t.read && t.listed, Replicas: t.scale.Replicas, Written: t.written}
		if err, _ := c.trouble(t, now); err != nil {
			s.Err = err.Error()
		}
		s.Held = c.holder(t, term, now)
		if s.Held != nil {
			held++
			s.Known = slices.Contains(c.known, *s.Held)
		}
		for _, pod := range t.pods {
			x := Pod{ScaledPod: pod}
			x.Requests, x.Free = c.requestsLocked(f, &pod, now)
			s.Pods = append(s.Pods, x)
		}
		slices.SortFunc(s.Pods, func(a, b Pod) int { return strings.Compare(a.Name, b.Name) })
		t.state = s
		states = append(states, s)
	}
	c.metrics.held.Set(float64(held))
	return p, states
}

// observeDrainsLocked records since when workers are drained.
func (c *Connector) observeDrainsLocked(p *plan.Plan, now time.Time) {
	draining := map[string]bool{}
	for i := range c.targets {
		if pool := (*plan.Pool)(nil); p != nil {
			pool = poolOf(p, &c.targets[i].Target)
			if pool == nil {
				continue
			}
			for name := range drainedBy(pool) {
				draining[name] = true
			}
		}
	}
	for name := range c.drained {
		if !draining[name] {
			delete(c.drained, name)
		}
	}
	for name := range draining {
		if _, known := c.drained[name]; !known {
			c.drained[name] = now
		}
	}
}

// requestsLocked returns the requests of a pod as routers have booked them, and whether it may end once it is drained.
//
//	the pod                                                 may end
//	has no worker in the fleet: it starts, or has failed    yes
//	has been drained for less than settle                   no: a request may be on its way
//	has requests, or the bookings of a router are missing   no
//	has been drained for longer than a drain may take       yes, whatever it has
func (c *Connector) requestsLocked(f *fleet.Snapshot, p *kubernetes.ScaledPod, now time.Time) (requests int64, free bool) {
	w := f.Worker(p.Worker)
	if w == nil {
		return 0, true // it serves nothing
	}
	for rank := range w.Ranks {
		if r, ok := f.Rank(w.Name, rank); ok {
			requests += r.Load.Booked().Requests
		}
	}

	since, isDrained := c.drained[p.Worker]
	lasted := now.Sub(since)
	known := now.Sub(c.began) >= bookingsKnown
	return requests, isDrained && (known && requests == 0 && lasted >= settle || lasted >= time.Duration(c.drain.Load()))
}

// Observe adds to an observation: workers that have not started yet, and why, in which order workers can end, and the numbers of others. It
// is called before each plan.
//
// A worker that starts is a pod that has no worker in the fleet yet. Its time counts from the creation of the pod: the wait for a node, the
// image and the weights are part of a start.
func (c *Connector) Observe(o *plan.Observation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := make(map[string]*plan.Worker, len(o.Workers))
	for i := range o.Workers {
		known[o.Workers[i].Name] = &o.Workers[i]
	}

	c.held = nil
	var started []plan.Worker
	for _, t := range c.targets {
		s := &t.state
		if s.Held != nil {
			h := *s.Held
			if !s.Read && h.Replicas == 0 { // its number was never read
				for i := range o.Workers {
					if w := &o.Workers[i]; w.Model == t.Model && w.Role == t.Role {
						h.Replicas++
					}
				}
			}
			c.held = append(c.held, h)
		}
		there := 0
		for _, p := range s.workers() {
			there++
			order := p.Ordinal + 1
			if w := known[p.Worker]; w != nil {
				w.Order = order
				continue
			}
			started = append(started, plan.Worker{
				Name: p.Worker, Model: t.Model, Role: t.Role, State: fleet.Starting, Since: p.Created, Order: order, Trouble: p.Trouble,
			})
		}

		// Replicas without a pod are workers that have not begun. They end first.
		for n := there; s.Read && n < min(s.Replicas, maxMissing); n++ {
			w := plan.Worker{
				Name: fmt.Sprintf("%s.%d", t.Name, n), Model: t.Model, Role: t.Role, State: fleet.Starting, Since: t.lacksFrom,
				Trouble: t.uncreated,
			}
			if s.isOrdered() {
				w.Order = 1 + n
			}
			started = append(started, w)
		}
	}
	o.Workers = append(o.Workers, started...)
	o.Held = c.held
	o.Waits = c.last.Waits
}

// maxMissing bounds the replicas without a pod that a plan counts.
const maxMissing = 1024

// Preview returns the changes that a plan would make now, and whether all targets have been looked at.
func (c *Connector) Preview(p *plan.Plan) (set ChangeSet, complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	complete = true
	var states []State
	for _, t := range c.targets {
		s := t.state
		s.Known = true
		complete = complete && (s.Read || s.Held != nil)
		states = append(states, s)
	}
	return Changes(p, states, *c.rules.Load(), time.Now()), complete
}

// Done returns whether a plan of a term has been carried out, as far as it can be, and the pools whose number is not set. It is false
// before the first pass with such a plan.
func (c *Connector) Done(term uint64) (done bool, refused []plan.Wait) {
	c.mu.Lock()
	defer c.mu.Unlock()
	done = c.last.Term == term && len(c.last.Changes) == 0 && len(c.last.Waits) == 0
	return done, c.last.Refused
}

// carryOut writes the changes of a set.
//
//	answer               effect
//	200                  the next change of this target comes after writeEvery at the earliest
//	409                  the target is read again at once, and the change is decided again
//	any other, or none   the target waits, and a trial must succeed before its number is written again
func (c *Connector) carryOut(ctx context.Context, set *ChangeSet, now time.Time) {
	for _, m := range set.Marks {
		if err := c.cfg.Client.SetDeletionCost(ctx, m.Namespace, m.Pod, m.Cost); err != nil {
			if ctx.Err() == nil {
				c.metrics.errors.Inc()
				c.cfg.Log.Warn("deletion cost not set; trying again", "pod", m.Pod, "err", err)
			}
			return // the change that needs it waits
		}
	}
	for i := range set.Changes {
		x := &set.Changes[i]
		at := slices.IndexFunc(c.targets, func(t *target) bool { return t.Object == x.Object })
		t := c.targets[at]
		c.decision++
		writer := c.writer(set.Term)
		err := c.cfg.Client.SetScale(ctx, &t.Object, x.To, t.scale.Version, writer, false)
		if ctx.Err() != nil {
			return
		}
		c.metrics.writes.WithLabelValues(resultOf(err)).Inc()
		if err == nil {
			t.written, t.own = now, true
			t.scale.Replicas, t.scale.Writer = x.To, writer
			c.cfg.Log.Info("scaled", "target", t.Object.String(), "from", x.From, "to", x.To, "victims", x.Victims, "reason", x.Reason)
			continue
		}
		var status *kubernetes.Status
		if errors.As(err, &status) && status.Code == http.StatusConflict {
			t.next = now // it is read again at once
			continue
		}
		t.allowed = false
		c.fail(t, err, now)
	}
}

// resultOf returns the label of an attempt to set a number.
func resultOf(err error) string {
	var status *kubernetes.Status
	switch {
	case err == nil:
		return "written"
	case !errors.As(err, &status), status.Code >= http.StatusInternalServerError, status.Code == http.StatusTooManyRequests:
		return "error"
	case status.Code == http.StatusConflict:
		return "conflict"
	}
	return "refused"
}
