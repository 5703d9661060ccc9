package plan

import (
	"math"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// misses is the share of requests that missed the targets of a pool. The forecast takes arrivals for a rate with some spread around it.
// Where they come in bursts that it cannot see, requests miss however well it is made, and the pool becomes more careful by their share.
type misses struct{ missed, all float64 } // requests; older ones count less

const (
	// missesFor is the time in which the weight of a request falls to 0.37: some bursts long.
	missesFor = 20 * time.Minute
	// leastMissed is from how many requests their share means something.
	leastMissed = 50
	// mostStrain bounds the caution: it is the strain of two and a half times the allowed share of misses.
	mostStrain = 4
)

// after returns the share after further requests.
func (m misses) after(missed float64, all int, over time.Duration) misses {
	keep := math.Exp(-float64(over) / float64(missesFor))
	return misses{m.missed*keep + missed, m.all*keep + float64(all)}
}

// strain returns how far the share is above half of the allowed share: 0 for below, 1 at the allowed share.
func (m misses) strain(allowed float64) float64 {
	if m.all < leastMissed {
		return 0
	}
	return min(max(0, 2*m.share()/allowed-1), mostStrain)
}

func (m misses) share() float64 { return m.missed / m.all }

// observeMisses counts the requests of a step that missed the pool's targets: the TTFT by what clients saw, and the ITL by the times
// that engines report. The first requests do not count: no plan could have had a worker ready for them.
func (p *pool) observeMisses(o *Observation, d *Demand, s *shape) {
	if o.Between || d == nil || d.Over <= 0 {
		return
	}
	if p.memory.demandSince.IsZero() {
		p.memory.demandSince = o.At
	}
	if o.At.Sub(p.memory.demandSince) < p.startUp() {
		return
	}
	late, slow := 0.0, 0.0
	if p.configured.Role != fleet.Decode {
		late = float64(d.Late)
	}
	if p.configured.Role != fleet.Prefill {
		p.learnGaps(s, d.Over)
		slow = p.slowShare() * float64(d.Streams)
	}
	p.memory.misses = p.memory.misses.after(max(late, slow), d.Streams, d.Over)
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

// spreadOfGaps is the standard deviation of the mean times between tokens of an engine's requests, as a share of their mean.
const spreadOfGaps = 0.12

// slowShare returns the share of the running requests whose mean time between tokens is longer than the target. Where the engine's mean is
// at the target, half of them are.
func (p *pool) slowShare() float64 {
	target := p.targets().ITL.Seconds()
	if target <= 0 {
		return 0
	}
	slow, all := 0.0, 0.0
	for i, w := range p.workers {
		gap := p.memory.seen[i].gap.Seconds()
		if gap == 0 || w.Load == nil {
			continue
		}
		running := float64(w.Load.Running)
		slow += running * 0.5 * math.Erfc((target/gap-1)/spreadOfGaps/math.Sqrt2)
		all += running
	}
	if all == 0 {
		return 0
	}
	return slow / all
}

// strain returns the caution that the pool's misses ask for.
func (p *pool) strain() float64 {
	return p.memory.misses.strain(max(p.model.Targets.AllowedMisses(), 0.01))
}

// headroom returns the quantile of the forecast that must be served. Targets that allow fewer misses than the default leave the same share
// less of the part above it: while the rate is higher than was planned for, most requests may miss. A strain of 1 leaves 0.37 of it.
func (p *pool) headroom() float64 {
	rest := 1 - p.model.Tuning.withDefaults().Headroom
	strict := min(1, p.model.Targets.AllowedMisses()/capacity.DefaultAllowedMisses)
	return 1 - rest*strict*math.Exp(-p.strain())
}

// downAfter returns for how long the pool keeps the most workers that it needed: at the greatest strain 13 times as long.
func (p *pool) downAfter() time.Duration {
	last := p.model.Tuning.withDefaults().DownAfter
	return last + time.Duration(3*p.strain()*float64(last))
}
