package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// pool is one pool while its plan is made.
type pool struct {
	model      *Model
	configured *Configured
	memory     *poolMemory
	workers    []*Worker     // all of the pool, sorted by name
	partners   []fleet.Place // of the workers with which the pool's exchange KV caches, as far as their places are known
	rollout    *Held         // the number below which the pool does not fall while a rollout replaces its workers; nil for no rollout

	engine    capacity.Engine // as corrected by observations
	tokenRate float64         // prompt tokens per second that one engine computes; 0 is unknown
	present   int             // workers that the present rate needs; 0 is unknown
	// The results.
	replicas       int
	reason         string
	held           bool // a person or an autoscaler has set the number
	rests          bool // it has no worker while its model is idle
	asleep         bool // its model is idle
	unknown        []string
	rate, expected float64 // requests per second
}

// newPool returns a pool of an observation, after its memory has learned from it.
//
// rate is the rate of the last interval, in requests per second; negative if it is unknown.
func newPool(o *Observation, m *Model, c *Configured, memory *poolMemory, s capacity.Shape, rate float64, d *Demand) *pool {
	p := &pool{model: m, configured: c, memory: memory}
	if h := p.heldBy(o.Held); h != nil && h.MayRise {
		p.rollout = h
	}
	for i := range o.Workers {
		w := o.Workers[i]
		if w.Model == m.Name && w.isPartnerOf(c.Role) && w.Place.IsKnown() && !slices.Contains(p.partners, w.Place) {
			p.partners = append(p.partners, w.Place)
		}
		if w.Model != m.Name || w.Role != c.Role {
			continue
		}
		if _, drained := slices.BinarySearch(memory.drained, w.Name); drained && w.State != fleet.Down {
			w.State = fleet.Draining
		}
		p.workers = append(p.workers, &w)
	}
	slices.SortFunc(p.workers, func(a, b *Worker) int { return strings.Compare(a.Name, b.Name) })

	p.learnStarts(o.At)
	p.findLate(o.At)
	p.engine = c.Engine
	if c.Engine.Timing == nil {
		return p
	}
	p.learnSpeculation()
	if !o.Between {
		p.learnSteps(s, rate)
		p.learnPrefills(s, d)
	}
	p.engine.Timing = perfmodel.Corrected{
		Timing: c.Engine.Timing, PrefillBy: memory.prefill.Value(), DecodeBy: memory.decode.Value(),
	}
	p.tokenRate = p.engine.PrefillRate(s) * s.Prompt
	return p
}

// count returns how many workers are in a state.
func (p *pool) count(s fleet.State) (n int) {
	for _, w := range p.workers {
		if w.State == s {
			n++
		}
	}
	return n
}

// usable returns how many workers serve, or will when they have started.
func (p *pool) usable() int {
	return p.count(fleet.Ready) + p.count(fleet.Starting) - len(p.memory.late)
}

// A worker that takes longer than lateBy start-up times, and than lateAfter, does not count as coming any more. Starts of one engine differ
// by two or three times: the first one on a node pulls the image and reads the weights from afar. A worker beyond that waits for something
// that does not come by itself, such as a GPU.
const (
	lateBy    = 4
	lateAfter = 30 * time.Second
)

// patience returns for how long a worker that starts counts as coming.
func (p *pool) patience() time.Duration { return max(lateAfter, lateBy*p.startUp()) }

// findLate remembers which workers do not count as coming.
func (p *pool) findLate(now time.Time) {
	p.memory.late = nil
	for _, w := range p.workers {
		if w.State == fleet.Starting && !w.Since.IsZero() && now.Sub(w.Since) > p.patience() {
			p.memory.late = append(p.memory.late, w.Name)
		}
	}
}

// isLate reports whether a worker starts and does not count as coming.
func (p *pool) isLate(w *Worker) bool {
	_, late := slices.BinarySearch(p.memory.late, w.Name)
	return late
}

// explainWait adds why the last plan of the pool is not carried out yet.
func (p *pool) explainWait(all []Wait) {
	for i := range all {
		if w := &all[i]; w.Model == p.model.Name && w.Role == p.configured.Role {
			p.reason += "; " + w.Why
		}
	}
}

// explainStarts adds the worker that does not start to the reason, the one that has waited for the longest, with the known cause.
func (p *pool) explainStarts(now time.Time) {
	var first *Worker
	more := -1
	for _, w := range p.workers {
		if w.State != fleet.Starting || w.Trouble == "" && !p.isLate(w) {
			continue
		}
		more++
		if first == nil || w.Since.Before(first.Since) {
			first = w
		}
	}
	if first == nil {
		return
	}

	also := ""
	if more > 0 {
		also = fmt.Sprintf(", and %d more", more)
	}
	waits := now.Sub(first.Since).Round(time.Second)
	if p.isLate(first) {
		p.reason += fmt.Sprintf("; %s does not count as coming%s: not ready after %v, and a start takes %v", first.Name, also, waits,
			p.startUp().Round(time.Second))
	} else {
		p.reason += fmt.Sprintf("; %s does not start%s: not ready after %v", first.Name, also, waits)
	}
	if first.Trouble != "" {
		p.reason += ", " + first.Trouble
	}
}

