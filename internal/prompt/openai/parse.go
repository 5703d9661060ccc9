package openai

import (
	"bytes"
	"math"
	"unicode/utf8"

	"github.com/stator-project/stator/internal/jsonscan"
)

// Parse reads the body of a request to endpoint ep. On a bad body it returns nil and an
// [*Error] with status 400. The last value of a repeated key counts, as for engines.
func Parse(ep Endpoint, body []byte, lim Limits) (*Request, error) {
	req := &Request{}
	if err := ParseInto(req, ep, body, lim); err != nil {
		return nil, err
	}
	return req, nil
}

// ParseInto does what Parse does, with the memory that req has from the request before. The content of that
// request, strings included, is no longer valid then. After an error req must not be read, but it may be used
// for another ParseInto.
func ParseInto(req *Request, ep Endpoint, body []byte, lim Limits) error {
	lim = lim.WithDefaults()
	if !utf8.Valid(body) {
		return malformed(firstInvalidByte(body), "invalid UTF-8")
	}

	req.Reset()
	req.Endpoint = ep
	req.N = 1
	req.AddGenerationPrompt = true
	req.AddSpecialTokens = ep != Chat && ep != Messages
	req.Messages = req.memory.messages
	req.Prompts = req.memory.prompts

	p := parser{scanner: newScanner(body, lim.Depth), lim: lim, req: req}
	p.maxValues = lim.Values
	p.Left = lim.Values
	p.arena = req.memory.arena
	p.body()
	req.memory.arena = p.arena[:0]
	req.memory.messages = req.Messages[:0]
	req.memory.prompts = req.Prompts[:0]
	if err := p.failure(); err != nil {
		return err
	}
	if !ep.IsChat() {
		req.Messages = nil
	}
	return nil
}

// body reads the whole body.
func (p *parser) body() {
	if k := p.Peek(); p.Err == nil && k != jsonscan.Object {
		p.Err = Invalid("", "invalid_json", "The request body must be a JSON object, but is %s.", k.WithArticle())
		return
	}
	read := p.field
	switch p.req.Endpoint {
	case Messages:
		read = p.messagesField
	case Responses:
		read = p.responsesField
	}
	p.object(read)
	p.SkipSpace()
	if p.Err == nil && p.At != len(p.Src) {
		p.Fail("unexpected data after the object")
	}
	if p.Err == nil {
		p.checkRequest()
	}
}

