package engine

import (
	"slices"
	"time"

	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/perfmodel"
)

// work is the part of one request in the pass. r is nil if the request was cancelled since.
type work struct {
	r       *Request
	tokens  int
	prefill bool
}

// Begin plans a pass that starts now and returns the time of its end. ok is false when there is no work. Until
// the pass is ended, Begin returns the same time again.
func (e *Engine) Begin(now time.Time) (end time.Time, ok bool) {
	if e.inPass {
		return e.end, true
	}
	took, ok := e.Plan(now)
	if ok {
		e.end = now.Add(took)
	}
	return e.end, ok
}

// Plan is Begin for a caller that counts durations: it returns how long the pass takes. It must not be called during a pass.
// If it returns false, [Engine.Wake] returns when to call it again.
func (e *Engine) Plan(now time.Time) (took time.Duration, ok bool) {
	if e.quiet > 0 {
		e.beginQuiet()
		return e.begun(now), true
	}
	e.plan = e.plan[:0]
	if !e.held {
		e.clearResult()
	}
	e.held = false

	e.endLoads(now)
	budget, preempted := e.planRunning(e.cfg.MaxNumBatchedTokens)
	for preempted && !e.planned() {
		// The victim was the only request with work. Plan again with its blocks.
		budget, preempted = e.planRunning(e.cfg.MaxNumBatchedTokens)
	}
	if !preempted {
		e.admit(budget, now)
	}
	if !e.planned() {
		e.held = true
		return 0, false
	}
	return e.begun(now), true
}

// clearResult empties the result and what belongs to it, for the next pass.
func (e *Engine) clearResult() {
	e.hashes = e.hashes[:0]
	e.tokens = e.tokens[:0]
	e.prompts = 0
	e.result.Outputs = e.result.Outputs[:0]
	e.result.Events = e.result.Events[:0]
}

// begun begins the planned pass, and returns how long it takes.
func (e *Engine) begun(now time.Time) time.Duration {
	e.inPass = true
	prefill, decode := e.duration()
	took := e.noise.pass(prefill, decode, e.prompts, now)
	e.ends = now.Add(took)
	return took
}

// planned reports whether the pass has work.
func (e *Engine) planned() bool {
	return slices.ContainsFunc(e.plan, func(w work) bool { return w.r != nil })
}

// planRunning plans the decode steps and chunks of running requests. When blocks are missing it preempts the
// newest request, as vLLM does. It returns the remaining budget of tokens.
func (e *Engine) planRunning(budget int) (left int, preempted bool) {
	for i := 0; i < len(e.running) && budget > 0; i++ {
		r := e.running[i]
		want := min(r.known()-r.computed, budget)
		for e.missing(r, want) > e.pool.free {
			victim := e.running[len(e.running)-1]
			e.preempt(victim)
			preempted = true
			if victim == r {
				return budget, true
			}
		}
		e.planTokens(r, want)
		budget -= want
	}
	return budget, preempted
}

// preempt moves r to the head of the queue and frees its blocks. r has no part in this pass yet: requests are
// planned from the oldest on, and the newest is preempted.
func (e *Engine) preempt(r *Request) {
	e.releaseAll(r)
	e.running = without(e.running, r)
	r.Delivered = 0 // delivered tokens were in the blocks
	e.waiting = slices.Insert(e.waiting, 0, r)
	r.state = waiting
	e.stats.Preemptions++
}

// admit moves requests from the queue to the running ones, in order, until one does not fit. One that loads blocks from tiers comes
// to the running ones later, and those behind it do not wait for it.
func (e *Engine) admit(budget int, now time.Time) {
	for len(e.waiting) > 0 && len(e.running)+len(e.loading) < e.cfg.MaxNumSeqs && budget > 0 {
		r := e.waiting[0]
		size := e.cfg.BlockSize

		// At least one token must be computed, because an answer is emitted from its result.
		hits, inactive := 0, 0
		if !r.WholePrompt {
			hits, inactive = e.pool.match(r.hashes[:min(len(r.hashes), (r.known()-1)/size)])
		}
		if ceil(r.known(), size)-hits > e.pool.free-inactive {
			return
		}

		if e.beginLoad(r, hits, now) {
			continue
		}
		found := size * max(hits, e.cfg.Shared.match(r.hashes[:min(len(r.hashes), (r.known()-1)/size)]))
		computed := max(found, min(r.Delivered, r.known()-1))
		want := min(r.known()-computed, budget)

		e.take(r, hits, computed, found)
		e.running = append(e.running, r)
		r.state = running
		e.planTokens(r, want)
		budget -= want
	}
}