// learnStarts fills since when workers have their states, and measures how long they take to start.
func (p *pool) learnStarts(now time.Time) {
	var seen []seenWorker
	for _, w := range p.workers {
		before, known := p.lastSeen(w.Name)
		if known && before.state == fleet.Starting && w.State == fleet.Ready {
			// A worker that was late has waited for something else than its engine.
			p.memory.startUp = meanStart(p.memory.startUp, min(now.Sub(before.since), p.patience()))
		}

		switch {
		case known && before.state == w.State:
			w.Since = before.since
		case w.Since.IsZero() && p.memory.replicas >= 0:
			w.Since = now // at the first plan nothing is known of before
		}
		seen = append(seen, seenWorker{w.Name, w.State, w.Since, before.gap})
	}
	p.memory.seen = seen
}

// lastSeen returns how a worker was at the last plan; false for one that was not there.
func (p *pool) lastSeen(name string) (w seenWorker, known bool) {
	i, known := slices.BinarySearchFunc(p.memory.seen, name, func(s seenWorker, name string) int { return strings.Compare(s.name, name) })
	if !known {
		return seenWorker{}, false
	}
	return p.memory.seen[i], true
}

// meanStart returns the mean of starts after one more. The newest counts a third, because starts change with images and caches.
func meanStart(mean, newest time.Duration) time.Duration {
	if mean == 0 {
		return newest
	}
	return mean + (newest-mean)/3
}

// startUp returns how long a worker takes to start, as far as is known.
func (p *pool) startUp() time.Duration {
	if p.memory.startUp > 0 {
		return p.memory.startUp
	}
	return p.configured.StartUp
}

// learnSpeculation takes over the tokens of a decode step from engines that report them.
func (p *pool) learnSpeculation() {
	sum, n := 0.0, 0
	for _, w := range p.workers {
		if w.Load != nil && w.Load.StepTokens > 0 {
			sum += w.Load.StepTokens
			n++
		}
	}
	if n > 0 {
		p.engine.StepTokens = max(1, sum/float64(n))
	}
}

// learnSteps compares the times between tokens that engines report with the model's times. The engines of a pool are one
// observation.
func (p *pool) learnSteps(s capacity.Shape, rate float64) {
	took, expected := 0.0, 0.0
	engines := 0
	for _, w := range p.workers {
		if w.State != fleet.Ready || w.Load == nil || w.Load.ITL <= 0 || w.Load.Running == 0 {
			continue
		}
		took += w.Load.ITL.Seconds()
		expected += p.step(p.configured.Engine.Timing, s, w).Seconds()
		engines++
	}
	if engines == 0 {
		return
	}
	if share, known := p.promptShare(s, rate, seconds(expected/float64(engines))); known {
		p.memory.decode = p.memory.decode.Observe(seconds(took), seconds(expected/(1-share)))
	}
}

// step returns the time between tokens of a worker's running requests, by a timing, without prompts between them.
func (p *pool) step(timing perfmodel.Timing, s capacity.Shape, w *Worker) time.Duration {
	running := max(1, w.Load.Running)
	tokens := int(w.Load.KVUsage * float64(p.engine.KVTokens))
	if p.engine.KVTokens == 0 {
		tokens = int(float64(running) * (s.Prompt + s.Answer/2))
	}
	took := timing.Decode(perfmodel.Decode{Requests: running, Context: tokens, Capacity: p.engine.KVTokens})
	return time.Duration(float64(took) / max(1, p.engine.StepTokens))
}

// learnPrefills compares the time of a prefill that routers have learned with the model's time, at the mean length, if routers
// have observed more since the last time.
func (p *pool) learnPrefills(s capacity.Shape, d *Demand) {
	if d == nil || p.configured.Role == fleet.Decode || d.Prefill.Observed < leastPrefills || d.Prefill.Observed <= p.memory.prefills {
		return
	}
	p.memory.prefills = d.Prefill.Observed
	fresh := int(max(1, s.Prompt*(1-s.Cached)))
	prefix := int(s.Prompt) - fresh
	expected := p.configured.Engine.Timing.Prefill(perfmodel.Prefill{Requests: 1, Input: prefix + fresh, Prefix: prefix})
	p.memory.prefill = p.memory.prefill.Observe(d.Prefill.Prefill(fresh), expected)
}

// leastPrefills is from how many observations on the routers' line is no longer their first estimate.
const leastPrefills = 20

// mostPromptShare is the share of the time for prompts from which times between tokens show little of the steps.
const mostPromptShare = 0.7

// promptShare returns the share of the time that prompts take on an engine of the pool, whose steps take some time; false if it is not
// known well enough to learn from.
func (p *pool) promptShare(s capacity.Shape, rate float64, step time.Duration) (share float64, known bool) {
	switch p.configured.Role {
	case fleet.Prefill:
		return 0, false
	case fleet.Decode:
		return 0, true
	}
	ready := p.count(fleet.Ready)
	if rate < 0 || ready == 0 {
		return 0, false
	}
	share = p.configured.Engine.PromptShare(s, rate/float64(ready), step)
	return share, share <= mostPromptShare
}

// seconds returns a duration.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
