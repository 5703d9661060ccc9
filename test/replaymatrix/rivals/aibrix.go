package rivals

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/pick"
)

// AIBrix is the routing algorithm prefix-cache of AIBrix.
//
// Source: vllm-project/aibrix, commit e3e10f9e4aebe9aac5e7d992fb87d2648e01628b, pkg/plugins/gateway/algorithms/prefix_cache.go (and
// least_request.go, util.go beside it) and pkg/utils/prefixcacheindexer/hash.go.
//
//	most − least requests > Imbalance    only the workers with the fewest requests may match
//	some match                           by matched percent, then by fewer requests: the first worker whose
//	                                     requests are at most mean + Factor · standard deviation, over all workers
//	none, or none of them                a random one of the workers with the fewest requests
//
// Requests are those that this gateway has sent. The index forgets blocks after 20 minutes, which no run lasts.
type AIBrix struct {
	Imbalance int     // AIBRIX_PREFIX_CACHE_POD_RUNNING_REQUEST_IMBALANCE_ABS_COUNT
	Factor    float64 // AIBRIX_PREFIX_CACHE_STANDARD_DEVIATION_FACTOR
	// Capacity is the number of blocks in the index of all workers.
	Capacity int
	// Events matches by KV events instead, as AIBrix does with AIBRIX_PREFIX_CACHE_KV_EVENT_SYNC_ENABLED.
	Events bool

	numbers numbers
	order   *recent
	holders map[blockhash.Sequence][]int
	matched []int // percent, by candidate
}

const (
	// AIBrixBlocks are AIBRIX_PREFIX_CACHE_BLOCK_NUMBER's default of 200,000 blocks, which with the default tokenizer have
	// 4 characters each, that is one token of English text.
	AIBrixBlocks = 200_000 / 64
	// AIBrixLargeBlocks are as many blocks of AIBRIX_PREFIX_CACHE_BLOCK_SIZE=256 characters, or 64 tokens. AIBrix's own
	// benchmarks set 512.
	AIBrixLargeBlocks = 200_000
)

// NewAIBrix returns the algorithm with its defaults.
func NewAIBrix() *AIBrix { return &AIBrix{Imbalance: 8, Factor: 1, Capacity: AIBrixBlocks} }

// Choose takes a candidate, and adds the prompt to the index.
func (p *AIBrix) Choose(cs []pick.Candidate, asked *pick.Request, rng *rand.Rand) int {
	if p.numbers == nil {
		p.numbers = numbers{}
		p.order = newRecent(p.Capacity)
		p.holders = map[blockhash.Sequence][]int{}
	}
	least, most := ownRequests(&cs[0]), 0
	for i := range cs {
		least, most = min(least, ownRequests(&cs[i])), max(most, ownRequests(&cs[i]))
	}
	isImbalanced := most-least > p.Imbalance
	p.match(cs, asked.Blocks, func(c *pick.Candidate) bool { return !isImbalanced || ownRequests(c) == least })

	chosen := p.bestMatch(cs, rng)
	if chosen < 0 {
		chosen = fewestRequests(cs, least, rng)
	}
	p.remember(asked.Blocks, p.numbers.numberOf(&cs[chosen]))
	return chosen
}

// match fills in the matched percent of the candidates that may match: whole percents of the prompt's first blocks that
// were sent to a worker without a gap. It is -1 without a match.
func (p *AIBrix) match(cs []pick.Candidate, blocks []blockhash.Sequence, mayMatch func(*pick.Candidate) bool) {
	for i := range cs {
		p.numbers.numberOf(&cs[i])
	}
	held := p.held(blocks)
	p.matched = p.matched[:0]
	for i := range cs {
		n := held[p.numbers.numberOf(&cs[i])]
		if p.Events {
			n = cs[i].Facts.Overlap[fleet.Device]
		}
		percent := -1
		if n > 0 && mayMatch(&cs[i]) {
			percent = n * 100 / len(blocks)
		}
		p.matched = append(p.matched, percent)
	}
}

// held returns how many of the first blocks were sent to each worker.
func (p *AIBrix) held(blocks []blockhash.Sequence) []int {
	held := make([]int, len(p.numbers))
	for i, block := range blocks {
		isHeld := false
		for _, worker := range p.holders[block] {
			if held[worker] == i {
				held[worker]++
				isHeld = true
			}
		}
		if !isHeld {
			break
		}
	}
	return held
}

// bestMatch returns the candidate with the highest percent, and of equal ones the one with the fewest requests, of those whose
// requests are not too many; -1 if there is none.
func (p *AIBrix) bestMatch(cs []pick.Candidate, rng *rand.Rand) int {
	bound := p.bound(cs)
	best, ties := -1, 0
	for i := range cs {
		if p.matched[i] < 0 || float64(ownRequests(&cs[i])) > bound {
			continue
		}
		order := 1
		if best >= 0 {
			order = p.matched[i] - p.matched[best]
			if order == 0 {
				order = ownRequests(&cs[best]) - ownRequests(&cs[i])
			}
		}

		switch {
		case order > 0:
			best, ties = i, 1
		case order == 0:
			ties++
			if rng.IntN(ties) == 0 {
				best = i
			}
		}
	}
	return best
}

// bound returns the most requests that a candidate may have: the mean and some standard deviations of a sample.
func (p *AIBrix) bound(cs []pick.Candidate) float64 {
	mean, squares := 0.0, 0.0
	for i := range cs {
		mean += float64(ownRequests(&cs[i])) / float64(len(cs))
	}
	for i := range cs {
		d := float64(ownRequests(&cs[i])) - mean
		squares += d * d
	}
	return mean + p.Factor*math.Sqrt(squares/float64(max(1, len(cs)-1)))
}

// fewestRequests returns a random one of the candidates with the fewest requests.
func fewestRequests(cs []pick.Candidate, least int, rng *rand.Rand) int {
	chosen, ties := 0, 0
	for i := range cs {
		if ownRequests(&cs[i]) != least {
			continue
		}
		ties++
		if rng.IntN(ties) == 0 {
			chosen = i
		}
	}
	return chosen
}

// remember adds a prompt that is sent to a worker. A block that the index forgets is forgotten for all workers.
func (p *AIBrix) remember(blocks []blockhash.Sequence, worker int) {
	if p.Events {
		return
	}
	for _, block := range blocks {
		if !slices.Contains(p.holders[block], worker) {
			p.holders[block] = append(p.holders[block], worker)
		}
		if evicted, isFull := p.order.addBlock(block); isFull {
			delete(p.holders, evicted)
		}
	}
}
