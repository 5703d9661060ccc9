package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// Engine is one simulated engine with one KV cache. Create it with [New].
//
// Invariants: a request of state waiting is in waiting, one of state loading is in loading, one of state running is in running, and
// others are in none of them. A request has blocks exactly while it is loading or running, or is done and keeps them. plan is valid
// while inPass is set, and end too after Begin. While quiet is positive, no request waits or loads, and the next pass is like the last
// one: see quiet.go.
type Engine struct {
	cfg   Config
	pool  *pool
	limit int // tokens that one request may have

	waiting []*Request // head first
	loading []*Request // whose blocks come from tiers
	running []*Request // oldest first
	tiers   []*tier    // the fastest first

	lastPass

	// The result of the pass, and the memory of its events: both are used again by the next Begin. held means that the last Plan
	// began no pass: the events of its evictions for blocks from tiers are in the result of the next one.
	result  Result
	held    bool
	hashes  []kvevent.EngineHash
	tokens  []uint32
	scratch []uint32 // tokens of a block that spans prompt and answer

	noise   *noise
	prompts int // that begin in the pass

	stats Stats
}

// lastPass is the pass that an engine computes, or computed last.
type lastPass struct {
	inPass bool
	end    time.Time // as Begin has returned it
	ends   time.Time // of the pass, in the time of its caller
	plan   []work

	quiet   int  // passes that follow and are quiet
	isQuiet bool // the present pass is
}

// New returns an idle engine.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure engine: %w", err)
	}
	cfg = cfg.withDefaults()
	limit := min(cfg.MaxModelLen, cfg.Blocks*cfg.BlockSize)
	return &Engine{
		cfg:     cfg,
		pool:    newPool(cfg.Blocks),
		limit:   limit,
		scratch: make([]uint32, 0, cfg.BlockSize),
		noise:   newNoise(cfg.Noise),
		tiers:   newTiers(cfg.Tiers),
	}, nil
}

// ErrQueueFull is returned by [Engine.Submit] when MaxWaiting requests wait.
var ErrQueueFull = errors.New("the engine's queue is full")

// TooLongError is returned by [Engine.Submit] for a prompt that leaves no room for an answer.
type TooLongError struct {
	Tokens, Limit int
}

func (e *TooLongError) Error() string {
	return fmt.Sprintf("the prompt has %d tokens: it must have fewer than %d", e.Tokens, e.Limit)
}

// Submit puts r at the end of the queue.
func (e *Engine) Submit(r *Request) error {
	switch {
	case r.state != fresh:
		return errors.New("submit request: it was submitted before")
	case len(r.Prompt) == 0:
		return errors.New("submit request: its prompt is empty")
	case len(r.Prompt) >= e.limit:
		return &TooLongError{len(r.Prompt), e.limit}
	case len(e.waiting) >= e.cfg.MaxWaiting:
		return ErrQueueFull
	}
	if room := e.limit - len(r.Prompt); r.MaxTokens <= 0 || r.MaxTokens > room {
		r.MaxTokens = room
	}

	e.quiet = 0
	r.state = waiting
	r.work = -1
	r.reserve(e.cfg.BlockSize)
	r.extendHashes(e.cfg.BlockSize, e.cfg.HashSeed, e.scratch)
	e.waiting = append(e.waiting, r)
	return nil
}

// Found returns how many tokens of a request's prompt are in the cache, in full blocks. The request must not have been
// submitted yet, and can be submitted to this engine alone afterwards. At least one token of every prompt is never found,
// because an answer is computed from it.
func (e *Engine) Found(r *Request) int {
	r.extendHashes(e.cfg.BlockSize, e.cfg.HashSeed, e.scratch)
	hits, _ := e.pool.match(r.hashes[:min(len(r.hashes), (r.known()-1)/e.cfg.BlockSize)])
	return hits * e.cfg.BlockSize
}

// Cancel removes r from the engine at once, also during a pass. It returns false where r is done already. Its
// computed blocks stay cached, and so do the blocks that the running pass computes.
func (e *Engine) Cancel(r *Request) bool {
	e.quiet = 0
	switch r.state {
	case waiting:
		e.waiting = without(e.waiting, r)
	case loading:
		e.loading = without(e.loading, r)
		e.releaseAll(r)
	case running:
		e.running = without(e.running, r)
		if r.work >= 0 {
			// Requests that were admitted in this pass may use these blocks.
			e.announce(r, r.computed+e.plan[r.work].tokens)
		}
		e.unplan(r)
		e.releaseAll(r)
	default:
		return false
	}
	r.state = done
	e.stats.Cancelled++
	return true
}

// Release frees the blocks that a request has kept since its last token. It changes nothing for other requests.
func (e *Engine) Release(r *Request) {
	if r.state == done {
		e.releaseAll(r)
	}
}

// PromptHashes returns the hashes of the full blocks of a request's prompt, in order, also before [Engine.Submit]. They must not
// be changed.
func (e *Engine) PromptHashes(r *Request) []kvevent.EngineHash {
	r.extendHashes(e.cfg.BlockSize, e.cfg.HashSeed, e.scratch)
	return r.hashes[:len(r.Prompt)/e.cfg.BlockSize]
}

// Cached returns how many of the first blocks of a chain are in the prefix cache.
func (e *Engine) Cached(hashes []kvevent.EngineHash) int {
	hits, _ := e.pool.match(hashes)
	return hits
}

// Reset empties the prefix cache, as vLLM's /reset_prefix_cache does. While requests run it changes nothing and
// returns false.
func (e *Engine) Reset() bool {
	if e.pool.active() > 0 {
		return false
	}
	e.pool.clearCache()

	// A pass whose requests were all cancelled may have events, about blocks that are not cached any more.
	e.result.Events = slices.DeleteFunc(e.result.Events, func(raw kvevent.Raw) bool { return raw.Tier == fleet.Device })
	return true
}
