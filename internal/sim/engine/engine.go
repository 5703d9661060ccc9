package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/perfmodel"
)

// Engine is one simulated engine with one KV cache. Create it with [New].
type Engine struct {
	cfg   Config
	pool  *pool
	limit int // tokens one request may have

	waiting []*Request // head first
	running []*Request // oldest first

	inPass bool
	end    time.Time
	plan   []work

	// What the pass did to the cache and emitted, valid until the next Begin.
	result  Result
	hashes  []kvevent.Engine
	tokens  []uint32
	scratch []uint32

	stats Stats
}

// work is one request's part of the pass. A nil request was preempted or cancelled since.
type work struct {
	r       *Request
	tokens  int
	prefill bool
}

// New returns an idle engine.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure engine: %w", err)
	}
	cfg = cfg.withDefaults()
	limit := min(cfg.MaxModelLen, cfg.Blocks*cfg.BlockSize)
	if cfg.WholePrompts {
		// A preempted request is a prompt again, with its answer: that must fit a pass too.
		limit = min(limit, cfg.MaxNumBatchedTokens)
	}
	return &Engine{
		cfg:     cfg,
		pool:    newPool(cfg.Blocks),
		limit:   limit,
		scratch: make([]uint32, 0, cfg.BlockSize),
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
func (e *Engine) Submit(r *Request, now time.Time) error {
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
	r.state, r.arrived, r.work = waiting, now, -1
	if !e.cfg.NoPrefixCache {
		r.extendHashes(e.cfg.BlockSize, e.cfg.HashSeed, e.scratch)
	}
	e.waiting = append(e.waiting, r)
	return nil
}

// Cancel takes r out of the engine at once, also in the middle of a pass; false means that it
// was done already. What it computed stays cached, as does what the pass under way computes of it.
func (e *Engine) Cancel(r *Request) bool {
	switch r.state {
	case waiting:
		e.waiting = without(e.waiting, r)
	case running:
		e.running = without(e.running, r)
		if r.work >= 0 && !e.cfg.NoPrefixCache {
			e.commit(r, r.computed+e.plan[r.work].tokens) // the pass goes on, and others may count on it
		}
		e.drop(r)
		e.releaseAll(r)
	default:
		return false
	}
	r.state = done
	e.stats.Cancelled++
	return true
}

// Reset empties the prefix cache, as vLLM's /reset_prefix_cache does. It returns false, and
// changes nothing, while requests run.
func (e *Engine) Reset() bool {
	if e.pool.active() > 0 {
		return false
	}
	e.pool.forget()
	e.result.Events = e.result.Events[:0] // of a pass whose requests were all cancelled: they are void
	return true
}

// Begin plans a pass that starts now and returns when it ends; ok is false when there is
// nothing to do. A pass that has begun must end before the next begins: until then Begin
// returns the same end.
func (e *Engine) Begin(now time.Time) (end time.Time, ok bool) {
	if e.inPass {
		return e.end, true
	}
	e.plan = e.plan[:0]
	e.hashes, e.tokens = e.hashes[:0], e.tokens[:0]
	e.result.Outputs, e.result.Events = e.result.Outputs[:0], e.result.Events[:0]

	budget, preempted := e.planRunning(e.cfg.MaxNumBatchedTokens)
	for preempted && !e.planned() {
		// The victim was the only one with work: plan again, now with its blocks.
		budget, preempted = e.planRunning(e.cfg.MaxNumBatchedTokens)
	}
	if !preempted {
		e.admit(budget)
	}
	if !e.planned() {
		return time.Time{}, false
	}
	e.inPass = true
	e.end = now.Add(e.duration())
	return e.end, true
}

func (e *Engine) planned() bool {
	return slices.ContainsFunc(e.plan, func(w work) bool { return w.r != nil })
}

// planRunning gives the running requests their decode steps and chunks, and returns what is
// left of the budget.
func (e *Engine) planRunning(budget int) (left int, preempted bool) {
	for i := 0; i < len(e.running) && budget > 0; i++ {
		r := e.running[i]
		want := r.known() - r.computed
		if want > budget && e.cfg.WholePrompts {
			break
		}
		want = min(want, budget)
		for e.missing(r, want) > e.pool.free {
			victim := e.running[len(e.running)-1]
			if e.cfg.PreemptOldest {
				victim = e.running[0]
				i--
			}
			budget += e.preempt(victim)
			preempted = true
			if victim == r {
				return budget, true
			}
		}
		e.give(r, want)
		budget -= want
	}
	return budget, preempted
}

// preempt sends r back to the head of the queue without its blocks, and returns the tokens
// it had in this pass.
func (e *Engine) preempt(r *Request) (refund int) {
	if r.work >= 0 && !e.cfg.NoPrefixCache {
		e.disclaim(r, r.computed+e.plan[r.work].tokens)
	}
	refund = e.drop(r)
	e.releaseAll(r)
	e.running = without(e.running, r)
	r.Delivered = 0 // gone with the blocks
	e.waiting = slices.Insert(e.waiting, 0, r)
	r.state = waiting
	e.stats.Preemptions++
	return refund
}

// admit moves requests from the queue into the batch, in order, until one does not fit.
func (e *Engine) admit(budget int) {
	for len(e.waiting) > 0 && len(e.running) < e.cfg.MaxNumSeqs && budget > 0 {
		r := e.waiting[0]
		size := e.cfg.BlockSize
		// At least one token must be computed, or there would be nothing to emit from.
		hits, inactive := 0, 0
		if !e.cfg.NoPrefixCache {
			hits, inactive = e.pool.match(r.hashes[:min(len(r.hashes), (r.known()-1)/size)])
		}
		if ceil(r.known(), size)-hits > e.pool.free-inactive {
			return
		}
		computed := max(hits*size, min(r.Delivered, r.known()-1))
		want := r.known() - computed
		if want > budget && e.cfg.WholePrompts {
			return
		}
		want = min(want, budget)
		for _, h := range r.hashes[:hits] {
			id := e.pool.cached[h]
			e.pool.hold(id)
			r.blocks = append(r.blocks, id)
		}
		r.computed, r.committed = computed, hits
		if !r.admitted {
			r.admitted, r.cached = true, hits*size
			e.stats.PrefixQueries += uint64(r.known())
			e.stats.PrefixHits += uint64(hits * size)
		}
		e.waiting[0] = nil
		e.waiting = e.waiting[1:]
		e.running = append(e.running, r)
		r.state = running
		e.give(r, want)
		budget -= want
	}
}

// claim caches the blocks that this pass fills: who is admitted after r, in the same pass too, finds
// them, as in vLLM. They are announced when the pass ends.
func (e *Engine) claim(r *Request, computed int) {
	for i := r.committed; i < computed/e.cfg.BlockSize; i++ {
		e.pool.commit(r.blocks[i], r.hashes[i])
	}
}

// disclaim takes back what r claimed in this pass. Nobody has found it yet: a pass that preempts
// admits no one.
func (e *Engine) disclaim(r *Request, computed int) {
	for i := r.committed; i < computed/e.cfg.BlockSize; i++ {
		if e.pool.holds(r.blocks[i], r.hashes[i]) {
			e.pool.uncommit(r.blocks[i])
		}
	}
}

// missing is how many blocks r lacks to compute tokens more.
func (e *Engine) missing(r *Request, tokens int) int {
	return ceil(r.computed+tokens, e.cfg.BlockSize) - len(r.blocks)
}

// give plans tokens of r and takes the blocks they need.
func (e *Engine) give(r *Request, tokens int) {
	for range e.missing(r, tokens) {
		id, evicted, wasCached := e.pool.take()
		if wasCached {
			e.say(kvevent.Raw{Kind: kvevent.Removed, Hashes: e.keep(evicted)})
		}
		r.blocks = append(r.blocks, id)
	}
	r.work = len(e.plan)
	if !e.cfg.NoPrefixCache {
		e.claim(r, r.computed+tokens)
	}
	// What a preempted request must compute again is prefill too, answer or not. The last token of a
	// prompt that was delivered is a step like any other.
	prefill := r.computed < len(r.Prompt) && r.Delivered == 0 || tokens > 1
	e.plan = append(e.plan, work{r, tokens, prefill})
}

// drop takes r out of the plan and returns the tokens it had there.
func (e *Engine) drop(r *Request) (tokens int) {
	if r.work < 0 {
		return 0
	}
	tokens = e.plan[r.work].tokens
	e.plan[r.work] = work{}
	r.work = -1
	return tokens
}

// releaseAll frees r's blocks, the last first.
func (e *Engine) releaseAll(r *Request) {
	for _, id := range slices.Backward(r.blocks) {
		e.pool.release(id)
	}
	r.blocks = r.blocks[:0]
	r.computed, r.committed = 0, 0
}

func (e *Engine) duration() time.Duration {
	var p perfmodel.Prefill
	d := perfmodel.Decode{Capacity: e.cfg.Blocks * e.cfg.BlockSize}
	for _, w := range e.plan {
		if w.r == nil {
			continue
		}
		if w.prefill {
			p.Requests++
			p.Prefix += w.r.computed
			p.Input += w.r.computed + w.tokens
			continue // its first token comes with the last chunk, at no further cost
		}
		d.Requests++
		d.Context += w.r.known()
	}
	return e.cfg.Timing.Prefill(p) + e.cfg.Timing.Decode(d)
}

func without(list []*Request, r *Request) []*Request {
	i := slices.Index(list, r)
	return slices.Delete(list, i, i+1)
}

func ceil(n, size int) int { return (n + size - 1) / size }
