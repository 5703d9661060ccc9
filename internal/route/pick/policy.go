package pick

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/cost"
)

// Candidate is a rank that may take the request. There may be a thousand, written at each decision,
// so it has what policies compare and no more.
type Candidate struct {
	Rank  *fleet.Rank
	Facts cost.Facts
	// Total is its cost; the lowest is the best.
	Total float64
	// Uncached is the prompt tokens that it would have to compute.
	Uncached int
}

// Request is what a policy knows of the request.
type Request struct {
	// Session names the client's session; empty for none.
	Session string
	// Temperature takes the place of the policy's own where HasTemperature is true.
	Temperature    float64
	HasTemperature bool
}

// Policy chooses a rank.
type Policy interface {
	// Choose returns the index of one of the candidates, of which there is at least one. It
	// may be asked again for the same request when the choice lost a race.
	Choose(candidates []Candidate, asked *Request, rng *rand.Rand) int
}

// The names of the policies.
const (
	KV          = "kv"
	RoundRobin  = "round-robin"
	Random      = "random"
	PowerOfTwo  = "power-of-two"
	LeastLoaded = "least-loaded"
	// Direct takes the worker that the request names, and no other: whoever uses it demands that
	// requests name one. Between the ranks of that worker it chooses as LeastLoaded does.
	Direct = "direct"
	// Session keeps a session on one rank by rendezvous hashing.
	Session = "session"
)

// Names lists the policies.
func Names() []string {
	return []string{KV, RoundRobin, Random, PowerOfTwo, LeastLoaded, Direct, Session}
}

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
	case PowerOfTwo:
		return powerOfTwo{}, nil
	case LeastLoaded, Direct:
		return leastLoaded{}, nil
	case Session:
		return session{}, nil
	}
	list := Names()
	last := len(list) - 1
	return nil, fmt.Errorf("policy %q is unknown: use %s or %s", name, strings.Join(list[:last], ", "), list[last])
}

// leastCost takes the lowest total. With a temperature it draws: the probability of a
// candidate is proportional to exp(−(cost − min) / ((max − min) · temperature)), so that
// the temperature means the same at every scale of cost.
type leastCost struct{ temperature float64 }

func (p leastCost) Choose(cs []Candidate, asked *Request, rng *rand.Rand) int {
	if asked.HasTemperature {
		p.temperature = asked.Temperature
	}
	if p.temperature == 0 {
		return argmin(cs, rng, func(a, b *Candidate) float64 { return a.Total - b.Total })
	}
	lo, hi := math.Inf(1), math.Inf(-1)
	for i := range cs {
		lo, hi = min(lo, cs[i].Total), max(hi, cs[i].Total)
	}
	if hi == lo {
		return rng.IntN(len(cs))
	}
	// Two passes over the exponentials, instead of a buffer for them.
	weight := func(i int) float64 {
		return math.Exp(-(cs[i].Total - lo) / ((hi - lo) * p.temperature))
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

func (p *roundRobin) Choose(cs []Candidate, _ *Request, _ *rand.Rand) int {
	return int((p.next.Add(1) - 1) % uint64(len(cs)))
}

type random struct{}

func (random) Choose(cs []Candidate, _ *Request, rng *rand.Rand) int { return rng.IntN(len(cs)) }

// leastLoaded takes the rank with the fewest requests that anyone knows of; among equals
// the one with the least booked work.
type leastLoaded struct{}

func (leastLoaded) Choose(cs []Candidate, _ *Request, rng *rand.Rand) int {
	return argmin(cs, rng, byLoad)
}

// byLoad compares requests, and among equals booked work.
func byLoad(a, b *Candidate) float64 {
	if d := requests(a) - requests(b); d != 0 {
		return float64(d)
	}
	if d := a.Facts.Booked.PrefillTokens - b.Facts.Booked.PrefillTokens; d != 0 {
		return float64(d)
	}
	return float64(a.Facts.Booked.DecodeBlocks - b.Facts.Booked.DecodeBlocks)
}

// powerOfTwo draws two and takes the one with less load: nearly as even as looking at all, and
// it does not herd where several routers see the same load.
type powerOfTwo struct{}

func (powerOfTwo) Choose(cs []Candidate, _ *Request, rng *rand.Rand) int {
	if len(cs) == 1 {
		return 0
	}
	a, b := rng.IntN(len(cs)), rng.IntN(len(cs)-1)
	if b >= a {
		b++
	}
	if byLoad(&cs[b], &cs[a]) < 0 {
		return b
	}
	return a
}

func requests(c *Candidate) int64 { return c.Facts.Booked.Requests + c.Facts.Untracked }

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
