package engine

import (
	"fmt"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// Reason is the reason for the end of an answer.
type Reason uint8

// The reasons. Outputs before the last one are NotDone.
const (
	NotDone Reason = iota
	Length         // MaxTokens were emitted
	Stop           // the token ends the answer
)

// Output is one token of one request.
type Output struct {
	Request *Request
	Token   uint32
	// Index counts the request's tokens from 0.
	Index int
	// Cached is the number of tokens of the prompt that were found in the cache when the request was first
	// admitted.
	Cached int
	// Done is the reason why this is the last token, or NotDone.
	Done Reason
}

// Result is the result of a pass. It belongs to the engine and is valid until the next Begin.
type Result struct {
	Outputs []Output
	// Events are the changes of the cache, in order.
	Events []kvevent.Raw
}

// End ends the pass that [Engine.Begin] began and returns its result. The result is empty if no pass has
// begun.
func (e *Engine) End() *Result {
	if !e.inPass {
		return &Result{}
	}
	e.inPass = false
	e.stats.Passes++
	if e.isQuiet {
		e.endQuiet()
		return &e.result
	}

	for i := range e.plan {
		w := e.plan[i]
		if w.r == nil {
			continue // cancelled since
		}
		w.r.work = -1
		if w.prefill {
			e.stats.PromptTokens += uint64(max(0, min(w.tokens, len(w.r.Prompt)-w.r.computed)))
		}
		w.r.computed += w.tokens
		e.announce(w.r, w.r.computed)
		if w.r.computed == w.r.known() {
			e.emit(w.r)
		}
	}
	e.quiet = e.quietPasses()
	return &e.result
}

// announce adds the events of blocks that the pass filled and that claim cached, with one event for each run of
// neighbouring blocks. Blocks that equal a cached block are not announced.
func (e *Engine) announce(r *Request, computed int) {
	full := computed / e.cfg.BlockSize
	from := r.committed
	for i := r.committed; i < full; i++ {
		if e.pool.holds(r.blocks[i], r.hashes[i]) {
			continue
		}
		e.addStored(r, from, i)
		from = i + 1
	}
	e.addStored(r, from, full)
	if full > r.committed {
		e.cfg.Shared.add(r.hashes[r.committed:full])
		e.copyDown(0, r.hashes[r.committed:full])
	}
	r.committed = max(r.committed, full)
}

// addStored adds an event for the blocks [from, to) of a request.
func (e *Engine) addStored(r *Request, from, to int) {
	if from >= to {
		return
	}
	raw := kvevent.Raw{
		Kind: kvevent.Stored, Hashes: e.copyHashes(r.hashes[from:to]...), BlockSize: e.cfg.BlockSize,
		LoRA: r.LoRA, LoRAID: r.LoRAID, Session: r.Session,
	}
	if from > 0 {
		raw.Parent = r.hashes[from-1]
		raw.HasParent = true
	} else {
		raw.Salt = r.Salt
	}

	// Tokens of the prompt are not copied. The answer's tokens are copied into the pass's buffer, because the
	// answer grows.
	n := len(e.tokens)
	tokens := r.tokens(e.tokens, from*e.cfg.BlockSize, to*e.cfg.BlockSize)
	if to*e.cfg.BlockSize > len(r.Prompt) {
		e.tokens = tokens
		tokens = tokens[n:len(tokens):len(tokens)]
	}
	raw.Tokens = tokens
	e.addEvent(raw)
}

// emit emits the next token of r, and ends r where that is the last one.
func (e *Engine) emit(r *Request) {
	i := len(r.answer)
	token, stop := r.Next(i)
	r.answer = append(r.answer, token)
	e.stats.GenerationTokens++

	out := Output{Request: r, Token: token, Index: i, Cached: r.cached}
	switch {
	case stop:
		out.Done = Stop
	case len(r.answer) >= r.MaxTokens:
		out.Done = Length
	}

	if out.Done != NotDone {
		r.state = done
		if !r.Keep {
			e.releaseAll(r)
		}
		e.running = without(e.running, r)
		e.stats.Finished++
	} else if !e.isQuiet {
		r.extendHashes(e.cfg.BlockSize, e.cfg.HashSeed, e.scratch)
	}
	e.result.Outputs = append(e.result.Outputs, out)
}

// addEvent adds a change of the cache to the result of the pass.
func (e *Engine) addEvent(raw kvevent.Raw) { e.result.Events = append(e.result.Events, raw) }

// copyHashes copies hashes into the pass's buffer, because requests and blocks change theirs.
func (e *Engine) copyHashes(hashes ...kvevent.EngineHash) []kvevent.EngineHash {
	from := len(e.hashes)
	e.hashes = append(e.hashes, hashes...)
	return e.hashes[from:len(e.hashes):len(e.hashes)]
}

// Stats are an engine's figures: its present state, and counts since it started.
type Stats struct {
	// Loading requests wait for blocks from tiers.
	Running, Waiting, Loading int
	// Blocks is the size of the cache. Active blocks are used by requests. Cached blocks can be found, used
	// or not.
	Blocks, Active, Cached int
	// PrefixQueries and PrefixHits count prompt tokens looked up and found.
	PrefixQueries, PrefixHits      uint64
	PromptTokens, GenerationTokens uint64 // computed, emitted
	Preemptions, Passes            uint64
	Finished, Cancelled            uint64
}

// Backlog returns the prompt tokens that are still to be computed for all requests, without the tokens that are in the cache
// now.
func (e *Engine) Backlog() (tokens int) {
	for _, r := range e.running {
		tokens += max(0, len(r.Prompt)-r.computed)
	}
	for _, r := range e.loading {
		tokens += max(0, len(r.Prompt)-r.loaded)
	}
	for _, r := range e.waiting {
		hits := 0
		if !r.WholePrompt {
			hits, _ = e.pool.match(r.hashes[:min(len(r.hashes), (r.known()-1)/e.cfg.BlockSize)])
		}
		tokens += max(0, len(r.Prompt)-max(r.Delivered, hits*e.cfg.BlockSize))
	}
	return tokens
}

// Stats returns the present figures.
func (e *Engine) Stats() Stats {
	s := e.stats
	s.Running = len(e.running)
	s.Waiting = len(e.waiting)
	s.Loading = len(e.loading)
	s.Blocks = e.cfg.Blocks
	s.Active = e.pool.active()
	s.Cached = e.pool.cached.n
	return s
}

// String returns the present state in one line.
func (s Stats) String() string {
	loading := ""
	if s.Loading > 0 {
		loading = fmt.Sprintf(", loading %d", s.Loading)
	}
	return fmt.Sprintf("running %d, waiting %d%s, blocks %d: active %d, cached %d",
		s.Running, s.Waiting, loading, s.Blocks, s.Active, s.Cached)
}
