package discovery

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
)

// No agent reports the health of a listed worker, nor of one whose lease has expired: an agent that hangs does not renew its
// leases, and its engine may serve all the same. Their engines are asked. An agent probes its engines from their own host, and
// less often, so engines with a current lease are asked, too, from the first doubt until they are ready:
//
//	health of the worker   asked again
//	unknown                after 250 ms
//	ready                  after a second, or as soon as there is a doubt; with a current lease only then
//	half-open              after a second, or as soon as there is a doubt
//	suspect                after 100 ms
//	down                   after half a second
//
// What follows from the answers is in [fleet.Health]. A worker without a current lease that goes down leaves the fleet.
//
// An engine whose scheduler hangs may answer a question for its health all the same. With a canary it is asked for a completion of one
// token, too: when it has done nothing for the canary's interval, and after a doubt. A failed completion counts as the answer to the
// question, until one is answered. Of an engine with several ranks each rank is asked for completions, by itself: see rankprobe.go.

// askTime is the longest time that an engine may take to answer. A frozen process accepts connections and never answers.
const askTime = time.Second

// askedAtOnce bounds the engines that are asked at the same time.
const askedAtOnce = 64

// pauses has the time between an answer and the next question, by the health of a worker.
var pauses = [fleet.HealthStates]time.Duration{
	fleet.HealthUnknown: 250 * time.Millisecond, fleet.HealthReady: time.Second, fleet.HealthHalfOpen: time.Second,
	fleet.HealthSuspect: 100 * time.Millisecond, fleet.HealthDown: 500 * time.Millisecond,
}

// ProbeConfig is read by Probe and not changed later.
type ProbeConfig struct {
	Fleet *fleet.Fleet
	Log   *slog.Logger
	// Engines makes the connections to engines; nil makes them without TLS.
	Engines *enginetls.Client
	// Metrics registers the metrics of the probes; nil for none.
	Metrics prometheus.Registerer
	// Canary returns how long the workers of a model may have done nothing before they are asked for a completion of one token; 0 asks for
	// none. Nil is none for all.
	Canary func(model string) time.Duration
	// Died is called when the engine of a worker that is down refuses connections, or answers with an error: its
	// process has ended, or has lost its cache. It is called once until the engine answers again. Nil is not called.
	Died func(w *fleet.Worker)
}

// Probe asks the engines of all workers of the fleet that no agent reports, or that are in doubt, until ctx ends.
func Probe(ctx context.Context, cfg ProbeConfig) {
	p := &prober{
		ProbeConfig: cfg, slots: make(chan struct{}, askedAtOnce),
		client: &http.Client{Timeout: askTime, Transport: &http.Transport{DisableKeepAlives: true, DialContext: cfg.Engines.Dial(askTime)}},
		canaries: &http.Client{
			Timeout: canaryTime, Transport: &http.Transport{DisableKeepAlives: true, DialContext: cfg.Engines.Dial(askTime)},
		},
		kept: &http.Client{Timeout: askTime, Transport: &http.Transport{
			MaxIdleConnsPerHost: 1, IdleConnTimeout: 10 * time.Second, DialContext: cfg.Engines.Dial(askTime),
		}},
	}
	p.register()

	defer p.kept.CloseIdleConnections()
	follow(ctx, cfg.Fleet, p.targets, p.askAgain)
}

// prober asks engines. Each has its own goroutine, so that a silent one does not delay the others.
type prober struct {
	ProbeConfig
	// client makes a connection for each question: an old one would not show that the engine accepts no more. kept keeps its connections,
	// for engines about which there is no doubt.
	client, kept *http.Client
	canaries     *http.Client
	slots        chan struct{}
	probes       *prometheus.CounterVec // nil without metrics
	downs        *prometheus.CounterVec // nil without metrics
}

// target is an engine that is asked.
type target struct {
	worker, model, address, path string
	rank                         int           // the only rank that is asked; wholeEngine for the engine
	inDoubt                      bool          // it is asked in doubt only
	health                       *fleet.Health // another one in another epoch
}

// wholeEngine is the rank of a target that is an engine.
const wholeEngine = -1

// targets returns the engines that may be asked now.
func (p *prober) targets() map[target]bool {
	wanted := map[target]bool{}
	for _, r := range p.Fleet.Snapshot().Ranks {
		path := r.Worker.AskedPath()
		if path == "" || r.Worker.Address == "" {
			continue
		}
		t := target{r.Worker.Name, r.Worker.Model, r.Worker.Address, path, wholeEngine, r.Worker.AskedInDoubt(), r.Load.Health()}
		if r.Number == 0 {
			wanted[t] = true
		}
		if health := r.Load.RankHealth(); health != nil {
			t.rank, t.health = r.Number, health
			wanted[t] = true
		}
	}
	return wanted
}

