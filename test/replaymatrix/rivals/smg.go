package rivals

import (
	"math/rand/v2"
	"slices"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/pick"
)

// SMG is the policy cache_aware of SMG, the former router of SGLang.
//
// Source: lightseekorg/smg, commit 73da68ca9472bbc0ff5f63d31a8a21fbb8696359, model_gateway/src/policies/cache_aware.rs and
// crates/kv_index/src/token_tree.rs. Defaults come from the flags in model_gateway/src/main.rs.
//
//	imbalanced: most − least > abs, and most > rel · least      the worker with the least load
//	matched share of the prompt > threshold                     a worker to which the matched prefix was sent
//	otherwise                                                   the worker with the least load
//
// Load is the requests that this router has sent. Of equal loads the worker that has had fewer requests is taken. The tree evicts
// prompts above 67 million characters for each worker, which no run reaches, so it never does here.
type SMG struct {
	Threshold float64 // --cache-threshold
	Abs       int     // --balance-abs-threshold
	Rel       float64 // --balance-rel-threshold
	// Events makes balanced requests go to the worker whose cache has most of the prompt, by KV events, as with workers that
	// speak gRPC and publish events. If no worker has a block of it, the least load decides.
	Events bool

	numbers   numbers
	processed map[int]int // requests so far, by worker
	tree      map[blockhash.Sequence]*prefix
	touches   int
}

// prefix is a block of the tree with the workers to which a prompt with it was sent.
type prefix struct {
	owners []int
	last   int // owner that is returned for a match: the first one, until a sample of touches replaces it
}

// NewSMG returns the policy with its defaults.
func NewSMG() *SMG { return &SMG{Threshold: 0.3, Abs: 64, Rel: 1.5} }

// Choose takes a candidate, and adds the prompt to its tree.
func (p *SMG) Choose(cs []pick.Candidate, asked *pick.Request, _ *rand.Rand) int {
	if p.numbers == nil {
		p.numbers = numbers{}
		p.processed = map[int]int{}
		p.tree = map[blockhash.Sequence]*prefix{}
	}
	idlest, isImbalanced := p.loads(cs)
	chosen, insert := idlest, true
	switch {
	case isImbalanced:
	case p.Events:
		chosen = p.mostCached(cs, idlest)
	default:
		owner, matched := p.match(asked.Blocks)
		if float64(matched) > p.Threshold*float64(len(asked.Blocks)) {
			chosen = slices.IndexFunc(cs, func(c pick.Candidate) bool { return p.numbers.numberOf(&c) == owner })
			if chosen < 0 { // the worker is gone: the first one is taken, and the tree stays
				chosen, insert = 0, false
			}
		}
	}

	worker := p.numbers.numberOf(&cs[chosen])
	p.processed[worker]++
	if insert && !p.Events {
		p.insert(asked.Blocks, worker)
	}
	return chosen
}

// loads returns the candidate with the least load, and whether loads are so different that caches do not count.
func (p *SMG) loads(cs []pick.Candidate) (idlest int, isImbalanced bool) {
	most := 0
	for i := range cs {
		load, least := ownRequests(&cs[i]), ownRequests(&cs[idlest])
		most = max(most, load)
		fewer := p.processed[p.numbers.numberOf(&cs[i])] < p.processed[p.numbers.numberOf(&cs[idlest])]
		if load < least || load == least && fewer {
			idlest = i
		}
	}
	least := ownRequests(&cs[idlest])
	return idlest, most-least > p.Abs && float64(most) > p.Rel*float64(least)
}

// mostCached returns the candidate whose cache has most of the prompt, and of equal ones the one with less load.
func (p *SMG) mostCached(cs []pick.Candidate, idlest int) int {
	best := -1
	for i := range cs {
		held := cs[i].Facts.Overlap[fleet.Device]
		if held == 0 {
			continue
		}
		if best < 0 || held > cs[best].Facts.Overlap[fleet.Device] ||
			held == cs[best].Facts.Overlap[fleet.Device] && ownRequests(&cs[i]) < ownRequests(&cs[best]) {
			best = i
		}
	}
	if best < 0 {
		return idlest
	}
	return best
}

// match returns how many blocks of a prompt are in the tree, and an owner of the last one of them. A match counts as a use of the
// prefix by that owner.
func (p *SMG) match(blocks []blockhash.Sequence) (owner, matched int) {
	for _, block := range blocks {
		node := p.tree[block]
		if node == nil {
			break
		}
		matched++
		owner = node.last
		p.touch(node, owner)
	}
	return owner, matched
}

// insert adds a prompt that is sent to a worker.
func (p *SMG) insert(blocks []blockhash.Sequence, worker int) {
	for _, block := range blocks {
		node := p.tree[block]
		if node == nil {
			node = &prefix{last: worker}
			p.tree[block] = node
		}
		if !slices.Contains(node.owners, worker) {
			node.owners = append(node.owners, worker)
		}
		p.touch(node, worker)
	}
}

// sampleTouches is the number of touches for one that changes the owner that a match returns.
const sampleTouches = 16

// touch counts a use of a prefix by one of its owners.
func (p *SMG) touch(node *prefix, owner int) {
	p.touches++
	if p.touches%sampleTouches == 0 {
		node.last = owner
	}
}