// firstInvalidByte returns the position of the first byte of body that is not UTF-8.
func firstInvalidByte(body []byte) int {
	for i := 0; i < len(body); {
		r, n := utf8.DecodeRune(body[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(body)
}

// parser fills a request from the fields of its body.
type parser struct {
	scanner
	lim Limits
	req *Request

	// maxTokens and maxCompletionTokens are 0 unless the body has them. Which one counts is only known at the
	// end.
	maxTokens, maxCompletionTokens int
	// hasEmbeds is set if the request has prompt_embeds.
	// hasLogprobs is set if it asks for a number of logprobs.
	hasMessages, hasPrompt, hasEmbeds, hasLogprobs bool
	// system is the text of the first message that Messages and Responses have in a member of their own.
	system string
	// blocks, texts and parts are buffers for one message of them.
	blocks []block
	texts  []string
	parts  []Part
	// These count the items read so far, for the limits. Elements of a repeated key count each time,
	// because each costs memory.
	messageCount, partCount, promptCount, tokenCount, hintCount int
}

// field reads the value of one top-level key. It skips keys that change neither the prompt nor the route.
func (p *parser) field(key string) {
	r := p.req
	switch key {
	case "model":
		r.Model = p.stringOrNull(key)
	case "messages":
		p.messages(key)
	case "prompt":
		p.prompts(key, Completions)
	case "input":
		p.prompts(key, Embeddings)
	case "stream":
		r.Stream = p.booleanOr(key, false)
	case "stream_options":
		p.streamOptions(key)
	case "max_tokens":
		v, ok := p.integer(key)
		r.setFact(MaxTokensNull, !ok)
		r.setFact(MaxTokensZero, ok && v == 0)
		r.setFact(MaxTokensNegative, ok && v < 0)
		p.maxTokens = clampInt32(v)
	case "max_completion_tokens":
		v, ok := p.integer(key)
		r.setFact(MaxCompletionTokensBelowOne, ok && v < 1)
		p.maxCompletionTokens = clampInt32(v)
	case "echo":
		r.setFact(Echo, p.isTrue())
	case "return_token_ids":
		r.setFact(TokenIDs, p.isTrue())
	case "prompt_logprobs":
		r.PromptLogprobs = p.Peek() == jsonscan.Number
		p.Skip()
	case "logprobs", "top_logprobs":
		p.hasLogprobs = p.hasLogprobs || p.Peek() == jsonscan.Number // a chat's logprobs is true or false
		p.Skip()
	case "prompt_embeds":
		p.hasEmbeds = p.Peek() != jsonscan.Null
		p.Skip()
	case "n":
		r.N = max(1, p.positiveInteger(key))
	case "seed":
		r.Seed, r.HasSeed = p.integer(key)
	case "user":
		r.User = p.stringOrNull(key)
	case "cache_salt":
		r.CacheSalt = p.stringOrNull(key)
	case "session_id":
		r.SessionID = p.stringOrNull(key)
	case "priority":
		p.integer(key) // engines refuse another type
	case "nvext":
		p.nvext(key)
	default:
		p.templateField(key)
	}
}

// isTrue reads any value, and reports whether it is true.
func (p *parser) isTrue() bool {
	holds := p.Peek() == jsonscan.Bool && p.Src[p.At] == 't'
	p.Skip()
	return holds
}

// templateField reads the keys that change how a prompt is rendered or truncated.
func (p *parser) templateField(key string) {
	r := p.req
	switch key {
	case "tool_choice":
		kind, start := p.Peek(), p.At
		p.Skip()
		none := string(bytes.TrimSpace(p.Src[start:p.At])) == `"none"`
		r.setFact(ToolChoice, kind != jsonscan.Null && !none)
		r.setFact(FewerTools, kind == jsonscan.Object || none)
	case "tools":
		r.Tools = p.rawOrNull(key, jsonscan.Array)
	case "documents":
		r.Documents = p.rawOrNull(key, jsonscan.Array)
	case "chat_template_kwargs":
		r.TemplateArgs = p.rawOrNull(key, jsonscan.Object)
	case "chat_template":
		r.setFact(OwnTemplate, p.Peek() == jsonscan.String)
		p.stringOrNull(key)
	case "reasoning_effort":
		r.ReasoningEffort = p.stringOrNull(key)
	case "add_generation_prompt":
		r.AddGenerationPrompt = p.booleanOr(key, true)
	case "continue_final_message":
		r.ContinueFinalMessage = p.booleanOr(key, false)
	case "add_special_tokens":
		r.AddSpecialTokens = p.booleanOr(key, r.Endpoint != Chat)
	case "truncate_prompt_tokens":
		v, ok := p.integer(key)
		bad := ok && (v == 0 || v < -1 || v > math.MaxInt32)
		r.setFact(BadTruncation, bad)
		r.Truncate = 0
		if !bad {
			r.Truncate = int(v)
		}
	case "truncation_side":
		r.TruncateRight = p.stringOrNull(key) == "right"
	default:
		p.Skip()
	}
}

// checkRequest checks the rules that concern several fields, once all are read.
func (p *parser) checkRequest() {
	r := p.req
	r.MaxTokens = p.maxCompletionTokens
	if r.MaxTokens == 0 {
		r.MaxTokens = p.maxTokens
	}
	r.PromptLogprobs = r.PromptLogprobs || p.hasLogprobs && r.Facts&Echo != 0

	// Completions may have embeddings beside or in place of text, and embedding requests may be chats.
	switch r.Endpoint {
	case Chat:
		if r.Facts&OwnTemplate != 0 {
			r.Unread = WhyTemplate
		}
	case Completions:
		if p.hasEmbeds || r.Facts&OddPrompts != 0 {
			r.Unread = WhyForm
		}
	case Embeddings:
		if !p.hasPrompt && p.hasMessages || r.Facts&OddPrompts != 0 {
			r.Unread = WhyForm
		}
	case Messages, Responses:
		p.addSystem()
	}

	switch {
	case r.Model == "":
		p.failMissing("model")
	case r.Endpoint == Chat && !p.hasMessages:
		p.failMissing("messages")
	case r.Endpoint == Chat && len(r.Messages) == 0:
		p.Err = Invalid("messages", "empty_array", "Invalid 'messages': empty array. Send at least one message.")
	case r.Endpoint == Completions && !p.hasPrompt && !p.hasEmbeds:
		p.failMissing("prompt")
	case r.Endpoint == Embeddings && !p.hasPrompt && !p.hasMessages:
		p.failMissing("input")
	case r.Endpoint == Messages && !p.hasMessages:
		p.failMissing("messages")
	case r.Endpoint == Responses && !p.hasPrompt:
		p.failMissing("input")
	}
}

// setFact sets or clears one fact.
func (r *Request) setFact(which Facts, holds bool) {
	r.Facts &^= which
	if holds {
		r.Facts |= which
	}
}

// streamOptions reads stream_options, of which only include_usage counts.
func (p *parser) streamOptions(param string) {
	p.req.IncludeUsage = false
	if !p.expectKind(param, jsonscan.Object, "an object") {
		return
	}
	p.object(func(key string) {
		if key == "include_usage" {
			p.req.IncludeUsage = p.booleanOr("stream_options.include_usage", false)
			return
		}
		p.Skip()
	})
}
