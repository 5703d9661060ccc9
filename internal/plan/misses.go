package plan

import (
	"math"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// misses is the share of requests that missed the targets of a pool while it had fewer workers than the rate needed. A jump of the rate
// during a start-up leaves too few: the pool becomes more careful, and plans for a higher quantile of the forecast. Misses with enough
// workers have another cause: see bursts.
type misses struct{ short, all float64 } // requests; older ones count less

const (
	// missesFor is the time in which the weight of a request falls to 0.37: some bursts long.
	missesFor = 20 * time.Minute
	// leastMissed is from how many requests their share means something.
	leastMissed = 50
	// mostStrain bounds the caution: it is the strain of two and a half times the allowed share of misses.
	mostStrain = 4
	// enoughFor is for how long a pool must have had its workers: requests that end in this time may have waited for a worker.
	enoughFor = time.Minute
)

// after returns the share after further requests. A time without requests shows nothing, so they count as before.
func (m misses) after(short float64, all int, over time.Duration) misses {
	if all == 0 {
		return m
	}
	keep := keepsMisses(over)
	return misses{m.short*keep + short, m.all*keep + float64(all)}
}

// keepsMisses returns the weight that earlier requests keep.
func keepsMisses(over time.Duration) float64 { return math.Exp(-float64(over) / float64(missesFor)) }

func (m misses) share() float64 { return m.short / m.all }

// observeMisses counts the requests of a step that missed the pool's targets: the TTFT by what clients saw, and the ITL by the times
// that engines report. The first requests do not count, and end some time later: no plan could have had a worker ready for them.
func (p *pool) observeMisses(o *Observation, d *Demand, m *memory) {
	if o.Between || d == nil || d.Over <= 0 {
		return
	}
	if p.memory.demandSince.IsZero() {
		p.memory.demandSince = o.At
	}
	ready := p.count(fleet.Ready)
	if ready != p.memory.ready {
		p.memory.ready, p.memory.readyAt = ready, o.At
	}
	if ready < p.present {
		p.memory.shortAt = o.At
	}
	if o.At.Sub(p.memory.demandSince) < p.startUp()+enoughFor {
		return
	}

	missed, rest := 0.0, float64(d.Streams)
	if p.configured.Role != fleet.Decode {
		missed = float64(d.Late)
		rest = max(0, rest-missed)
	}
	if p.configured.Role != fleet.Prefill {
		p.learnGaps(&m.shape, d.Over)
		missed += p.slow(m, d) * rest
	}
	if o.At.Sub(p.memory.readyAt) >= enoughFor {
		p.observeBursts(missed, d, m)
	}
	short := missed
	if o.At.Sub(p.memory.shortAt) >= enoughFor {
		short = 0
	}
	p.memory.misses = p.memory.misses.after(short, d.Streams, d.Over)
}

// slow returns the share of the streams whose mean time between tokens was longer than the target. Routers have measured it where they know
// the number of tokens, and it is estimated for other streams.
func (p *pool) slow(m *memory, d *Demand) float64 {
	if d.Timed >= d.Streams {
		return float64(d.Slow) / float64(max(1, d.Timed))
	}
	return (float64(d.Slow) + p.slowShare(m, d)*float64(d.Streams-d.Timed)) / float64(d.Streams)
}

// learnGaps updates the mean times between tokens of the pool's engines, over about as long as an answer takes.
func (p *pool) learnGaps(s *shape, over time.Duration) {
	answer := s.capacity().Answer
	seen := slices.Clone(p.memory.seen)
	for i, w := range p.workers {
		if w.Load == nil || w.Load.ITL <= 0 {
			continue
		}
		gap := &seen[i].gap
		if *gap == 0 {
			*gap = w.Load.ITL
			continue
		}
		made := over.Seconds() / w.Load.ITL.Seconds() // tokens of a request
		share := 1 - math.Exp(-made/answer)
		*gap += time.Duration(share * float64(w.Load.ITL-*gap))
	}
	p.memory.seen = seen
}

// slowShare returns the share of the running requests whose mean time between tokens is longer than the target.
func (p *pool) slowShare(m *memory, d *Demand) float64 {
	target := p.targets().ITL
	if target <= 0 || p.engine.Timing == nil {
		return 0
	}
	shape := m.shape.capacity()
	ready := float64(max(1, p.count(fleet.Ready)))

	slow, all := 0.0, 0.0
	for i, w := range p.workers {
		gap := p.memory.seen[i].gap
		if gap == 0 || w.Load == nil {
			continue
		}
		prompts := 0.0
		if p.configured.Role == fleet.Aggregated {
			// A burst is spread over the engines, so each has less of the dispersion.
			between := 1 - p.step(p.engine.Timing, shape, w).Seconds()/gap.Seconds() // share of the time
			prompts = max(float64(d.Requests)/d.Over.Seconds()/ready, between*p.engine.PrefillRate(shape))
			prompts *= 1 + (m.arrivals.dispersion()-1)/ready
		}
		running := float64(w.Load.Running)
		slow += running * p.engine.Slower(shape, gap, prompts, target)
		all += running
	}
	if all == 0 {
		return 0
	}
	return slow / all
}

// arrivals measures in what bursts requests come, by the numbers of requests in neighbouring steps. Older ones count less.
type arrivals struct{ squares, sum, last float64 }

// leastArrivals is from how many requests their dispersion is known.
const leastArrivals = 20

// after returns the measurement after one more step.
func (a arrivals) after(requests int, over time.Duration) arrivals {
	keep := keepsMisses(over)
	n := float64(requests)
	return arrivals{a.squares*keep + (n-a.last)*(n-a.last), a.sum*keep + n + a.last, n}
}

// dispersion returns the variance of the number of requests in a step by its mean. It is 1, and not less, for independent arrivals.
func (a arrivals) dispersion() float64 {
	if a.sum < leastArrivals {
		return 1
	}
	return max(1, a.squares/a.sum)
}

// strain returns how careful the pool is: how far the share of its misses is above half of the allowed share, 0 for below, and 1 at the
// allowed share.
func (p *pool) strain() float64 {
	if p.memory.misses.all < leastMissed {
		return 0
	}
	return min(max(0, 2*p.memory.misses.share()/p.allowed()-1), mostStrain)
}

// allowed returns the share of the requests that may miss the targets.
func (p *pool) allowed() float64 { return max(p.model.Targets.AllowedMisses(), 0.01) }

// headroom returns the quantile of the forecast that must be served. Targets that allow fewer misses than the default leave the same share
// less of the part above it: while the rate is higher than was planned for, most requests may miss. A strain of 1 leaves 0.37 of it.
func (p *pool) headroom() float64 {
	rest := 1 - p.model.Tuning.withDefaults().Headroom
	strict := min(1, p.model.Targets.AllowedMisses()/capacity.DefaultAllowedMisses)
	return 1 - rest*strict*math.Exp(-p.strain())
}
