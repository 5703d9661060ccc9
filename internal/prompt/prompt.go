// Package prompt turns a request into the tokens that its engine will see.
//
// A [Model] is the part of a model folder that describes the input: vocabulary, chat template and
// context length. [Model.Prepare] renders and tokenizes one parsed request as vLLM does. The
// package does not select models, pools or workers. It does no I/O and reads no clock: callers
// pass folders as fs.FS and the time in [Prompt.Now].
//
// A Model is immutable and safe for concurrent use; a [Prompt] belongs to one request at a
// time and is meant to be used again, because it keeps its buffers.
package prompt

import (
	"errors"
	"time"
	"unsafe"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/prompt/tokenizer"
)

// These types of package openai are repeated here, so that most callers import only this package.
type (
	Error      = openai.Error
	Request    = openai.Request
	Endpoint   = openai.Endpoint
	Hints      = openai.Hints
	Override   = openai.Override
	Preference = openai.Preference
	Why        = openai.Why
)

// The endpoints.
const (
	Chat        = openai.Chat
	Completions = openai.Completions
	Embeddings  = openai.Embeddings
	Messages    = openai.Messages
	Responses   = openai.Responses
)

// Model prepares the prompts of one model.
type Model struct {
	tokenizer *tokenizer.Tokenizer
	// template renders chats without tools, and withTools renders chats with tools. Both are nil if the
	// folder has no template.
	template, withTools *chattemplate.Template
	// tokens are the special tokens that templates may use as variables (bos_token, …).
	tokens []namedToken
	// before and after are the special tokens that engines put around a completion prompt.
	before, after []uint32
	// surroundChat puts before and after around a rendered chat too, as llama.cpp does. Special tokens
	// that the template has written itself are not doubled.
	surroundChat bool
	// textOnly makes Prepare refuse images, audio and video.
	textOnly bool
	// context is the context length in tokens; 0 is unknown.
	context int
	// memory may be nil. Several models may share a memory; their ids are different.
	memory *Memory
	id     uint64
	// harmony is set for a model whose prompts engines make without its template.
	harmony bool
	// mergesSystem and disabledEffort are properties of the templates: see inspect.
	mergesSystem   bool
	disabledEffort string
	// vocabulary is the largest token id that the model accepts, plus one.
	vocabulary int
	rules      Rules
}

// namedToken is a special token with the name of its template variable.
type namedToken struct{ name, text string }

// Prompt is a prepared request. Its buffers are kept from one Prepare to the next.
type Prompt struct {
	// Now is the time that templates may ask for; set it before Prepare.
	Now time.Time
	// Done ends Prepare early when it is closed, because the client has gone: Prepare then returns ErrStopped.
	// Set it before Prepare; nil never ends it.
	Done <-chan struct{}
	// OnRendered is called when the text of a chat is rendered, before it is tokenized; nil for no call. Set it before Prepare.
	OnRendered func()
	// Text is the rendered chat, or the text of the first prompt; empty for token ids.
	Text []byte
	// Tokens are the ids of the first prompt.
	Tokens []uint32
	// Unread is the reason why this package cannot read the prompt although the engine may: see
	// [openai.Request.Unread]. Text and Tokens are then empty.
	Unread openai.Why
	// Total counts the tokens of all prompts; Prompts counts the prompts.
	Total, Prompts int
	// Media are the hashes of the images, audio and video that a chat refers to, in order. The
	// tokens of two prompts with different images are equal.
	Media [][16]byte

	// segmentEnds are the ends of the segments of Tokens, in order. They are empty where AppendBlocks
	// cannot use them: without a memory, for a prompt of token ids, and for a truncated prompt.
	segmentEnds []segmentEnd
	memory      *Memory

	// laterTokens and laterEnds are buffers for the prompts after the first, which are only counted.
	laterTokens []uint32
	laterEnds   []segmentEnd
	// vars, dicts, items and contents are buffers for the variables of a template and the messages of a chat.
	vars     chattemplate.Dict
	dicts    []chattemplate.Dict
	items    []chattemplate.Value
	contents []chattemplate.TextContent
	// final is the text of the final message, if the engine continues that message.
	final string
}

// Reset empties p and keeps its buffers. P then holds no part of a request. Prepare calls it first; the owner
// should call it too before p is idle, because templates' values refer to the body of the request.
func (p *Prompt) Reset() {
	p.Text = p.Text[:0]
	p.Tokens = p.Tokens[:0]
	p.Media = p.Media[:0]
	p.segmentEnds = p.segmentEnds[:0]
	p.Total = 0
	p.Prompts = 0
	p.Unread = openai.WhyRead
	p.memory = nil

	p.vars.Reset()
	for i := range p.dicts {
		p.dicts[i].Reset()
	}
	for i := range p.contents {
		p.contents[i].Reset()
	}
	clear(p.items)
	p.dicts = p.dicts[:0]
	p.items = p.items[:0]
	p.contents = p.contents[:0]
	p.final = ""
}

// Size returns the bytes of p's buffers.
func (p *Prompt) Size() int {
	n := cap(p.Text) + cap(p.Tokens)*wordBytes + cap(p.laterTokens)*wordBytes + cap(p.Media)*len([16]byte{}) +
		(cap(p.segmentEnds)+cap(p.laterEnds))*int(unsafe.Sizeof(segmentEnd{})) +
		cap(p.items)*int(unsafe.Sizeof(chattemplate.Value{})) + p.vars.Size() - int(unsafe.Sizeof(p.vars))
	for i := range p.dicts[:cap(p.dicts)] {
		n += p.dicts[:cap(p.dicts)][i].Size()
	}
	for i := range p.contents[:cap(p.contents)] {
		n += p.contents[:cap(p.contents)][i].Size()
	}
	return n
}

// ContextLength returns the most tokens of a prompt and its answer together; 0 is unknown.
func (m *Model) ContextLength() int { return m.context }

// Tokenizer returns the model's tokenizer.
func (m *Model) Tokenizer() *tokenizer.Tokenizer { return m.tokenizer }

// ErrStopped is the error of a Prepare that Prompt.Done ended.
var ErrStopped = errors.New("prepare the prompt: the request was cancelled")
