package plan

import (
	"math"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// misses is the share of requests that missed the targets of a pool. The forecast takes arrivals for a rate with some spread around it, and
// the capacity model takes the arrivals of a moment for independent ones. If they come in bursts that these cannot see, requests miss
// however well both are made, and the pool becomes more careful by their share:
//
//	misses                                                    the pool
//	all                                        plans for a higher quantile of the forecast, and keeps for longer what the rate needed
//	with as many workers as the rate needed    plans for more than the rate, because the capacity model is too optimistic
//
// A jump of the rate during a start-up does not have the second effect: the next ones need workers sooner, and not more of them.
type misses struct{ missed, enough, all float64 } // requests; older ones count less

const (
	// missesFor is the time in which the weight of a request falls to 0.37: some bursts long.
	missesFor = 20 * time.Minute
	// leastMissed is from how many requests their share means something.
	leastMissed = 50
	// mostStrain bounds the caution: it is the strain of two and a half times the allowed share of misses.
	mostStrain = 4
	// marginBy is the logarithm of the margin at a strain of 1, which is half as much again.
	marginBy = 0.4
	// enoughFor is for how long a pool must have had enough workers: requests that end in this time may have waited for a worker.
	enoughFor = time.Minute
)

// after returns the share after further requests. A time without requests shows nothing, so they count as before.
func (m misses) after(missed, enough float64, all int, over time.Duration) misses {
	if all == 0 {
		return m
	}
	keep := math.Exp(-float64(over) / float64(missesFor))
	return misses{m.missed*keep + missed, m.enough*keep + enough, m.all*keep + float64(all)}
}

// strain returns how far the share of some of the misses is above half of the allowed share: 0 for below, 1 at the allowed share.
func (m misses) strain(missed, allowed float64) float64 {
	if m.all < leastMissed {
		return 0
	}
	return min(max(0, 2*missed/m.all/allowed-1), mostStrain)
}

func (m misses) share() float64 { return m.missed / m.all }

// observeMisses counts the requests of a step that missed the pool's targets: the TTFT by what clients saw, and the ITL by the times
// that engines report. The first requests do not count: no plan could have had a worker ready for them.
func (p *pool) observeMisses(o *Observation, d *Demand, m *memory) {
	if o.Between || d == nil || d.Over <= 0 {
		return
	}
	if p.memory.demandSince.IsZero() {
		p.memory.demandSince = o.At
	}
	if p.count(fleet.Ready) < p.present {
		p.memory.shortAt = o.At
	}
	if o.At.Sub(p.memory.demandSince) < p.startUp() {
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
	enough := missed
	if o.At.Sub(p.memory.shortAt) < enoughFor {
		enough = 0
	}
	p.memory.misses = p.memory.misses.after(missed, enough, d.Streams, d.Over)
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
	keep := math.Exp(-float64(over) / float64(missesFor))
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

// strain returns the caution that the pool's misses ask for.
func (p *pool) strain() float64 { return p.strainBy(p.memory.misses.missed) }

// strainBy returns the caution that some of the misses ask for.
func (p *pool) strainBy(missed float64) float64 {
	return p.memory.misses.strain(missed, max(p.model.Targets.AllowedMisses(), 0.01))
}

// margin returns the factor by which the pool plans for more than the rate.
func (p *pool) margin() float64 { return math.Exp(marginBy * p.strainBy(p.memory.misses.enough)) }

// headroom returns the quantile of the forecast that must be served. Targets that allow fewer misses than the default leave the same share
// less of the part above it: while the rate is higher than was planned for, most requests may miss. A strain of 1 leaves 0.37 of it.
func (p *pool) headroom() float64 {
	rest := 1 - p.model.Tuning.withDefaults().Headroom
	strict := min(1, p.model.Targets.AllowedMisses()/capacity.DefaultAllowedMisses)
	return 1 - rest*strict*math.Exp(-p.strain())
}

// downAfter returns for how long the pool keeps the most workers that the rate needed: at the greatest strain 13 times as long.
func (p *pool) downAfter() time.Duration {
	last := p.model.Tuning.withDefaults().DownAfter
	return last + time.Duration(3*p.strain()*float64(last))
}
