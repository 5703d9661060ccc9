package engine

import (
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// Request is one sequence to compute. Fill the exported fields, hand it to [Engine.Submit]
// and do not touch it until it is done; it cannot be used again.
type Request struct {
	// Prompt must have a token. It may be shared between requests; nobody may change it.
	Prompt []uint32
	// MaxTokens is how many tokens to emit at most; 0 means as many as the model length has room
	// for.
	MaxTokens int
	// Next returns the i-th token of the answer and whether it ends it. It must depend on
	// nothing that changes: an engine that preempts does not ask again.
	Next func(i int) (token uint32, stop bool)
	// Delivered is how many tokens of the prompt come computed, from a prefill worker: they take blocks
	// here and no time. An engine that preempts the request computes them all the same.
	Delivered int
	// LoRA and Salt separate prefix caches; LoRAID is the engine's number of the adapter.
	LoRA   string
	LoRAID int
	Salt   string
	// Session is echoed in events.
	Session string
	// Owner is the caller's.
	Owner any

	state     state
	arrived   time.Time
	answer    []uint32
	hashes    []kvevent.Engine // of the full blocks of known tokens
	blocks    []int32          // that hold computed and planned tokens
	computed  int              // tokens in blocks
	committed int              // blocks that were offered to the cache
	cached    int              // tokens found in the cache at the first admission
	work      int              // index in the pass's plan, or -1
	admitted  bool             // at least once
}

type state uint8

const (
	fresh state = iota
	waiting
	running
	done
)

// known is how many tokens the request has: its prompt and what it emitted.
func (r *Request) known() int { return len(r.Prompt) + len(r.answer) }

// tokens appends the known tokens [from, to) to dst, or returns them in place where the
// prompt alone holds them.
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

// extendHashes hashes the blocks that became full. Each block's hash is seeded with the one
// before it: one call per block, and a chain like that of real engines.
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
		r.hashes = append(r.hashes, kvevent.Engine(blockhash.Hash(tokens, parent)))
	}
}

// root seeds the first block's hash.
func (r *Request) root(seed uint64) uint64 {
	if r.LoRA != "" {
		seed = xxh3.HashStringSeed(r.LoRA, seed+1)
	}
	if r.Salt != "" {
		seed = xxh3.HashStringSeed(r.Salt, seed+2)
	}
	return seed
}