// askAgain asks one engine until ctx ends.
func (p *prober) askAgain(ctx context.Context, t target) {
	if t.rank != wholeEngine {
		p.askRankAgain(ctx, t)
		return
	}
	e := engineLog{prober: p, target: t}
	state := t.health.View().State
	if t.inDoubt && state == fleet.HealthReady {
		p.rest(ctx, t, time.Time{}, e.lastCanary())
	}
	for ctx.Err() == nil {
		var ok bool
		state, ok = p.askEngine(ctx, t, &e)
		if !ok {
			return
		}

		var next time.Time
		if !t.inDoubt || state != fleet.HealthReady {
			next = time.Now().Add(pauses[state] + jitter(state))
		}
		p.rest(ctx, t, next, e.lastCanary())
	}
}

// jitter is the random part of a pause, which spreads the questions of several processes.
func jitter(state fleet.HealthState) time.Duration { return rand.N(pauses[state] / 5) }

// rest waits until next, unless that is zero, and while the target is ready also until a canary is due, or until there is a doubt. canary
// is the time of the last canary; nil if the target is asked for none.
//
// A canary is due after its interval without progress, and a jitter as that of questions. It does not wait for the next question: with an
// interval as long as the pause it would often come a whole pause late.
func (p *prober) rest(ctx context.Context, t target, next time.Time, canary *time.Time) {
	spread := jitter(fleet.HealthReady)
	for ctx.Err() == nil {
		until := next
		if every := p.canary(t.model); every > 0 && canary != nil && t.health.View().State == fleet.HealthReady {
			last := *canary
			if progress := t.health.Progress(); progress.After(last) {
				last = progress
			}
			if due := last.Add(every + spread); next.IsZero() || due.Before(next) {
				until = due
			}
		}

		var passed <-chan time.Time // never without a time
		if !until.IsZero() {
			wait := time.Until(until)
			if wait <= 0 {
				return
			}
			passed = time.After(wait)
		}
		select {
		case <-passed: // the target may have made progress meanwhile
		case <-t.health.Wake():
			return
		case <-ctx.Done():
		}
	}
}

// askEngine asks an engine once, and returns the health of its worker then. ok is false when ctx ends or the worker has left.
func (p *prober) askEngine(ctx context.Context, t target, e *engineLog) (state fleet.HealthState, ok bool) {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return 0, false
	}

	asked := time.Now()
	client := p.client
	if t.health.View().State == fleet.HealthReady {
		client = p.kept
	}
	answer, detail := engineprobe.AskHealth(ctx, client, t.address, t.path)
	wanted := e.wantsCanary(asked)
	if wanted {
		e.canary = asked // also if the engine does not answer: it is asked again soon
	}
	if answer == engineprobe.Healthy && wanted {
		answer, detail = engineprobe.AskCompletion(ctx, p.canaries, t.address, t.model)
		e.sick = answer != engineprobe.Healthy
	}
	if ctx.Err() != nil {
		return 0, false
	}
	if p.probes != nil {
		p.probes.WithLabelValues(answer.String()).Inc()
	}

	found := fleet.Probe{
		Healthy: answer == engineprobe.Healthy, Refused: answer == engineprobe.Refusing, Detail: detail, Asked: asked,
	}
	before, after, ok := p.Fleet.ObserveProbe(t.worker, t.address, found, time.Now())
	if !ok {
		return 0, false
	}
	e.observe(before, after, answer)
	return after.State, true
}

// canaryTime is the longest time that an idle engine may take for a completion of one token.
const canaryTime = 5 * time.Second

// canary returns the interval of a model's canaries; 0 for none.
func (p *prober) canary(model string) time.Duration {
	if p.Canary == nil {
		return 0
	}
	return p.Canary(model)
}

// register registers the metrics.
func (p *prober) register() {
	if p.Metrics == nil {
		return
	}
	part := metric.For(p.Metrics, "health")
	p.probes = part.Counters("probes_total",
		"Questions for the health of engines that no agent reports, or that are in doubt, by answer.", "answer")
	p.downs = part.Counters("downs_total",
		"Workers that went down after probes by this process, by the answer that confirmed it. Requests go to others.", "answer")
	for a := range engineprobe.Answer(engineprobe.Answers) {
		p.probes.WithLabelValues(a.String())
	}
	for _, a := range []engineprobe.Answer{engineprobe.Refusing, engineprobe.Silent} {
		p.downs.WithLabelValues(a.String())
	}
	p.Metrics.MustRegister(metric.Collector(func(out metric.Scrape) { collectHealth(out, p.Fleet) }, healthWorkers))
}

// healthWorkers is the metric of collectHealth.
var healthWorkers = metric.Desc("health", "workers", "Workers of the fleet by their health: see docs/routing.md.", "health")

// collectHealth counts the workers of a fleet by their health.
func collectHealth(out metric.Scrape, f *fleet.Fleet) {
	var counts [fleet.HealthStates]int
	for _, r := range f.Snapshot().Ranks {
		if r.Number == 0 {
			counts[r.Load.Health().View().State]++
		}
	}
	for state, n := range counts {
		out.Gauge(healthWorkers, float64(n), fleet.HealthState(state).String())
	}
}
