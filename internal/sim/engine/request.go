package engine

import (
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// Request is one sequence to compute. Set the exported fields and pass it to [Engine.Submit]. Do not change it
// until it is done. It cannot be submitted again.
type Request struct {
	// Prompt has at least one token. Requests may share it; it must not be changed.
	Prompt []uint32
	// MaxTokens bounds the tokens of the answer; 0 means that the model length bounds them.
	MaxTokens int
	// Next returns the i-th token of the answer, and whether the answer ends with it. It is called once for
	// each token, also when the request is preempted in between.
	Next func(i int) (token uint32, stop bool)
	// Delivered is the number of tokens of the prompt that were computed by a prefill worker and
	// transferred. They use blocks here and no time. If the request is preempted, they must be computed.
	Delivered int
	// Keep has the request keep its blocks after its last token, until [Engine.Release]: another engine reads them.
	Keep bool
	// LoRA and Salt separate prefix caches. LoRAID is the engine's number of the adapter.
	LoRA   string
	LoRAID int
	Salt   string
	// WholePrompt computes the whole prompt, whatever is cached: the answer needs the probabilities of its tokens.
	WholePrompt bool
	// Session is copied into events.
	Session string
	// Owner is for the caller. The engine does not use it.
	Owner any

	progress
}

// progress is how far the engine is with a request.
type progress struct {
	state     state
	answer    []uint32
	hashes    []kvevent.EngineHash // of the full blocks of known tokens
	blocks    []int32              // of computed and planned tokens, in order
	computed  int                  // tokens whose KV entries are in blocks
	committed int                  // blocks that were offered to the cache
	cached    int                  // tokens found in the cache at the first admission
	work      int                  // index in the plan of the pass, or -1
	admitted  bool                 // was running at least once; the hit rate counts the first time alone
	loaded    int                  // tokens that are cached or come from tiers, while loading
	loadedAt  time.Time            // when they are there
}

// Blocks returns the numbers of the request's blocks. They are valid while it runs, or keeps them.
func (r *Request) Blocks() []int32 { return r.blocks }

// state is the state of a request; see doc.go.
type state uint8

const (
	fresh state = iota
	waiting
	loading
	running
	done
)

// known returns the number of tokens that the request has: prompt and answer so far.
func (r *Request) known() int { return len(r.Prompt) + len(r.answer) }

// tokens returns the known tokens [from, to). It appends them to dst, except if they are all in the prompt:
// then it returns that part of the prompt, which must not be changed.
func (r *Request) tokens(dst []uint32, from, to int) []uint32 {
	p := len(r.Prompt)
	if to <= p {
		return r.Prompt[from:to]
	}
	if from < p {
		dst = append(dst, r.Prompt[from:]...)
		from = p
	}
	return append(dst, r.answer[from-p:to-p]...)
}

// maxReserved bounds the tokens of an answer for which room is made beforehand: most bounds are far above the answer's length.
const maxReserved = 1024

// reserve makes room for the answer and the blocks, so that they need not be moved while they grow.
func (r *Request) reserve(size int) {
	answer := min(r.MaxTokens, maxReserved)
	blocks := ceil(len(r.Prompt)+answer, size)
	r.answer = make([]uint32, 0, answer)
	r.blocks = make([]int32, 0, blocks)
	r.hashes = slices.Grow(r.hashes, blocks-len(r.hashes))
}

// extendHashes adds the hashes of blocks that became full. The hash of a block is seeded with the hash of the
// block before it, which makes a chain like real engines' with one call per block.
func (r *Request) extendHashes(size int, seed uint64, scratch []uint32) {
	full := r.known() / size
	if cap(r.hashes) < full {
		r.hashes = slices.Grow(r.hashes, full-len(r.hashes))
	}
	for i := len(r.hashes); i < full; i++ {
		parent := r.root(seed)
		if i > 0 {
			parent = uint64(r.hashes[i-1])
		}
		tokens := r.tokens(scratch[:0], i*size, (i+1)*size)
		r.hashes = append(r.hashes, kvevent.EngineHash(blockhash.Hash(tokens, parent)))
	}
}

// root returns the seed of the first block's hash.
func (r *Request) root(seed uint64) uint64 {
	if r.LoRA != "" {
		seed = xxh3.HashStringSeed(r.LoRA, seed+1)
	}
	if r.Salt != "" {
		seed = xxh3.HashStringSeed(r.Salt, seed+2)
	}
	return seed
}
