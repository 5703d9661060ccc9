package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

const tokenizeAbout = `Reads JSON lines and answers each with {"ids": […]}. A line is {"text": "…"}, to which no special
tokens are added, or a chat, completion or embedding request, prepared as an engine would;
of several prompts each gets a list of its own. Errors come in line, as a client would see them.`

func runTokenize(ctx context.Context, env environment, args []string) error {
	f := flags(env, "tokenize", tokenizeAbout)
	dir := f.String("model", "builtin:sim", "model folder or .gguf `file`")
	if err := parse(f, args); err != nil {
		return err
	}
	m, err := modelfile.Load(*dir)
	if err != nil {
		return err
	}
	t := tokenizing{model: m}
	return eachLine(ctx, env.in, env.out, t.line)
}

// tokenizing keeps the buffers of one stream of lines.
type tokenizing struct {
	model  *prompt.Model
	prompt prompt.Prompt
	ids    []uint32
}

func (t *tokenizing) line(dst, line []byte) ([]byte, error) {
	var v struct {
		Text *string `json:"text"`
	}
	if err := json.Unmarshal(line, &v); err == nil && v.Text != nil {
		t.ids = t.model.Tokenizer().Encode(t.ids[:0], *v.Text)
		return appendIDs(dst, t.ids), nil
	}
	req, err := readRequest(line)
	if err != nil {
		return dst, err
	}
	if len(req.Prompts) < 2 {
		if err := t.prepare(req); err != nil {
			return dst, err
		}
		return appendIDs(dst, t.prompt.Tokens), nil
	}
	return t.each(dst, req)
}

// each tokenizes a request's prompts one by one.
func (t *tokenizing) each(dst []byte, req *openai.Request) ([]byte, error) {
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
		dst = appendNumbers(dst, t.prompt.Tokens)
	}
	return append(dst, "]}"...), nil
}

func (t *tokenizing) prepare(req *openai.Request) error {
	t.prompt.Now = time.Now()
	return t.model.Prepare(req, &t.prompt)
}

// readRequest parses a line as the endpoint that its members belong to. A model need not be
// named: there is one.
func readRequest(line []byte) (*openai.Request, error) {
	var v map[string]json.RawMessage
	if err := json.Unmarshal(line, &v); err != nil {
		_, err := openai.Parse(openai.Chat, line, openai.Limits{}) // says what is wrong and where
		return nil, err
	}
	if v["model"] == nil {
		line = append([]byte(`{"model":"-",`), line[1+indexBrace(line):]...)
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

func indexBrace(line []byte) int {
	for i, c := range line {
		if c == '{' {
			return i
		}
	}
	return -1
}

func appendIDs(dst []byte, ids []uint32) []byte {
	return append(appendNumbers(append(dst, `{"ids":`...), ids), '}')
}

func appendNumbers[T ~uint32 | ~uint64](dst []byte, numbers []T) []byte {
	dst = append(dst, '[')
	for i, n := range numbers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(n), 10)
	}
	return append(dst, ']')
}

const renderAbout = `Reads JSON lines and answers each with {"prompt": "…"}: what the model's chat template makes of a
chat request, prepared as vLLM does. With --raw a line is the template's context itself, as
Hugging Face's apply_chat_template passes it. Errors come in line.`

func runRender(ctx context.Context, env environment, args []string) error {
	f := flags(env, "render", renderAbout)
	dir := f.String("model", "builtin:sim", "model folder or .gguf `file`")
	template := f.String("template", "", "chat template `file` to use instead of the model's")
	raw := f.Bool("raw", false, "lines are contexts, not requests")
	if err := parse(f, args); err != nil {
		return err
	}
	m, err := modelfile.Load(*dir)
	if err != nil {
		return err
	}
	if *template != "" {
		source, err := os.ReadFile(*template)
		if err != nil {
			return fmt.Errorf("read template: %w", err)
		}
		if m, err = m.WithTemplate(string(source)); err != nil {
			return fmt.Errorf("%s: %w", *template, err)
		}
	}
	r := rendering{model: m, raw: *raw}
	return eachLine(ctx, env.in, env.out, r.line)
}

type rendering struct {
	model  *prompt.Model
	raw    bool
	prompt prompt.Prompt
	text   []byte
}

func (r *rendering) line(dst, line []byte) (_ []byte, err error) {
	if r.raw {
		r.text, err = r.model.RenderRaw(r.text[:0], line, time.Now())
	} else {
		r.text, err = r.chat(line)
	}
	if err != nil {
		return dst, err
	}
	dst = openai.AppendString(append(dst, `{"prompt":`...), string(r.text))
	return append(dst, '}'), nil
}

func (r *rendering) chat(line []byte) ([]byte, error) {
	req, err := readRequest(line)
	if err != nil {
		return nil, err
	}
	if req.Endpoint != openai.Chat {
		return nil, openai.Invalid("messages", "missing_required_parameter", "Only chats are rendered: the line has no messages.")
	}
	r.prompt.Now = time.Now()
	if err := r.model.Prepare(req, &r.prompt); err != nil {
		return nil, err
	}
	return r.prompt.Text, nil
}

const hashAbout = `Reads JSON lines {"tokens": […]} and answers each with {"block_hashes": […], "sequence_hashes": […]}
in unsigned decimal, byte-compatible with Dynamo's. Tokens after the last complete block are
not hashed.`

func runHash(ctx context.Context, env environment, args []string) error {
	f := flags(env, "hash", hashAbout)
	size := f.Int("block-size", 16, "tokens in a block")
	lora := f.String("lora", "", "`name` of a LoRA adapter")
	salt := f.String("salt", "", "cache `salt`")
	if err := parse(f, args); err != nil {
		return err
	}
	if *size < 1 {
		return errors.New("--block-size must be at least 1")
	}
	seed := blockhash.Seed(*lora, *salt)
	var blocks []blockhash.Block
	var chain []blockhash.Sequence
	return eachLine(ctx, env.in, env.out, func(dst, line []byte) ([]byte, error) {
		var v struct {
			Tokens []uint32 `json:"tokens"`
		}
		if err := json.Unmarshal(line, &v); err != nil {
			return dst, openai.Invalid("tokens", "invalid_value", "The line must be {\"tokens\": [token ids]}: %v.", err)
		}
		if v.Tokens == nil {
			return dst, openai.Invalid("tokens", "missing_required_parameter", "The line has no tokens. Send {\"tokens\": [token ids]}.")
		}
		blocks = blockhash.Append(blocks[:0], v.Tokens, *size, seed)
		chain = blockhash.Chain(chain[:0], blocks)
		dst = appendNumbers(append(dst, `{"block_hashes":`...), blocks)
		dst = appendNumbers(append(dst, `,"sequence_hashes":`...), chain)
		return append(dst, '}'), nil
	})
}
