package engine

import (
	"fmt"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// Reason says why an answer ended.
type Reason uint8

// The reasons. Not all outputs are last ones.
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
	// Cached is how many tokens of the prompt were found in the cache when the request was
	// first admitted.
	Cached int
	// Done is why this is the request's last token, or NotDone.
	Done Reason
}

// Result is what a pass brought. It belongs to the engine and is valid until the next Begin.
type Result struct {
	Outputs []Output
	// Events are the changes of the cache, in order.
	Events []kvevent.Raw
}

// End ends the pass that [Engine.Begin] began and returns what it brought: nothing, where no
// pass has begun.
func (e *Engine) End() *Result {
	if !e.inPass {
		return &Result{}
	}
	e.inPass = false
	e.stats.Passes++
	for i := range e.plan {
		w := e.plan[i]
		if w.r == nil {
			continue
		}
		w.r.work = -1
		if w.prefill {
			e.stats.PromptTokens += uint64(max(0, min(w.tokens, len(w.r.Prompt)-w.r.computed)))
		}
		w.r.computed += w.tokens
		if !e.cfg.NoPrefixCache {
			e.commit(w.r, w.r.computed)
		}
		if w.r.computed == w.r.known() {
			e.emit(w.r)
		}
	}
	return &e.result
}

// commit says which of the blocks that the pass has filled the cache took when r claimed them: one
// event for each run of neighbours.
func (e *Engine) commit(r *Request, computed int) {
	full := computed / e.cfg.BlockSize
	from := r.committed
	for i := r.committed; i < full; i++ {
		if e.pool.holds(r.blocks[i], r.hashes[i]) {
			continue
		}
		e.sayStored(r, from, i)
		from = i + 1
	}
	e.sayStored(r, from, full)
	r.committed = max(r.committed, full)
}

func (e *Engine) sayStored(r *Request, from, to int) {
	if from >= to {
		return
	}
	raw := kvevent.Raw{
		Kind: kvevent.Stored, Hashes: e.keep(r.hashes[from:to]...), BlockSize: e.cfg.BlockSize,
		LoRA: r.LoRA, LoRAID: r.LoRAID, Session: r.Session,
	}
	if from > 0 {
		raw.Parent, raw.HasParent = r.hashes[from-1], true
	} else {
		raw.Salt = r.Salt
	}
	// Tokens of the prompt are not copied; those of the answer are, into the pass's buffer.
	n := len(e.tokens)
	tokens := r.tokens(e.tokens, from*e.cfg.BlockSize, to*e.cfg.BlockSize)
	if to*e.cfg.BlockSize > len(r.Prompt) {
		e.tokens = tokens
		tokens = tokens[n:len(tokens):len(tokens)]
	}
	raw.Tokens = tokens
	e.say(raw)
}

// emit gives r its next token, and ends it where that was the last.
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
		e.releaseAll(r)
		e.running = without(e.running, r)
		e.stats.Finished++
	} else if !e.cfg.NoPrefixCache {
		r.extendHashes(e.cfg.BlockSize, e.cfg.HashSeed, e.scratch)
	}
	e.result.Outputs = append(e.result.Outputs, out)
}

func (e *Engine) say(raw kvevent.Raw) { e.result.Events = append(e.result.Events, raw) }

// keep copies hashes into the pass's buffer: requests and blocks change theirs.
func (e *Engine) keep(hashes ...kvevent.Engine) []kvevent.Engine {
	from := len(e.hashes)
	e.hashes = append(e.hashes, hashes...)
	return e.hashes[from:len(e.hashes):len(e.hashes)]
}

// Stats are an engine's figures: what it holds now, and what it did since it started.
type Stats struct {
	Running, Waiting int
	// Blocks is the cache's size; Active are held by requests; Cached can be found, held or
	// not.
	Blocks, Active, Cached int
	// PrefixQueries and PrefixHits count prompt tokens looked up and found.
	PrefixQueries, PrefixHits      uint64
	PromptTokens, GenerationTokens uint64 // computed, emitted
	Preemptions, Passes            uint64
	Finished, Cancelled            uint64
}

// Stats returns the figures now.
func (e *Engine) Stats() Stats {
	s := e.stats
	s.Running, s.Waiting = len(e.running), len(e.waiting)
	s.Blocks, s.Active, s.Cached = e.cfg.Blocks, e.pool.active(), len(e.pool.cached)
	return s
}

func (s Stats) String() string {
	return fmt.Sprintf("running %d, waiting %d, blocks %d: active %d, cached %d", s.Running, s.Waiting, s.Blocks, s.Active, s.Cached)
}
