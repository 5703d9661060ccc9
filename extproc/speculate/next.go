package speculate

import (
	"errors"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// Preparer prepares the prompts of a model. A *prompt.Model is one.
type Preparer interface {
	Prepare(req *prompt.Request, dst *prompt.Prompt) error
}

// errUnread is the error of a conversation whose prompts cannot be prepared here.
var errUnread = errors.New("the prompt of the next turn cannot be read")

// nextPrefix returns the tokens with which the prompt of the next turn certainly begins, in whole blocks. The request must not be used
// after it.
func nextPrefix(m Preparer, req *prompt.Request, a *answer, blockSize int, now time.Time) ([]uint32, error) {
	// Clients join an answer to the end of a conversation in ways of their own if that is an answer, too. A prompt of which the engine
	// leaves out tokens begins elsewhere in each turn; truncation auto does so only for a prompt that is too long, which is refused here.
	endsWithAnswer := len(req.Messages) > 0 && req.Messages[len(req.Messages)-1].Role == "assistant"
	if req.ContinueFinalMessage || req.Truncate > 0 || endsWithAnswer {
		return nil, errUnread
	}
	thinking := thinkingSentBack(req)

	var common []uint32
	for i, text := range unknownTexts {
		turn, err := a.turn(req, thinking, text)
		if err != nil {
			return nil, err
		}
		one := *req
		one.Messages = append(slices.Clip(req.Messages), turn...)
		// The next request may have another bound, and a prompt that leaves no room for this one is no reason to compute nothing.
		one.MaxTokens, one.Truncate = 0, 0
		next := prompt.Prompt{Now: now}
		if err := m.Prepare(&one, &next); err != nil {
			return nil, err
		}
		// Tokens of images are placeholders of any image, and the hashes of their blocks have the images' own: a completion has none.
		if next.Unread != openai.WhyRead || len(next.Media) > 0 {
			return nil, errUnread
		}
		if i == 0 {
			common = next.Tokens
			continue
		}
		common = common[:commonLength(common, next.Tokens)]
	}
	return common[:len(common)/blockSize*blockSize], nil
}

// unknownTexts are two texts of the message that comes next. They begin with characters of different kinds, because a tokenizer may join
// the first character with the text before it.
var unknownTexts = [...]string{"x", "\n\n0"}

// turn returns the messages of the next request that the present one does not have: the answer, and one with that text. They are parsed as
// a client's are, because each API has rules by which they become messages of a chat.
func (a *answer) turn(req *prompt.Request, thinking openai.Members, text string) ([]openai.Message, error) {
	list := "messages"
	if req.Endpoint == prompt.Responses {
		list = "input"
	}
	body := openai.AppendString([]byte(`{"model":`), req.Model)
	body = append(append(append(body, `,"`...), list...), `":[`...)
	body, ok := a.form.appendTurn(body, thinking, text)
	if !ok {
		return nil, errUnread
	}

	next, err := openai.Parse(req.Endpoint, append(body, "]}"...), openai.Limits{})
	if err != nil {
		return nil, err
	}
	if next.Unread != openai.WhyRead {
		return nil, errUnread
	}
	return next.Messages, nil
}

// thinkingSentBack returns the members in which the client sends thinking back: as in the last answer that has any, and 0 for a client
// that has sent answers without it. The first answer of a conversation is sent back as its API has it. Thinking is no member of a chat's
// message in OpenAI's API, and clients drop it. It is a part of the answer in the other two, and Claude Code and Codex send all parts back.
func thinkingSentBack(req *prompt.Request) openai.Members {
	const members = openai.ReasoningMember | openai.FromReasoningContent
	first := true
	for i := range slices.Backward(req.Messages) {
		m := &req.Messages[i]
		if m.Role == "assistant" && m.Has&members != 0 {
			return m.Has & members
		}
		first = first && m.Role != "assistant"
	}
	if first && req.Endpoint != prompt.Chat {
		return openai.ReasoningMember
	}
	return 0
}

// commonLength returns the number of tokens with which both begin.
func commonLength(a, b []uint32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
