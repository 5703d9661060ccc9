package plan

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/plan/forecast"
)

// The algorithm "sla" asks for as many workers as keep the latencies within the targets.
//
//	known                              what counts
//	demand                             the forecast for when a worker started now is ready, and the requests that wait until then
//	demand and the engines' load       the greater need of both, with Tuning.Mode both
//	the engines' load                  the work that they have now
//	neither                            the last plan stays, within its bounds
//
// A pool grows at once to its need, and shrinks to the most that it needed in the last Tuning.DownAfter. The more requests miss the
// targets, the more it is planned for: see bursts and misses.

// demand is the load of a model while its plan is made.
type demand struct {
	known bool
	// now and ahead are requests per second: expected in the next step, and at most until a new worker is ready.
	now, ahead float64
	// waiting are requests that wait in routers and engines, waitingTokens their prompt tokens.
	waiting, waitingTokens float64
	shape                  capacity.Shape
}

// staleDemand is after how many steps without demand it counts as unknown. Between two steps a router may just have restarted.
const staleDemand = 6

// observeDemand updates the forecast of a model and its shape.
func (m *memory) observeDemand(o *Observation, d *Demand) {
	if o.Between {
		return
	}
	if d == nil || d.Over <= 0 {
		m.rate = m.rate.Observe(math.NaN())
		return
	}
	m.rate = m.rate.Observe(float64(d.Requests) / d.Over.Seconds())
	m.shape = m.shape.after(d)
	m.arrivals = m.arrivals.after(d.Requests, d.Over)
	m.demandAt = o.At
}

// demand returns the demand that is expected of a model, until a worker that starts now is ready. Headroom is the quantile of the forecast.
func (m *memory) demand(o *Observation, d *Demand, model *Model, startUp time.Duration, headroom float64) demand {
	every := cmp.Or(model.Every, DefaultEvery)
	out := demand{shape: m.shape.capacity()}
	if d != nil {
		out.waiting, out.waitingTokens = float64(d.Waiting), float64(d.WaitingTokens)
	}
	if m.demandAt.IsZero() || o.At.Sub(m.demandAt) > staleDemand*every {
		return out
	}

	out.known = true
	out.now = m.rate.At(1).Mean
	out.ahead = out.now
	// The rate may be highest on the way.
	steps := 1 + int(math.Ceil(float64(startUp)/float64(every)))
	for _, at := range []int{1, (1 + steps) / 2, steps, steps + 1} {
		out.ahead = max(out.ahead, withoutChance(m.rate.At(at), every).Quantile(headroom))
	}
	return out
}

// withoutChance returns the estimate of the rate itself. The rate observed in a step varies around it by chance, with the
// variance of a Poisson process, also while the rate stays. Queues level that out, and the capacity model has it already.
func withoutChance(e forecast.Estimate, step time.Duration) forecast.Estimate {
	chance := e.Mean / step.Seconds()
	e.Deviation = math.Sqrt(max(0, e.Deviation*e.Deviation-chance))
	return e
}

// planSLA sets the replicas of a model's pools.
func (m *memory) planSLA(o *Observation, d *Demand, pools []*pool) {
	var startUp time.Duration
	headroom := 0.0
	for _, p := range pools {
		startUp = max(startUp, p.startUp())
		headroom = max(headroom, p.headroom())
	}
	expected := m.demand(o, d, pools[0].model, startUp, headroom)
	expected.shape.Bursts = dispersionOf(pools)
	for _, p := range pools {
		p.note(m, &expected)
		if expected.known && expected.now >= leastRate && p.engine.Timing != nil {
			p.present = p.needOfRate(expected.now, &expected).Replicas
		}
		p.observeMisses(o, d, m)
	}

	expected.shape.Bursts = dispersionOf(pools)
	for _, p := range pools {
		p.settle(p.need(&expected), o.At)
	}
}

// note lists the unknown values that the plan has to do without.
func (p *pool) note(m *memory, d *demand) {
	if !d.known {
		last := "ever"
		if !m.demandAt.IsZero() {
			last = "since " + m.demandAt.UTC().Format(time.RFC3339)
		}
		p.unknown = append(p.unknown, "demand, "+last)
	} else if !m.shape.isKnown() {
		p.unknown = append(p.unknown, "lengths of prompts or answers")
	}
	if p.engine.Timing == nil {
		p.unknown = append(p.unknown, "how fast engines are")
	}

	silent, serving := 0, 0
	for _, w := range p.workers {
		if w.State == fleet.Ready {
			serving++
			if w.Load == nil {
				silent++
			}
		}
	}
	if silent > 0 {
		p.unknown = append(p.unknown, fmt.Sprintf("load of %d of %d workers", silent, serving))
	}
}

// need sets how many workers a pool needs, with the reason.
func (p *pool) need(d *demand) (n int) {
	tuning := p.model.Tuning.withDefaults()
	load, loadKnown := p.needOfLoad(d)
	switch {
	case d.known && tuning.Mode != ModeLoad && p.engine.Timing != nil:
		n = p.needOfDemand(d)
		if loadKnown && load > n && tuning.Mode == ModeBoth {
			n = load
			p.reason += fmt.Sprintf("; what engines have to do now needs %d", load)
		}
	case loadKnown:
		n = load
		p.reason = fmt.Sprintf("%d for what engines have to do now", n)
	default:
		n = p.last()
		p.reason = fmt.Sprintf("%d stay: too little is known", n)
	}
	return n
}

