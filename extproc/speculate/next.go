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
	if req.ContinueFinalMessage || req.Truncate != 0 {
		return nil, errUnread
	}
	messages := append(slices.Clip(req.Messages), a.message(thinkingSentBack(req.Messages)), openai.Message{})

	var common []uint32
	for i, text := range unknownTexts {
		messages[len(messages)-1] = a.unknown(text)
		one := *req
		one.Messages, one.MaxTokens = messages, 0
		next := prompt.Prompt{Now: now}
		if err := m.Prepare(&one, &next); err != nil {
			return nil, err
		}
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
// the first character with what is before it.
var unknownTexts = [...]string{"x", "\n\n0"}

// unknown returns the message that comes after the answer: the result of the first call of a tool, or a user's.
func (a *answer) unknown(text string) openai.Message {
	m := openai.Message{Role: "user", Kind: openai.TextContent, Content: text}
	if len(a.calls) > 0 {
		m.Role = "tool"
		m.Has = openai.OwnMembers | openai.ToolCallIDMember
		m.ToolCallID = string(a.calls[0].id)
	}
	return m
}

// thinkingSentBack returns the members in which a client has sent back the thinking of earlier answers; 0 if it has not.
func thinkingSentBack(messages []openai.Message) openai.Members {
	const members = openai.ReasoningMember | openai.FromReasoningContent
	for i := range slices.Backward(messages) {
		if m := &messages[i]; m.Role == "assistant" && m.Has&members != 0 {
			return m.Has & members
		}
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
