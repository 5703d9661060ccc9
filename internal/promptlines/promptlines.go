// Package promptlines serves the commands that read JSON lines and answer each with a JSON line: token ids,
// rendered chats, and block hashes.
//
// [Each] reads and writes lines. A [Tokenizer], a [Renderer] and a [Hasher] answer one line each. They keep
// buffers, so each belongs to one goroutine. A line that cannot be answered gets the error that a client of
// the gateway would get.
package promptlines

import (
	"bytes"
	"encoding/json"
	"math"
	"time"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/prompt/tokenizer"
)

// Tokenizer answers texts and requests with token ids.
type Tokenizer struct {
	Model *prompt.Model
	Now   func() time.Time // for chat templates that print the date
	// Done ends Answer early when it is closed. A nil Done never ends it.
	Done <-chan struct{}
	// API is the API of the requests, by its name in package openai. Empty means the one whose members a request has; those of
	// Messages and Responses are the members of chats and embeddings, too.
	API string

	prompt prompt.Prompt
	ids    []uint32
}

// Answer appends the answer to a line: {"text": "…"}, or a request.
func (t *Tokenizer) Answer(dst, line []byte) (_ []byte, err error) {
	var v struct {
		Text *string `json:"text"`
	}
	if err := json.Unmarshal(line, &v); err == nil && v.Text != nil {
		t.ids, err = t.Model.Tokenizer().EncodeWithin(t.ids[:0], *v.Text, tokenizer.Bounds{Tokens: math.MaxInt, Done: t.Done})
		if err != nil {
			return dst, err
		}
		return appendIDs(dst, t.ids), nil
	}

	req, err := readRequest(line, t.API)
	if err != nil {
		return dst, err
	}
	if len(req.Prompts) > 1 {
		return t.appendEach(dst, req)
	}
	if err := t.prepare(req); err != nil {
		return dst, err
	}
	return appendIDs(dst, t.prompt.Tokens), nil
}

// appendEach appends a list of token ids for each prompt of a request.
func (t *Tokenizer) appendEach(dst []byte, req *openai.Request) ([]byte, error) {
	prompts := req.Prompts
	dst = append(dst, `{"ids":[`...)
	for i := range prompts {
		req.Prompts = prompts[i : i+1]
		if err := t.prepare(req); err != nil {
			return dst, err
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = openai.AppendNumbers(dst, t.prompt.Tokens)
	}
	return append(dst, "]}"...), nil
}

func (t *Tokenizer) prepare(req *openai.Request) error {
	t.prompt.Now, t.prompt.Done = t.Now(), t.Done
	return prepare(t.Model, req, &t.prompt)
}

// prepare prepares a request into p. It returns an error for one that is not read.
func prepare(m *prompt.Model, req *openai.Request, p *prompt.Prompt) error {
	if err := m.Prepare(req, p); err != nil {
		return err
	}
	if p.Unread != openai.WhyRead {
		return openai.Invalid("", "unread", "The prompt is not read here (%s): a router sends it on without reading it.", p.Unread.String())
	}
	return nil
}

// readRequest parses a line as a request of that API, or of the one whose members it has. The model may be missing, because there
// is only one.
func readRequest(line []byte, api string) (*openai.Request, error) {
	var v map[string]json.RawMessage
	if err := json.Unmarshal(line, &v); err != nil {
		_, err := openai.Parse(openai.Chat, line, openai.Limits{}) // its error has the position
		return nil, err
	}

	if v["model"] == nil {
		members := line[1+bytes.IndexByte(line, '{'):]
		line = append([]byte(`{"model":"-",`), members...)
	}
	if ep, ok := openai.EndpointOf(api); ok {
		return openai.Parse(ep, line, openai.Limits{})
	}
	switch {
	case v["messages"] != nil:
		return openai.Parse(openai.Chat, line, openai.Limits{})
	case v["prompt"] != nil:
		return openai.Parse(openai.Completions, line, openai.Limits{})
	case v["input"] != nil:
		return openai.Parse(openai.Embeddings, line, openai.Limits{})
	}
	return nil, openai.Invalid("", "invalid_value", "The line has neither text, messages, prompt nor input. Add one of them.")
}

func appendIDs(dst []byte, ids []uint32) []byte {
	dst = append(dst, `{"ids":`...)
	return append(openai.AppendNumbers(dst, ids), '}')
}

// Renderer answers chats with the prompt that the model's template makes of them.
type Renderer struct {
	Model *prompt.Model
	// Raw means that lines are the context of the template, as Hugging Face's apply_chat_template passes
	// it, and not requests.
	Raw bool
	Now func() time.Time // for templates that print the date
	// Done ends Answer early when it is closed. A nil Done never ends it.
	Done <-chan struct{}
	// API is the API of the requests; see Tokenizer.
	API string

	prompt prompt.Prompt
	text   []byte
}

// Answer appends the answer to a line.
func (r *Renderer) Answer(dst, line []byte) (_ []byte, err error) {
	if r.Raw {
		r.text, err = r.Model.RenderRaw(r.text[:0], line, r.Now(), r.Done)
	} else {
		r.text, err = r.renderChat(line)
	}
	if err != nil {
		return dst, err
	}

	dst = append(dst, `{"prompt":`...)
	dst = openai.AppendString(dst, string(r.text))
	return append(dst, '}'), nil
}

func (r *Renderer) renderChat(line []byte) ([]byte, error) {
	req, err := readRequest(line, r.API)
	if err != nil {
		return nil, err
	}
	if !req.Endpoint.IsChat() {
		return nil, openai.Invalid("messages", "missing_required_parameter", "Only chats are rendered: the line has no messages.")
	}

	r.prompt.Now, r.prompt.Done = r.Now(), r.Done
	if err := prepare(r.Model, req, &r.prompt); err != nil {
		return nil, err
	}
	return r.prompt.Text, nil
}

// Hasher answers lists of token ids with the hashes of their blocks.
type Hasher struct {
	BlockSize  int // tokens
	LoRA, Salt string

	blocks []blockhash.Block
	chain  []blockhash.Sequence
}

// Answer appends the answer to a line.
func (h *Hasher) Answer(dst, line []byte) ([]byte, error) {
	var v struct {
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.Unmarshal(line, &v); err != nil {
		return dst, openai.Invalid("tokens", "invalid_value", "The line must be {\"tokens\": [token ids]}: %v.", err)
	}
	if v.Tokens == nil {
		return dst, openai.Invalid("tokens", "missing_required_parameter", "The line has no tokens. Send {\"tokens\": [token ids]}.")
	}

	h.blocks = blockhash.Append(h.blocks[:0], v.Tokens, h.BlockSize, blockhash.Seed(h.LoRA, h.Salt))
	h.chain = blockhash.Chain(h.chain[:0], h.blocks)
	dst = append(dst, `{"block_hashes":`...)
	dst = openai.AppendNumbers(dst, h.blocks)
	dst = append(dst, `,"sequence_hashes":`...)
	dst = openai.AppendNumbers(dst, h.chain)
	return append(dst, '}'), nil
}
