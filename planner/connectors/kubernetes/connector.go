package kubernetes

import (
	"cmp"
	"context"
	"errors"
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
	// Pools returns the InferencePools whose pods are workers; nil for none. Events of a target are about its pool, too.
	Pools func() []kubernetes.PoolMembers
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
	// advice is an advisory plan whose numbers have not been recorded yet; nil if there is none. It is guarded by mu.
	advice *plan.Plan
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
	events      recorder
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
		autoscalers: map[string]*scalers{}, began: time.Now(), events: newRecorder(),
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

	c.recordWaits(&set, now)
	c.recordDrains(p, states, now)
	c.recordAdvice()
	if ctx.Err() == nil {
		c.carryOut(ctx, &set, now)
	}
	if ctx.Err() == nil {
		c.writeEvents(ctx, now)
	}
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
		result := resultOf(err)
		c.metrics.writes.WithLabelValues(result).Inc()
		if err == nil {
			t.written, t.own = now, true
			t.scale.Replicas, t.scale.Writer = x.To, writer
			c.cfg.Log.Info("scaled", "target", t.Object.String(), "from", x.From, "to", x.To, "victims", x.Victims, "reason", x.Reason)
			c.addEvent(t, "Scaled", false, "from %d to %d replicas: %s", x.From, x.To, x.Reason)
			continue
		}
		if result == "conflict" {
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