// take takes the request at the head of the queue out of it, with its first blocks that are cached. found is the number of tokens
// that need not be computed because they were found in a cache, which counts once.
func (e *Engine) take(r *Request, hits, computed, found int) {
	for _, h := range r.hashes[:hits] {
		id, _ := e.pool.cached.get(h)
		e.pool.hold(id)
		r.blocks = append(r.blocks, id)
	}
	r.computed = computed
	r.committed = hits
	if !r.admitted {
		r.admitted = true
		e.prompts++
		r.cached = found
		e.stats.PrefixQueries += uint64(r.known())
		e.stats.PrefixHits += uint64(found)
	}
	e.waiting[0] = nil
	e.waiting = e.waiting[1:]
}

// claim caches the blocks that this pass is going to fill. A request that is admitted later, also in the same
// pass, finds them, as in vLLM. Their events follow when the pass ends.
func (e *Engine) claim(r *Request, computed int) {
	for i := r.committed; i < computed/e.cfg.BlockSize; i++ {
		e.pool.commit(r.blocks[i], r.hashes[i])
	}
}

// missing returns the number of blocks that r needs for further tokens.
func (e *Engine) missing(r *Request, tokens int) int {
	return ceil(r.computed+tokens, e.cfg.BlockSize) - len(r.blocks)
}

// planTokens adds tokens of r to the plan and allocates their blocks.
func (e *Engine) planTokens(r *Request, tokens int) {
	e.allocate(r, e.missing(r, tokens))

	r.work = len(e.plan)
	e.claim(r, r.computed+tokens)

	// A preempted request computes prompt and answer again, as prefill. The last token of a delivered prompt
	// is a decode step.
	prefill := r.computed < len(r.Prompt) && r.Delivered == 0 || tokens > 1
	e.plan = append(e.plan, work{r, tokens, prefill})
}

// allocate gives r so many further blocks.
func (e *Engine) allocate(r *Request, blocks int) {
	for range blocks {
		id, evicted, wasCached := e.pool.allocate()
		if wasCached {
			e.addEvent(kvevent.Raw{Kind: kvevent.Removed, Hashes: e.copyHashes(evicted)})
		}
		r.blocks = append(r.blocks, id)
	}
}

// unplan removes r from the plan.
func (e *Engine) unplan(r *Request) {
	if r.work < 0 {
		return
	}
	e.plan[r.work] = work{}
	r.work = -1
}

// releaseAll frees the blocks of r, from the last to the first.
func (e *Engine) releaseAll(r *Request) {
	for _, id := range slices.Backward(r.blocks) {
		e.pool.release(id)
	}
	r.blocks = r.blocks[:0]
	r.computed = 0
	r.committed = 0
}

// duration returns the durations of both parts of the planned pass, without noise.
func (e *Engine) duration() (prefill, decode time.Duration) {
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
			continue // the first token is emitted with the last chunk, at no further cost
		}
		d.Requests++
		d.Context += w.r.known()
	}

	prefill, decode = e.cfg.Timing.Prefill(p), e.cfg.Timing.Decode(d)
	switch {
	case !e.cfg.Overlap:
	case prefill > decode:
		decode = 0
	default:
		prefill = 0
	}
	return prefill, decode
}

func without(list []*Request, r *Request) []*Request {
	i := slices.Index(list, r)
	return slices.Delete(list, i, i+1)
}

func ceil(n, size int) int { return (n + size - 1) / size }
