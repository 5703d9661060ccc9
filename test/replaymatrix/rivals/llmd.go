package rivals

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/pick"
)

// LLMD is llm-d's endpoint picker: weighted scorers, and the max-score picker, which breaks ties at random.
//
// Source: llm-d/llm-d-router, commit ebab687927f5331c1b39defcb579a07951bce56c. Scorers: pkg/epp/framework/plugins/scheduling/scorer,
// in queuedepth, kvcacheutilization, prefix, loadaware and activerequest. Index of prompts:
// pkg/epp/framework/plugins/requestcontrol/dataproducer/approximateprefix. Weights: see the constructors.
//
//	prefix   matched blocks / blocks of the prompt
//	queue    (most − waiting) / (most − least), and 1 where all are equal
//	usage    1 − share of the KV cache in use
//	load     0.5 · (1 − min(waiting, 128)/128)
//	active   (most − own requests) / most, and 1 without requests
type LLMD struct {
	Prefix, Queue, Usage, Load, Active float64 // weights
	// Precise reads the index of KV events, with what this router predicts, as precise-prefix-cache-producer with speculative
	// indexing does. Otherwise an index of the prompts that were sent to each worker is read.
	Precise bool

	numbers numbers
	sent    map[int]*recent              // by worker: blocks of prompts
	holders map[blockhash.Sequence][]int // workers that have a block in sent
	scores  []float64
	matched []int // blocks of the prompt, by worker
}

// LLMDScrape is the interval at which metrics are read: --refresh-metrics-interval.
const LLMDScrape = 50 * time.Millisecond

// NewLLMD returns the picker that runs without a configuration: loadDefaultConfig in pkg/epp/config/loader/defaults.go has
// the weights 3, 2 and 2, and the approximate index. That index tunes itself: its blocks are as long as the engine's, at
// least 64 tokens, and for each worker it keeps as many as the engine's cache has. Prompts are matched up to 131,072 tokens,
// which no prompt here exceeds.
func NewLLMD() *LLMD { return &LLMD{Prefix: 3, Queue: 2, Usage: 2} }

// NewLLMDPrecise returns the picker of deploy/config/epp-precise-prefix-cache-config.yaml.
func NewLLMDPrecise() *LLMD { return &LLMD{Prefix: 2, Queue: 1, Usage: 1, Precise: true} }

// NewLLMDLoadAware returns the picker of deploy/config/epp-estimate-prefix-cache-config.yaml.
func NewLLMDLoadAware() *LLMD { return &LLMD{Prefix: 1, Load: 1} }

// NewLLMDActive returns a picker with active-request-scorer, which counts the requests that the router itself has sent. No sample
// of the repository has these weights; they come from the precise sample.
func NewLLMDActive() *LLMD { return &LLMD{Prefix: 2, Active: 2} }

// queueThreshold is QueueThresholdDefault of the load-aware scorer.
const queueThreshold = 128

// Choose takes the candidate with the highest sum of weighted scores.
func (p *LLMD) Choose(cs []pick.Candidate, asked *pick.Request, rng *rand.Rand) int {
	if p.numbers == nil {
		p.numbers = numbers{}
		p.sent = map[int]*recent{}
		p.holders = map[blockhash.Sequence][]int{}
	}
	p.match(cs, asked.Blocks)
	p.scores = slices.Grow(p.scores[:0], len(cs))[:len(cs)]
	p.score(cs, len(asked.Blocks))

	best, ties := 0, 1
	for i := 1; i < len(cs); i++ {
		switch {
		case p.scores[i] > p.scores[best]:
			best, ties = i, 1
		case p.scores[i] == p.scores[best]:
			ties++
			if rng.IntN(ties) == 0 {
				best = i
			}
		}
	}
	p.remember(&cs[best], asked.Blocks)
	return best
}

// score fills in the scores of candidates for a prompt of so many blocks.
func (p *LLMD) score(cs []pick.Candidate, blocks int) {
	least, most := 0, 0
	mostOwn := 0
	for i := range cs {
		waiting, _ := reported(&cs[i])
		if i == 0 || waiting < least {
			least = waiting
		}
		most = max(most, waiting)
		mostOwn = max(mostOwn, ownRequests(&cs[i]))
	}

	for i := range cs {
		c := &cs[i]
		waiting, usage := reported(c)
		queue := 1.0
		if most > least {
			queue = float64(most-waiting) / float64(most-least)
		}
		active := 1.0
		if n := ownRequests(c); n > 0 {
			active = float64(mostOwn-n) / float64(mostOwn)
		}
		load := 0.5 * (1 - min(float64(waiting), queueThreshold)/queueThreshold)
		prefix := float64(p.matchedOf(c)) / float64(max(1, blocks))
		p.scores[i] = p.Prefix*prefix + p.Queue*queue + p.Usage*(1-usage) + p.Load*load + p.Active*active
	}
}

// match counts the blocks of a prompt that the index has for each worker. As in llm-d it ends at the first block that no worker
// has, and counts a worker's blocks also where some are missing before them.
func (p *LLMD) match(cs []pick.Candidate, blocks []blockhash.Sequence) {
	for i := range cs {
		p.numbers.numberOf(&cs[i])
	}
	p.matched = slices.Grow(p.matched[:0], len(p.numbers))[:len(p.numbers)]
	clear(p.matched)
	if p.Precise {
		return
	}
	for _, block := range blocks {
		holders := p.holders[block]
		if len(holders) == 0 {
			return
		}
		for _, worker := range holders {
			p.matched[worker]++
		}
	}
}

// matchedOf returns the number of the prompt's blocks that a candidate has.
func (p *LLMD) matchedOf(c *pick.Candidate) int {
	if p.Precise {
		return c.Facts.Overlap[fleet.Device]
	}
	return p.matched[p.numbers.numberOf(c)]
}

// remember adds the blocks of a prompt to the index of the worker that was chosen.
func (p *LLMD) remember(c *pick.Candidate, blocks []blockhash.Sequence) {
	if p.Precise {
		return
	}
	worker := p.numbers.numberOf(c)
	sent := p.sent[worker]
	if sent == nil {
		sent = newRecent(c.Facts.Capacity)
		p.sent[worker] = sent
	}

	for _, block := range blocks {
		if _, has := sent.at[block]; !has {
			p.holders[block] = append(p.holders[block], worker)
		}
		evicted, isFull := sent.addBlock(block)
		if !isFull {
			continue
		}
		left := slices.DeleteFunc(p.holders[evicted], func(w int) bool { return w == worker })
		p.holders[evicted] = left
		if len(left) == 0 {
			delete(p.holders, evicted)
		}
	}
}
