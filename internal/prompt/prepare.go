package prompt

import (
	"errors"
	"strconv"
	"strings"
	"unsafe"

	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/prompt/tokenizer"
	"github.com/stator-project/stator/internal/prompt/vllm"
)

// Prepare renders and tokenizes req into dst, which it overwrites. It returns an [*Error] for a bad
// request, for example one that the template refuses or whose prompt is longer than the context. A request
// that it cannot read, and that the engine may accept, sets dst.Unread and is no error.
func (m *Model) Prepare(req *Request, dst *Prompt) error {
	dst.Reset()
	dst.Unread = m.whyUnread(req)
	if dst.Unread != openai.WhyRead {
		return nil
	}
	if m.rules == VLLM {
		if err := vllm.Check(req); err != nil {
			return err
		}
	}
	dst.Unread = req.Unread
	if dst.Unread == openai.WhyRead && !m.rendersAsVLLM(req) {
		dst.Unread = openai.WhyForm
	}
	if dst.Unread != openai.WhyRead {
		return nil
	}

	dst.memory = m.memory
	err := m.prepare(req, dst)
	if err == nil {
		return nil
	}
	return m.applyRules(err, dst)
}

// applyRules returns the error of prepare. For an engine with other rules than vLLM's, a form that only vLLM
// refuses is no error.
func (m *Model) applyRules(err error, dst *Prompt) error {
	var rule *ruleError
	var unread *unreadError
	why := openai.WhyForm
	switch {
	case errors.As(err, &unread):
		why = unread.why
	case !errors.As(err, &rule):
		return err
	case m.rules == VLLM:
		return rule.refusal
	}
	dst.Reset()
	dst.Unread = why
	return nil
}

// whyUnread returns the reason why a request of Messages or Responses cannot be prepared with this model. Only
// vLLM's conversions of these APIs are known, and its vocabularies in OpenAI's harmony format do not go through templates there.
func (m *Model) whyUnread(req *Request) openai.Why {
	switch {
	case req.Endpoint != Messages && req.Endpoint != Responses:
		return openai.WhyRead
	case m.rules != VLLM:
		return openai.WhyEngine
	case m.harmony:
		return openai.WhyHarmony
	}
	return req.Unread
}

// unreadError is the error of a form that is found while a prompt is rendered and cannot be read.
type unreadError struct{ why openai.Why }

// Error returns the reason.
func (e *unreadError) Error() string { return "the prompt cannot be read: " + e.why.String() }

// prepare does what Prepare does for a request that can be read.
func (m *Model) prepare(req *Request, dst *Prompt) error {
	if m.context > 0 && req.Truncate > m.context {
		return vllmRule(openai.Invalid("truncate_prompt_tokens", "invalid_value",
			"truncate_prompt_tokens=%d cannot be greater than max_model_len = %d. Please request a smaller truncation size.",
			req.Truncate, m.context))
	}
	if req.Endpoint.IsChat() {
		if err := m.render(req, dst); err != nil {
			return err
		}
		if dst.OnRendered != nil {
			dst.OnRendered()
		}
		if m.textOnly && len(dst.Media) > 0 {
			return openai.Invalid("messages", "invalid_value", "This is not a multimodal model: send text parts only.")
		}
		return m.addPrompt(req, dst, openai.Prompt{Text: unsafe.String(unsafe.SliceData(dst.Text), len(dst.Text))})
	}

	for i, p := range req.Prompts {
		if i == 0 && p.Tokens == nil {
			dst.Text = append(dst.Text, p.Text...)
		}
		if err := m.addPrompt(req, dst, p); err != nil {
			return err
		}
	}

	return nil
}

// addPrompt tokenizes one prompt of a request and counts its tokens. Dst keeps only the tokens of the first
// prompt, because the router places a request by its first prompt.
func (m *Model) addPrompt(req *Request, dst *Prompt, p openai.Prompt) error {
	if isClosed(dst.Done) {
		return ErrStopped
	}
	ids, ends := &dst.Tokens, &dst.segmentEnds
	if dst.Prompts > 0 {
		ids, ends = &dst.laterTokens, &dst.laterEnds
	}

	var err error
	if p.Tokens != nil {
		*ids, err = m.copyTokens(req, (*ids)[:0], p.Tokens)
	} else {
		*ids, err = m.tokenize(req, (*ids)[:0], p.Text, dst.Done, ends)
	}
	if err != nil {
		return err
	}

	dst.Prompts++
	dst.Total += len(*ids)
	return m.checkLength(req, len(*ids))
}

// copyTokens appends the ids of a prompt to dst, which must be empty, and truncates them as req asks.
func (m *Model) copyTokens(req *Request, dst, ids []uint32) ([]uint32, error) {
	for _, id := range ids {
		if int64(id) >= int64(m.vocabulary) {
			return dst, openai.Invalid(promptField(req), "invalid_value",
				"Token id %d is out of vocabulary. Use ids from 0 to %d.", id, m.vocabulary-1)
		}
	}

	keep := m.tokensToKeep(req)
	if keep < 0 {
		if err := m.checkLength(req, len(ids)); err != nil {
			return dst, err
		}
	}
	return append(dst, truncate(ids, keep, req.TruncateRight)...), nil
}