// last returns the replicas of the last plan, or without one the configured replicas, or the usable workers if there are more.
func (p *pool) last() int {
	if p.memory.replicas < 0 {
		return max(p.configured.Replicas, p.counted())
	}
	return p.memory.replicas
}

// needOfDemand returns how many workers the expected demand needs.
func (p *pool) needOfDemand(d *demand) int {
	if d.ahead < leastRate && d.waiting == 0 {
		p.reason = "no requests are expected"
		return 0
	}

	extra := p.backlog(d)
	need := p.needOfRate(max(d.ahead, leastRate)+extra, d)
	p.reason = p.sentence(d, need, extra)
	p.rate, p.expected = d.now, max(d.ahead, leastRate)+extra
	return need.Replicas
}

// needOfRate returns how many workers a rate needs.
func (p *pool) needOfRate(rate float64, d *demand) capacity.Need {
	return p.engine.Need(p.configured.Role, max(rate, leastRate), d.shape, p.targets(), p.most())
}

// leastRate is the rate below which no requests are expected, in requests per second: one in a quarter of an hour.
const leastRate = 1.0 / 900

// backlog returns the rate that is needed besides the rate of arrivals, to serve in time the requests that will be waiting when
// a new worker is ready.
func (p *pool) backlog(d *demand) float64 {
	if p.configured.Role == fleet.Decode {
		return 0 // prompts wait for prefill workers
	}
	waiting := d.waiting
	for _, w := range p.workers {
		if w.Load != nil {
			waiting += float64(w.Load.Waiting)
		}
	}

	served := p.engine.Most(p.configured.Role, max(1, p.usable()), d.shape)
	then := waiting + (d.now-served)*p.startUp().Seconds()
	if then <= 0 {
		return 0
	}
	return then / p.model.Tuning.withDefaults().Clear.Seconds()
}

// targets returns the targets that the pool's role determines.
func (p *pool) targets() capacity.Targets {
	t := p.model.Targets
	switch p.configured.Role {
	case fleet.Prefill:
		t.ITL, t.E2E = 0, 0
	case fleet.Decode:
		t.TTFT = 0
		if t.E2E > 0 {
			t.E2E = max(t.E2E-p.model.Targets.TTFT, 1)
		}
	}
	return t
}

// defaultMost bounds the workers of a pool for which none is configured, and utmost the workers of any pool: the time of a plan
// grows with it.
const (
	defaultMost = 1024
	utmost      = 1 << 14
)

// most returns the bound of the pool.
func (p *pool) most() int { return min(cmp.Or(p.configured.Max, defaultMost), utmost) }

// sentence describes a need that follows from demand.
func (p *pool) sentence(d *demand, n capacity.Need, extra float64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d for %.2f requests/s in %v (now %.2f)", n.Replicas, d.ahead, p.startUp().Round(time.Second), d.now)
	if extra > 0 {
		fmt.Fprintf(&b, " and %.2f/s of what waits", extra)
	}
	fmt.Fprintf(&b, ", prompts of %.0f tokens, %.0f %% cached, answers of %.0f", d.shape.Prompt, 100*d.shape.Cached, d.shape.Answer)

	t := p.targets()
	for _, l := range []struct {
		name      string
		v, target time.Duration
	}{{"TTFT", n.Latency.TTFT, t.TTFT}, {"ITL", n.Latency.ITL, t.ITL}, {"E2E", n.Latency.E2E, t.E2E}} {
		if l.target > 0 {
			fmt.Fprintf(&b, ", %s %s of %v", l.name, latencyText(l.v), l.target)
		}
	}
	if p.strain() > 0 {
		fmt.Fprintf(&b, ", more careful because lately %.0f %% of the requests missed the targets for lack of workers",
			100*p.memory.misses.share())
	}
	if v := d.shape.Bursts; v >= 1.05 {
		fmt.Fprintf(&b, ", in bursts of %.1f times the usual variance by the requests that missed the targets", v)
	}
	if !n.Met {
		b.WriteString(", which is the least load that makes sense: no number of workers meets the targets")
	}
	return b.String()
}

// latencyText rounds a latency to three digits or so.
func latencyText(d time.Duration) string {
	switch {
	case d == capacity.Never:
		return "without end"
	case d < 100*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// needOfLoad returns how many workers the engines' present work needs; false if no worker reports its load.
func (p *pool) needOfLoad(d *demand) (n int, known bool) {
	reporting := 0
	running, queued := d.waiting, d.waitingTokens
	for _, w := range p.workers {
		if w.Load == nil || w.State == fleet.Down {
			continue
		}
		reporting++
		running += float64(w.Load.Running + w.Load.Waiting)
		queued += float64(w.Load.QueuedTokens)
	}
	if reporting == 0 || p.engine.Timing == nil {
		return 0, false
	}

	t := p.targets()
	tokens := queued * (1 - min(d.shape.Cached, 0.99))
	each := p.engine.PrefillRate(d.shape) * d.shape.Prompt * (1 - min(d.shape.Cached, 0.99)) // tokens/s of an engine
	within := cmp.Or(t.TTFT, p.model.Tuning.withDefaults().Clear)
	prefill := int(math.Ceil(tokens / each / within.Seconds()))
	decode := int(math.Ceil(running / p.engine.Running(d.shape, t.ITL, 0)))
	switch p.configured.Role {
	case fleet.Prefill:
		return max(1, prefill), true
	case fleet.Decode:
		return max(1, decode), true
	}
	return max(1, prefill, decode), true
}
