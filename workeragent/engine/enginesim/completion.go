package enginesim

import (
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/sim/engine"
)

// completion is one HTTP request in the engine: a choice for each answer to each prompt.
type completion struct {
	req      *openai.Request
	id       string
	created  int64
	prompts  int // tokens over all prompts
	choices  []choice
	requests []*engine.Request
	notify   chan struct{} // has a token when a choice has something new
}

// choice is one answer. The engine's goroutine writes, the handler reads.
type choice struct {
	answer answer
	notify chan struct{}

	// state is how many tokens were emitted and why the answer ended, in one word: whoever sees the
	// last token sees that it is, and the other way round.
	state  atomic.Uint64
	cached atomic.Int32

	arrived, last time.Time // the engine goroutine's
	sent          int       // the handler's
}

func (c *choice) emit(o *engine.Output, now time.Time, m *metrics) {
	// Simulated time may be a little behind the clock that arrived was read from.
	age := max(0, now.Sub(c.arrived).Seconds())
	if o.Index == 0 {
		m.firstToken.Observe(age)
		c.cached.Store(int32(o.Cached))
	} else {
		m.interToken.Observe(now.Sub(c.last).Seconds())
	}

	c.last = now
	if o.Done != engine.NotDone {
		m.finished(o.Done, age)
	}

	c.state.Store(uint64(o.Index+1)<<8 | uint64(o.Done))
	select {
	case c.notify <- struct{}{}:
	default:
	}
}

// progress is how many tokens were emitted, and why the answer ended, if it did.
func (c *choice) progress() (emitted int, done engine.Reason) {
	s := c.state.Load()
	return int(s >> 8), engine.Reason(s & 0xff)
}

// prepare tokenizes all prompts of req and makes its choices. req lives as long as the
// completion.
func (s *Sim) prepare(req *openai.Request, id string, now time.Time) (*completion, error) {
	prompts := max(1, len(req.Prompts))
	if answers := prompts * req.N; answers > s.cfg.MaxAnswers || req.N < 1 {
		return nil, openai.Invalid("n", "", "This engine gives at most %d answers to a request: ask for fewer, or in several requests.", s.cfg.MaxAnswers)
	}

	c := &completion{req: req, id: id, created: now.Unix(), notify: make(chan struct{}, 1)}
	c.choices = make([]choice, prompts*req.N)

	var scratch prompt.Prompt
	for p := range prompts {
		one := *req
		if len(req.Prompts) > 0 {
			one.Prompts = req.Prompts[p : p+1]
		}
		scratch.Now = now
		if err := s.cfg.Model.Prepare(&one, &scratch); err != nil {
			return nil, err
		}
		tokens := append([]uint32(nil), scratch.Tokens...)
		c.prompts += len(tokens)
		for i := range req.N {
			c.add(s, p*req.N+i, i, tokens, now)
		}
	}

	return c, nil
}

func (c *completion) add(s *Sim, at, i int, tokens []uint32, now time.Time) {
	ch := &c.choices[at]
	ch.notify, ch.arrived = c.notify, now

	limit := c.req.MaxTokens
	switch {
	case c.req.Endpoint == openai.Embeddings:
		limit = 1
	case c.req.Endpoint == openai.Completions && limit == 0:
		limit = 16 // OpenAI's default, and vLLM's
	}

	ch.answer = s.words.newAnswer(seedOf(s.cfg.Seed, c.req.Seed, c.req.HasSeed), tokens, i, s.cfg.AnswerTokens, limit > 0)
	r := &engine.Request{
		Prompt: tokens, MaxTokens: limit, Next: ch.answer.next, Owner: ch,
		Salt: c.req.CacheSalt, Session: c.req.SessionID,
	}

	for n, name := range s.cfg.Adapters {
		if name == c.req.Model {
			r.LoRA, r.LoRAID = name, n+1
		}
	}

	c.requests = append(c.requests, r)
}

// ended says whether every choice has been sent whole.
func (c *completion) ended() bool {
	for i := range c.choices {
		if emitted, done := c.choices[i].progress(); done == engine.NotDone || c.choices[i].sent < emitted {
			return false
		}
	}
	return true
}

// usage is what the request took: each prompt counts once, however many answers it has.
func (c *completion) usage() (promptTokens, answerTokens, cached int) {
	for i := range c.choices {
		emitted, _ := c.choices[i].progress()
		answerTokens += emitted
		if i%c.req.N == 0 {
			cached += int(c.choices[i].cached.Load())
		}
	}
	return c.prompts, answerTokens, cached
}

var finishReasons = [...]string{engine.NotDone: "", engine.Length: "length", engine.Stop: "stop"}
