package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/promptlines"
)

// modelDir is the flag of a model's files. In all commands --model is the name that clients use.
const modelDir = "model-dir"

// addModelDir adds the flag of a model's files to a command whose flag was called --model.
func addModelDir(f *cli.Flags) *string {
	f.Renamed("model", modelDir)
	return f.String(modelDir, "builtin:sim", "model folder, .gguf `file` or hf:ORG/MODEL")
}

// addAPI adds the flag of the API of requests.
func addAPI(f *cli.Flags) *string {
	return f.String("api", "", "`API` of the requests: chat, completions, embeddings, messages or responses "+
		"(default: by their members; messages and responses must be named)")
}

// addEngine adds the flag of the kind of engine for which requests are prepared.
func addEngine(f *cli.Flags) *string {
	return f.String("engine", engines.VLLM.Name, "`kind` of engine that requests are prepared for, as in a configuration")
}

// checkAPI returns an error for the name of an API that does not exist.
func checkAPI(name string) error {
	if _, ok := openai.EndpointOf(name); !ok && name != "" {
		return fmt.Errorf("--api %s is unknown: use chat, completions, embeddings, messages or responses", name)
	}
	return nil
}

// checkEngine returns an error for a kind of engine that does not exist.
func checkEngine(kind string) error {
	if _, ok := engines.Named(kind); !ok {
		return fmt.Errorf("--engine %s is unknown: use %s", kind, engines.Choices((*engines.Kind).IsKind))
	}
	return nil
}

const tokenizeAbout = `Reads JSON lines and answers each with {"ids": […]}. A line is {"text": "…"}, to which no special
tokens are added, or a chat, completion or embedding request, which is prepared as an engine does.
A request with several prompts gets a list for each. Errors are answers, as clients see them.`

func runTokenize(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "tokenize", tokenizeAbout)
	m, api, err := openModel(ctx, f, args)
	if err != nil {
		return err
	}
	t := promptlines.Tokenizer{Model: m, Now: time.Now, Done: ctx.Done(), API: api}
	return promptlines.Each(ctx, env.in, env.out, t.Answer)
}

const renderAbout = `Reads JSON lines and answers each with {"prompt": "…"}: the prompt that the model's chat template
makes of a chat request, prepared as vLLM does. With --raw a line is the context of the template,
as Hugging Face's apply_chat_template passes it. Errors are answers, as clients see them.`

func runRender(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "render", renderAbout)
	template := f.String("template", "", "chat template `file` to use instead of the model's")
	raw := f.Bool("raw", false, "lines are contexts, not requests")
	m, api, err := openModel(ctx, f, args)
	if err == nil && *template != "" {
		m, err = withTemplate(m, *template)
	}
	if err != nil {
		return err
	}
	r := promptlines.Renderer{Model: m, Raw: *raw, Now: time.Now, Done: ctx.Done(), API: api}
	return promptlines.Each(ctx, env.in, env.out, r.Answer)
}

// openModel reads the arguments of a command that prepares prompts, and the model, with the rules of its engine.
func openModel(ctx context.Context, f *cli.Flags, args []string) (*prompt.Model, string, error) {
	path := addModelDir(f)
	api := addAPI(f)
	kind := addEngine(f)
	if err := f.Read(args); err != nil {
		return nil, "", err
	}
	if err := errors.Join(checkAPI(*api), checkEngine(*kind)); err != nil {
		return nil, "", err
	}

	m, err := modelfile.Load(ctx, *path)
	if err != nil {
		return nil, "", err
	}
	return m.WithRules(prompt.RulesOf(*kind)), *api, nil
}

// withTemplate returns the model with the chat template in a file.
func withTemplate(m *prompt.Model, path string) (*prompt.Model, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read template: %w", err)
	}
	m, err = m.WithTemplate(string(source))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

const hashAbout = `Reads JSON lines {"tokens": […]} and answers each with {"block_hashes": […], "sequence_hashes": […]}:
unsigned decimal numbers, equal to Dynamo's. Tokens after the last complete block are not hashed, so
a line with fewer tokens than a block has empty lists.`

func runHash(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "hash", hashAbout)
	size := f.Int("block-size", 16, "tokens of a block")
	lora := f.String("lora", "", "`name` of a LoRA adapter")
	salt := f.String("salt", "", "cache `salt`")
	if err := f.Read(args); err != nil {
		return err
	}
	if *size < 1 {
		return f.UsageError("--block-size is %d: it must be at least 1", *size)
	}

	h := promptlines.Hasher{BlockSize: *size, LoRA: *lora, Salt: *salt}
	return promptlines.Each(ctx, env.in, env.out, h.Answer)
}