// tokenize appends the ids of text to dst, which must be empty, and truncates them as req asks. It sets ends as
// encode does; a truncated prompt has none, because its blocks differ from the whole prompt's. A text
// that is too long costs little: it is refused by its length, or encoded only until its tokens are too many.
func (m *Model) tokenize(req *Request, dst []uint32, text string, done <-chan struct{}, ends *[]segmentEnd) ([]uint32, error) {
	var before, after []uint32
	switch {
	case req.Endpoint.IsChat() && m.surroundChat:
		before, after = m.before, m.after
		text = m.trimSurroundings(text)
	case req.AddSpecialTokens:
		before, after = m.before, m.after
	}

	// The special tokens around the text count as tokens to keep, and they are never cut off.
	around := len(before) + len(after)
	keep := m.tokensToKeep(req)
	most := m.mostTokens() - around
	switch {
	case keep >= 0 && req.TruncateRight:
		keep = max(0, keep-around)
		most = keep
	case keep >= 0:
		keep = max(0, keep-around)
		most = maxTokens // all tokens are needed to find the last ones
	}

	if fewest := m.tokenizer.FewestTokens(text); fewest > most && (keep < 0 || !req.TruncateRight) {
		return dst, m.tooLongError("at least " + strconv.Itoa(fewest+around))
	}
	dst, err := m.encode(append(dst, before...), text, tokenizer.Bounds{Tokens: most, Done: done}, ends)
	switch {
	case errors.Is(err, tokenizer.ErrStopped):
		return dst, ErrStopped
	case err != nil && (keep < 0 || !req.TruncateRight):
		return dst, m.tooLongError("more than " + strconv.Itoa(most+around))
	}

	if keep >= 0 {
		encoded := dst[len(before):]
		kept := truncate(encoded, keep, req.TruncateRight)
		if len(kept) < len(encoded) {
			*ends = (*ends)[:0]
		}
		dst = dst[:len(before)+copy(encoded, kept)]
	}

	return append(dst, after...), nil
}

// maxTokens bounds the tokens of a prompt for a model without a context length, and of a prompt that is
// truncated at its beginning.
const maxTokens = 4 << 20

// mostTokens returns the most tokens of a prompt that may be accepted.
func (m *Model) mostTokens() int {
	if m.context > 0 {
		return m.context
	}
	return maxTokens
}

// trimSurroundings removes the special tokens at the ends of a rendered chat that tokenize adds there.
func (m *Model) trimSurroundings(text string) string {
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

// tokensToKeep returns the number of tokens to which req truncates each prompt, or -1 for no truncation.
func (m *Model) tokensToKeep(req *Request) int {
	switch {
	case req.Truncate > 0:
		return req.Truncate
	case req.Truncate < 0 && m.context > 0:
		// One token of the context remains for the answer, unless the request wants no answer.
		return max(0, m.context-min(1, req.MaxTokens))
	}
	return -1
}

// truncate returns the last n ids, or the first n ids where right is set. It returns all ids where n is
// negative.
func truncate(ids []uint32, n int, right bool) []uint32 {
	switch {
	case n < 0 || n >= len(ids):
		return ids
	case right:
		return ids[:n]
	}
	return ids[len(ids)-n:]
}

// checkLength refuses a prompt of n tokens that leaves no room for an answer, with vLLM's message. It does
// not require room for max_tokens, because engines shorten the answer; max_tokens must only be at most the
// context length.
func (m *Model) checkLength(req *Request, n int) error {
	if n == 0 {
		return openai.Invalid(promptField(req), "invalid_value", "The prompt is empty: it has no tokens. Send some text.")
	}
	maxTokens := m.context
	if req.Endpoint != Embeddings {
		maxTokens--
	}

	switch {
	case m.context == 0:
	case n > maxTokens:
		return m.tooLongError(strconv.Itoa(n))
	case m.rules == VLLM && req.Endpoint != Embeddings && req.MaxTokens > m.context:
		return openai.Invalid("max_tokens", "invalid_value",
			"max_tokens=%d cannot be greater than max_model_len=%d. Please request fewer output tokens.", req.MaxTokens, m.context)
	}

	return nil
}

// tooLongError returns vLLM's error for a prompt with too many tokens. Count describes their number.
func (m *Model) tooLongError(count string) error {
	if m.context == 0 {
		return openai.Invalid("input_tokens", "context_length_exceeded",
			"Prompts of more than %d tokens are not accepted, and your prompt contains %s input tokens. Please reduce its length.",
			maxTokens, count)
	}
	return openai.Invalid("input_tokens", "context_length_exceeded",
		"This model's maximum context length is %d tokens. However, your prompt contains %s input tokens, which exceeds this "+
			"limit or leaves no room for output tokens. Please reduce the length of the input prompt.", m.context, count)
}

// promptField returns the name of the field that holds a request's prompt.
func promptField(req *Request) string {
	return [...]string{Chat: "messages", Completions: "prompt", Embeddings: "input", Messages: "messages", Responses: "input"}[req.Endpoint]
}
