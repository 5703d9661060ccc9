// Package prompt turns a request into the tokens its engine would see.
//
// A [Model] is what a Hugging Face folder says of a model's input: vocabulary, chat template,
// context length. [Model.Prepare] renders and tokenizes one parsed request. The package does
// not know pools, workers or which model a request should go to, and it does no I/O: folders
// come as fs.FS.
//
// A Model is immutable and safe for concurrent use; a [Prompt] belongs to one request at a
// time and is meant to be used again, because it keeps its buffers.
package prompt

import (
	"errors"
	"io/fs"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/prompt/tokenizer"
)

// What callers need of package openai, so that those above import one package.
type (
	Error    = openai.Error
	Request  = openai.Request
	Endpoint = openai.Endpoint
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
	template  *chattemplate.Template
	context   int
}

// Prompt is a prepared request. Its buffers are kept from one Prepare to the next.
type Prompt struct {
	// Text is the rendered chat, or the text of the first prompt; empty for token ids.
	Text []byte
	// Tokens are the ids of the first prompt.
	Tokens []uint32
	// Total counts the tokens of all prompts; Prompts counts the prompts.
	Total, Prompts int
}

// Load reads a model folder as Hugging Face lays it out.
func Load(fsys fs.FS) (*Model, error) {
	return nil, errors.New("load model folder: not supported yet")
}

// Prepare renders and tokenizes req into dst. A bad request is an [*Error].
func (m *Model) Prepare(req *Request, dst *Prompt) error {
	return &Error{Status: 500, Type: openai.ServerError, Message: "Prompts cannot be prepared yet."}
}

// ContextLength is the longest prompt and answer together, in tokens; 0 where the folder
// does not say.
func (m *Model) ContextLength() int { return m.context }

// Tokenizer is the model's vocabulary.
func (m *Model) Tokenizer() *tokenizer.Tokenizer { return m.tokenizer }
