// Package prompt turns a request into the tokens that its engine will see.
//
// A [Model] is the part of a model folder that describes the input: vocabulary, chat template and
// context length. [Model.Prepare] renders and tokenizes one parsed request as vLLM does. The
// package does not know pools, workers or which model a request should go to, and it does no
// I/O and reads no clock: folders come as fs.FS, the time in [Prompt.Now].
//
// A Model is immutable and safe for concurrent use; a [Prompt] belongs to one request at a
// time and is meant to be used again, because it keeps its buffers.
package prompt

import (
	"time"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/prompt/tokenizer"
)

// What callers need of package openai, so that those above import one package.
type (
	Error      = openai.Error
	Request    = openai.Request
	Endpoint   = openai.Endpoint
	Hints      = openai.Hints
	Override   = openai.Override
	Preference = openai.Preference
)

// The endpoints.
const (
	Chat        = openai.Chat
	Completions = openai.Completions
	Embeddings  = openai.Embeddings
)

// Model is what is needed to prepare prompts for one model.
type Model struct {
	tokenizer *tokenizer.Tokenizer
	// template renders chats, and withTools those with tools; both are nil where the folder
	// has no template.
	template, withTools *chattemplate.Template
	// tokens are the names by which templates know special tokens (bos_token, …).
	tokens []namedToken
	// before and after are put around a text that is not a chat.
	before, after []uint32
	// surroundChat puts them around a rendered chat too, as llama.cpp does; what the template
	// has written of them itself is not doubled.
	surroundChat bool
	// textOnly refuses images, audio and video.
	textOnly bool
	context  int
	// memory may be nil; id tells the models apart that share it.
	memory *Memory
	id     uint64
	// vocabulary is one more than the largest token id that the model takes.
	vocabulary int
}

type namedToken struct{ name, text string }

// Prompt is a prepared request. Its buffers are kept from one Prepare to the next.
type Prompt struct {
	// Now is the time that templates may ask for; set it before Prepare.
	Now time.Time
	// Text is the rendered chat, or the text of the first prompt; empty for token ids.
	Text []byte
	// Tokens are the ids of the first prompt.
	Tokens []uint32
	// Total counts the tokens of all prompts; Prompts counts the prompts.
	Total, Prompts int
	// Media are the hashes of the images, audio and video that a chat refers to, in order. The
	// tokens of two prompts with different images are equal.
	Media [][16]byte

	// marks say where the segments of Tokens end that memory knows of, in order.
	marks  []mark
	memory *Memory

	other      []uint32 // the ids of a later prompt
	otherMarks []mark
	dicts      []chattemplate.Dict
	items      []chattemplate.Value
	final      string // the text of the final message that is continued
}

// Reset empties p and keeps its buffers.
func (p *Prompt) Reset() {
	p.Text = p.Text[:0]
	p.Tokens = p.Tokens[:0]
	p.Media = p.Media[:0]
	p.marks = p.marks[:0]
	p.Total = 0
	p.Prompts = 0
	p.memory = nil
}

// ContextLength returns the most tokens of a prompt and its answer together; 0 is unknown.
func (m *Model) ContextLength() int { return m.context }

// Tokenizer is the model's vocabulary.
func (m *Model) Tokenizer() *tokenizer.Tokenizer { return m.tokenizer }

// HasTemplate reports whether the model has a chat template. Chats for a model without one are refused.
func (m *Model) HasTemplate() bool { return m.template != nil }
