package enginesim

import (
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/sim/engine"
)

// completion is one HTTP request: a choice for each answer to each prompt, and its sequence in the core.
type completion struct {
	req      *openai.Request
	id       string
	created  int64
	prompts  int               // tokens of all prompts
	choices  []choice          // of the first prompt, then of the second, and so on
	requests []*engine.Request // one for each choice
	notify   chan struct{}     // has a token when a choice has tokens to write

	leg  leg  // the part of the request in a transfer of KV caches
	hold bool // no answer is sent before the leg is complete, also no stream

	vectors vectors       // the form of embeddings
	pin     time.Duration // of the prompt's blocks in the store; 0 for none
	first   []byte        // further members of the first choice
	fetched int           // tokens of the first prompt that the usage counts as cached, because they were fetched
	thinks  int           // tokens of each answer that are thinking
}

// choice is one answer. The goroutine of passes writes it and the handler reads it.
type choice struct {
	answer answer
	made   reader        // of the answer; used by the goroutine of passes
	reads  reader        // of the answer; used by the handler
	echo   string        // the text of the prompt, if the answer begins with it
	notify chan struct{} // of the completion: one channel wakes the handler for all choices
	every  int           // tokens of one write of a stream

	// state is the number of emitted tokens and the reason for the end, in one word. So a reader that sees
	// the last token also sees that it is the last, and the other way round.
	state  atomic.Uint64
	cached atomic.Int32 // prompt tokens that were cached; set before the first token

	arrived, last time.Time // used by the goroutine of passes
	sent          int       // tokens that the handler has written; used by the handler
}

// reasonBits is the width of the reason in choice.state.
const reasonBits = 8

// emit adds a token of the core, and wakes the handler if it has something to write. The engine's lock is held.
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

	// The state is stored before the handler is woken, and after everything else that it reads.
	c.state.Store(uint64(o.Index+1)<<reasonBits | uint64(o.Done))
	if o.Done == engine.NotDone && o.Index%c.every != 0 {
		return
	}
	select {
	case c.notify <- struct{}{}:
	default:
	}
}

// progress returns the number of emitted tokens, and the reason for the end or NotDone.
func (c *choice) progress() (emitted int, done engine.Reason) {
	s := c.state.Load()
	return int(s >> reasonBits), engine.Reason(s & (1<<reasonBits - 1))
}

// prepare tokenizes all prompts of a request and adds its choices. The completion keeps req.
func (s *Sim) prepare(req *openai.Request, id string, now time.Time) (*completion, error) {
	prompts := max(1, len(req.Prompts))
	// The bound keeps one request from filling the queue of the engine.
	if answers := prompts * req.N; answers > s.cfg.MaxAnswers || req.N < 1 {
		return nil, openai.Invalid("n", "", "This engine gives at most %d answers to a request: ask for fewer, or in several requests.",
			s.cfg.MaxAnswers)
	}

	c := &completion{req: req, id: id, created: now.Unix(), notify: make(chan struct{}, 1), leg: noLeg{}}
	c.choices = make([]choice, prompts*req.N)
	if req.Endpoint.IsChat() {
		c.thinks = s.cfg.ThinkTokens
	}

	// Prompts are prepared one by one: an engine tokenizes each prompt of a batch separately.
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
		// vLLM accepts embeddings in place of text, and chats for embeddings. The simulator's model has no
		// weights that could use them.
		if scratch.Unread != openai.WhyRead {
			return nil, openai.Invalid("", "", "This engine does not read this form of prompt: send text.")
		}

		// The choices of a prompt share its tokens.
		tokens := append([]uint32(nil), scratch.Tokens...)
		c.prompts += len(tokens)
		for i := range req.N {
			c.addChoice(s, p*req.N+i, i, tokens, now)
		}
		if c.echoes() {
			c.setEcho(p, s.echoOf(&scratch))
		}
	}

	return c, nil
}

