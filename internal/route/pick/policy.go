package pick

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route/cost"
)

// Candidate is a rank that may take the request.
type Candidate struct {
	Rank  fleet.Rank
	Facts cost.Facts
	Score cost.Score
	// Line is what the score was reckoned with.
	Line perfmodel.Line
}

// Policy chooses a rank.
type Policy interface {
	// Choose returns the index of one of the candidates, of which there is at least one. It
	// may be asked again for the same request when the choice lost a race.
	Choose(candidates []Candidate, rng *rand.Rand) int
}

// The names of the policies.
const (
	KV          = "kv"
	RoundRobin  = "round-robin"
	Random      = "random"
	LeastLoaded = "least-loaded"
)

// New returns the policy of that name; the empty name is kv. Temperature is for kv alone.
func New(name string, temperature float64) (Policy, error) {
	if !(temperature >= 0) || math.IsInf(temperature, 1) {
		return nil, fmt.Errorf("temperature is %v: it must be a number of at least 0", temperature)
	}
	switch name {
	case KV, "":
		return leastCost{temperature}, nil
	case RoundRobin:
		return &roundRobin{}, nil
	case Random:
		return random{}, nil
	case LeastLoaded:
		return leastLoaded{}, nil
	}
	return nil, fmt.Errorf("policy %q is unknown: use kv, round-robin, random or least-loaded", name)
}

// leastCost takes the lowest total. With a temperature it draws: the probability of a
// candidate is proportional to exp(−(cost − min) / ((max − min) · temperature)), so that
// the temperature means the same at every scale of cost.
type leastCost struct{ temperature float64 }

func (p leastCost) Choose(cs []Candidate, rng *rand.Rand) int {
	if p.temperature == 0 {
		return argmin(cs, rng, func(a, b *Candidate) float64 { return a.Score.Total - b.Score.Total })
	}
	lo, hi := math.Inf(1), math.Inf(-1)
	for i := range cs {
		lo, hi = min(lo, cs[i].Score.Total), max(hi, cs[i].Score.Total)
	}
	if hi == lo {
		return rng.IntN(len(cs))
	}
	// Two passes over the exponentials, instead of a buffer for them.
	weight := func(i int) float64 {
		return math.Exp(-(cs[i].Score.Total - lo) / ((hi - lo) * p.temperature))
	}
	sum := 0.0
	for i := range cs {
		sum += weight(i)
	}
	at := rng.Float64() * sum
	for i := range cs {
		if at -= weight(i); at < 0 {
			return i
		}
	}
	return len(cs) - 1
}

// roundRobin gives every candidate its turn. Its counter is shared by all requests of the
// model, so a change of membership shifts the turns but never skews them.
type roundRobin struct{ next atomic.Uint64 }

func (p *roundRobin) Choose(cs []Candidate, _ *rand.Rand) int {
	return int((p.next.Add(1) - 1) % uint64(len(cs)))
}

type random struct{}

func (random) Choose(cs []Candidate, rng *rand.Rand) int { return rng.IntN(len(cs)) }

// leastLoaded takes the rank with the fewest requests that anyone knows of; among equals
// the one with the least booked work.
type leastLoaded struct{}

func (leastLoaded) Choose(cs []Candidate, rng *rand.Rand) int {
	return argmin(cs, rng, func(a, b *Candidate) float64 {
		if d := requests(a) - requests(b); d != 0 {
			return float64(d)
		}
		if d := a.Facts.Booked.PrefillTokens - b.Facts.Booked.PrefillTokens; d != 0 {
			return float64(d)
		}
		return float64(a.Facts.Booked.DecodeBlocks - b.Facts.Booked.DecodeBlocks)
	})
}

func requests(c *Candidate) int64 { return c.Facts.Booked.Requests + c.Score.ForeignRequests }

// argmin returns the least candidate; ties are broken uniformly at random (reservoir of
// one), so that a burst of equal choices does not herd onto the first name.
func argmin(cs []Candidate, rng *rand.Rand, diff func(a, b *Candidate) float64) int {
	best, ties := 0, 1
	for i := 1; i < len(cs); i++ {
		switch d := diff(&cs[i], &cs[best]); {
		case d < 0:
			best, ties = i, 1
		case d == 0:
			if ties++; rng.IntN(ties) == 0 {
				best = i
			}
		}
	}
	return best
}
