package pick

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/cost"
)

// Candidate is a rank that may take the request. Each decision writes as many as there are ranks, perhaps
// a thousand, so a Candidate holds only what policies compare.
type Candidate struct {
	Rank  *fleet.Rank
	Facts cost.Facts
	// Total is its cost; the lowest is best.
	Total float64
	// Uncached is the number of prompt tokens that it would have to compute.
	Uncached int
	// Tie orders candidates of equal Total; the lowest is best, and chance decides among equals.
	Tie int
	// AnyRank means that the engine of its worker chooses the rank of the request by itself. Facts then has the mean of the blocks of all
	// its ranks, and Least the fewest blocks of the prompt that one of them holds.
	AnyRank bool
	Least   int
}

// Request has the values of a request that a policy compares.
type Request struct {
	// Session names the client's session; empty for none.
	Session string
	// Temperature replaces the policy's temperature where HasTemperature is true.
	Temperature    float64
	HasTemperature bool
	// Blocks are the sequence hashes of the prompt's complete blocks. They are valid during Choose. The policies of
	// this package do not use them; policies that keep an index of their own do.
	Blocks []blockhash.Sequence
}

// Policy chooses a rank.
type Policy interface {
	// Choose returns the index of one of the candidates, of which there is at least one. It is called
	// again for the same request when another booking came first. It must be safe for concurrent use.
	Choose(candidates []Candidate, asked *Request, rng *rand.Rand) int
}

// The names of the policies.
const (
	KV          = "kv"
	RoundRobin  = "round-robin"
	Random      = "random"
	PowerOfTwo  = "power-of-two"
	LeastLoaded = "least-loaded"
	// Direct takes the worker that the request names. A request that names none is refused. Among the
	// ranks of that worker it chooses as LeastLoaded does.
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

// leastCost takes the lowest total. With a temperature it draws: the probability of a candidate is
// proportional to exp(−(cost − min) / ((max − min) · temperature)). Costs are scaled by their range, so a
// temperature has the same effect in milliseconds and in blocks.
type leastCost struct{ temperature float64 }

func (p leastCost) Choose(cs []Candidate, asked *Request, rng *rand.Rand) int {
	if asked.HasTemperature {
		p.temperature = asked.Temperature
	}
	if p.temperature == 0 {
		return argmin(cs, rng, byCost)
	}

	lo, hi := math.Inf(1), math.Inf(-1)
	for i := range cs {
		lo, hi = min(lo, cs[i].Total), max(hi, cs[i].Total)
	}
	if hi == lo {
		return argmin(cs, rng, byCost)
	}

	// Two passes compute the exponentials twice, and need no buffer for them.
	weight := func(i int) float64 {
		return math.Exp(-(cs[i].Total - lo) / ((hi - lo) * p.temperature))
	}
	sum := 0.0
	for i := range cs {
		sum += weight(i)
	}
	left := rng.Float64() * sum
	for i := range cs {
		left -= weight(i)
		if left < 0 {
			return i
		}
	}
	return len(cs) - 1 // by rounding
}

// roundRobin takes the candidates in turn. Its counter is shared by all requests of the model, so a change
// of membership shifts the turns and gives no candidate more of them. Where weights differ, see smooth.
type roundRobin struct {
	next   atomic.Uint64
	smooth smooth
}

func (p *roundRobin) Choose(cs []Candidate, _ *Request, _ *rand.Rand) int {
	if _, isEven := sumOfWeights(cs); !isEven {
		return p.smooth.choose(cs)
	}
	return int((p.next.Add(1) - 1) % uint64(len(cs)))
}

// byCost compares totals, and breaks ties by the cost function.
func byCost(a, b *Candidate) float64 {
	if d := a.Total - b.Total; d != 0 {
		return d
	}
	return float64(a.Tie - b.Tie)
}

// random draws a candidate, each with the probability of its weight.
type random struct{}

func (random) Choose(cs []Candidate, _ *Request, rng *rand.Rand) int {
	sum, isEven := sumOfWeights(cs)
	if isEven {
		return rng.IntN(len(cs))
	}
	return drawn(cs, rng.Int64N(sum), -1)
}

// leastLoaded takes the rank with the fewest requests for its weight, booked or untracked, and among equals the one with
// the least booked work for its weight.
type leastLoaded struct{}

func (leastLoaded) Choose(cs []Candidate, _ *Request, rng *rand.Rand) int {
	return argmin(cs, rng, byLoad)
}

// byLoad compares requests, and among equals booked work; see byWeightedLoad for candidates of different weights.
func byLoad(a, b *Candidate) float64 {
	if weight(a) != weight(b) {
		return byWeightedLoad(a, b)
	}
	if d := requests(a) - requests(b); d != 0 {
		return float64(d)
	}
	if d := a.Facts.Booked.PrefillTokens - b.Facts.Booked.PrefillTokens; d != 0 {
		return float64(d)
	}
	return float64(a.Facts.Booked.DecodeBlocks - b.Facts.Booked.DecodeBlocks)
}

// powerOfTwo draws two candidates and takes the one with less load. That is nearly as even as comparing
// all of them, and several routers that see the same load do not all choose the same rank. Candidates are drawn by their weights.
type powerOfTwo struct{}

func (powerOfTwo) Choose(cs []Candidate, _ *Request, rng *rand.Rand) int {
	if len(cs) == 1 {
		return 0
	}

	a, b := drawTwo(cs, rng)
	if byLoad(&cs[b], &cs[a]) < 0 {
		return b
	}
	return a
}

// drawTwo draws two different candidates, of which there are at least two.
func drawTwo(cs []Candidate, rng *rand.Rand) (a, b int) {
	sum, isEven := sumOfWeights(cs)
	if !isEven {
		a = drawn(cs, rng.Int64N(sum), -1)
		b = drawn(cs, rng.Int64N(sum-weight(&cs[a])), a)
		return a, b
	}

	a, b = rng.IntN(len(cs)), rng.IntN(len(cs)-1)
	if b >= a {
		b++ // so that the two differ
	}
	return a, b
}

// requests counts all requests on a candidate, with the requests that no router has booked.
func requests(c *Candidate) int64 { return c.Facts.Booked.Requests + c.Facts.Untracked }

// argmin returns the least candidate. Ties are broken uniformly at random by a reservoir of one, so that
// a burst of equal choices does not go to the first name.
func argmin(cs []Candidate, rng *rand.Rand, diff func(a, b *Candidate) float64) int {
	best, ties := 0, 1
	for i := 1; i < len(cs); i++ {
		switch d := diff(&cs[i], &cs[best]); {
		case d < 0:
			best, ties = i, 1
		case d == 0:
			ties++
			if rng.IntN(ties) == 0 {
				best = i
			}
		}
	}
	return best
}