// defaultCompletion is the bound of answers to completions without max_tokens, in OpenAI's API and in vLLM. With null there is none.
const defaultCompletion = 16

// echoes reports whether answers begin with their prompts.
func (c *completion) echoes() bool {
	return c.req.Endpoint == openai.Completions && c.req.Facts&openai.Echo != 0
}

// scores reports whether answers are their prompts alone: max_tokens is 0, and echo is true. Clients ask so for the
// log probabilities of prompts. As in vLLM the engine then computes one token, which is counted and not shown.
func (c *completion) scores() bool { return c.echoes() && c.req.Facts&openai.MaxTokensZero != 0 }

// setEcho sets the text of the prompt at, for all of its answers.
func (c *completion) setEcho(at int, text string) {
	for i := range c.req.N {
		c.choices[at*c.req.N+i].echo = text
	}
}

// echoOf returns the text of a prompt. Token ids are decoded.
func (s *Sim) echoOf(p *prompt.Prompt) string {
	if len(p.Text) > 0 {
		return string(p.Text)
	}
	return string(s.cfg.Vocabulary.AppendDecode(nil, p.Tokens...))
}

// shown returns the text of the i-th token of a choice, as the answer shows it.
func (c *completion) shown(ch *choice, i int) string {
	_, text := ch.reads.read(i)
	switch {
	case c.scores():
		return ch.echo
	case i == 0 && ch.echo != "":
		return ch.echo + text
	}
	return text
}

// addChoice adds the choice at, the i-th answer to a prompt.
func (c *completion) addChoice(s *Sim, at, i int, tokens []uint32, now time.Time) {
	ch := &c.choices[at]
	ch.notify = c.notify
	ch.every = s.cfg.StreamInterval
	ch.arrived = now

	limit := c.req.MaxTokens
	switch {
	case c.req.Endpoint == openai.Embeddings:
		limit = 1 // an embedding needs one pass over its prompt
	case c.scores():
		limit = 1
	case c.req.Endpoint == openai.Completions && limit == 0 && c.req.Facts&openai.MaxTokensNull == 0:
		limit = defaultCompletion
	}

	// The i-th answer to a prompt has its own seed, so the answers of one prompt differ.
	exact := limit > 0 && !s.cfg.OwnLength
	ch.answer = s.words.newAnswer(seedOf(s.cfg.Seed, c.req.Seed, c.req.HasSeed), tokens, i, s.cfg.AnswerTokens, exact)
	ch.made.answer, ch.reads.answer = &ch.answer, &ch.answer
	r := &engine.Request{
		Prompt: tokens, MaxTokens: limit, Next: ch.made.next, Owner: ch,
		Salt: c.req.CacheSalt, Session: c.req.SessionID, WholePrompt: c.req.PromptLogprobs || s.cfg.NoCaching,
	}

	// The prefixes of adapters are separate from the model's.
	if id := s.adapters.id(c.req.Model); id > 0 {
		r.LoRA = c.req.Model
		r.LoRAID = id
	}

	c.requests = append(c.requests, r)
}

// ended reports whether every choice has ended and was written.
func (c *completion) ended() bool {
	for i := range c.choices {
		if emitted, done := c.choices[i].progress(); done == engine.NotDone || c.choices[i].sent < emitted {
			return false
		}
	}
	return true
}

// usage returns the token counts of the request. A prompt counts once, also with several answers.
func (c *completion) usage() (promptTokens, answerTokens, cached int) {
	for i := range c.choices {
		emitted, _ := c.choices[i].progress()
		answerTokens += emitted
		// The first answer to a prompt finds the cached tokens; the others find its blocks.
		if i%c.req.N == 0 {
			cached += int(c.choices[i].cached.Load())
		}
		if i == 0 {
			cached = max(cached, c.fetched)
		}
	}
	return c.prompts, answerTokens, cached
}

// finishReasons are the reasons in the words of the API.
var finishReasons = [...]string{engine.NotDone: "", engine.Length: "length", engine.Stop: "stop"}
