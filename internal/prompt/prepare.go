package prompt

import (
	"strings"
	"unsafe"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// Prepare renders and tokenizes req into dst, which it overwrites. A bad request is an
// [*Error]: one that the template refuses, and a prompt that is longer than the context.
func (m *Model) Prepare(req *Request, dst *Prompt) error {
	dst.Reset()
	dst.memory = m.memory

	if m.context > 0 && req.Truncate > m.context {
		return openai.Invalid("truncate_prompt_tokens", "invalid_value",
			"truncate_prompt_tokens=%d cannot be greater than max_model_len = %d. Please request a smaller truncation size.",
			req.Truncate, m.context)
	}
	if req.Endpoint == Chat {
		if err := m.render(req, dst); err != nil {
			return err
		}
		if m.textOnly && len(dst.Media) > 0 {
			return openai.Invalid("messages", "invalid_value", "This is not a multimodal model: send text parts only.")
		}
		return m.add(req, dst, openai.Prompt{Text: unsafe.String(unsafe.SliceData(dst.Text), len(dst.Text))})
	}

	for i, p := range req.Prompts {
		if i == 0 && p.Tokens == nil {
			dst.Text = append(dst.Text, p.Text...)
		}
		if err := m.add(req, dst, p); err != nil {
			return err
		}
	}

	return nil
}

// add tokenizes one prompt and counts it.
func (m *Model) add(req *Request, dst *Prompt, p openai.Prompt) error {
	ids, marks := &dst.Tokens, &dst.marks
	if dst.Prompts > 0 {
		ids, marks = &dst.other, &dst.otherMarks
	}

	var err error
	*ids, err = m.tokenize(req, (*ids)[:0], p, marks)
	if err != nil {
		return err
	}

	dst.Prompts++
	dst.Total += len(*ids)
	return m.checkLength(req, len(*ids))
}

// tokenize makes dst, which is empty, the ids of p.
func (m *Model) tokenize(req *Request, dst []uint32, p openai.Prompt, marks *[]mark) ([]uint32, error) {
	if p.Tokens != nil {
		for _, id := range p.Tokens {
			if int64(id) >= int64(m.vocabulary) {
				return dst, openai.Invalid(param(req), "invalid_value",
					"Token id %d is out of vocabulary. Use ids from 0 to %d.", id, m.vocabulary-1)
			}
		}
		return truncate(append(dst, p.Tokens...), m.keep(req), req.TruncateRight), nil
	}

	var before, after []uint32
	text := p.Text
	switch {
	case req.Endpoint == Chat && m.surroundChat:
		before, after = m.before, m.after
		text = m.withoutSurroundings(text)
	case req.AddSpecialTokens:
		before, after = m.before, m.after
	}

	// Special tokens that are put around the text count, and are never cut off.
	dst = m.encode(append(dst, before...), text, marks)
	if keep := m.keep(req); keep >= 0 {
		own := dst[len(before):]
		kept := truncate(own, max(0, keep-len(before)-len(after)), req.TruncateRight)
		if len(kept) < len(own) {
			*marks = (*marks)[:0]
		}
		dst = dst[:len(before)+copy(own, kept)]
	}

	return append(dst, after...), nil
}

// withoutSurroundings is text without the special tokens at its ends that are put there anyway.
func (m *Model) withoutSurroundings(text string) string {
	for _, t := range m.tokens {
		if t.name == "bos_token" && len(m.before) > 0 {
			text = strings.TrimPrefix(text, t.text)
		}
		if t.name == "eos_token" && len(m.after) > 0 {
			text = strings.TrimSuffix(text, t.text)
		}
	}
	return text
}

// keep is how many tokens of a prompt the client wants to keep, -1 for all.
func (m *Model) keep(req *Request) int {
	switch {
	case req.Truncate > 0:
		return req.Truncate
	case req.Truncate < 0 && m.context > 0:
		// A token is left for the answer, where one is asked for.
		return max(0, m.context-min(1, req.MaxTokens))
	}
	return -1
}

// truncate keeps n tokens at the end, or at the beginning where right is cut; -1 keeps all.
func truncate(ids []uint32, n int, right bool) []uint32 {
	switch {
	case n < 0 || n >= len(ids):
		return ids
	case right:
		return ids[:n]
	}
	return ids[:copy(ids, ids[len(ids)-n:])]
}

// checkLength refuses a prompt that leaves no room for an answer, in vLLM's words. How much of
// the room is asked for does not matter, as long as no more is than there ever is: engines cut
// the answer short.
func (m *Model) checkLength(req *Request, n int) error {
	if n == 0 {
		return openai.Invalid(param(req), "invalid_value", "The prompt is empty: it has no tokens. Send some text.")
	}
	most := m.context
	if req.Endpoint != Embeddings {
		most--
	}

	switch {
	case m.context == 0:
	case n > most:
		return openai.Invalid("input_tokens", "context_length_exceeded",
			"This model's maximum context length is %d tokens. However, your prompt contains %d input tokens, which exceeds this "+
				"limit or leaves "+
				"no room for output tokens. Please reduce the length of the input prompt.", m.context, n)
	case req.Endpoint != Embeddings && req.MaxTokens > m.context:
		return openai.Invalid("max_tokens", "invalid_value",
			"max_tokens=%d cannot be greater than max_model_len=%d. Please request fewer output tokens.", req.MaxTokens, m.context)
	}

	return nil
}

// param is the field that holds a request's prompt.
func param(req *Request) string {
	return [...]string{Chat: "messages", Completions: "prompt", Embeddings: "input"}[req.Endpoint]
}
