package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/promptlines"
	"github.com/stator-project/stator/internal/sim/engine"
)

const kvAbout = `Shows and changes the store of KV blocks of a node: see docs/kv.md. --admin-address is that of the agent, or of
stator up.

  show      prints the stores: their tiers, their blocks and the engines that use them
  pin       keeps blocks for a time: they leave a tier after all others
  prefetch  loads blocks into host memory
  flush     drops all blocks of host memory and of the disk; objects stay

Blocks are named by --hashes, by --keys, or by --prompts, which are hashed as simulated engines hash them. Other
engines hash prompts in their own ways, so name their blocks by the hashes of their KV events. Prompts with a LoRA adapter
or a cache salt have other hashes too.`

// kvOptions are the flags of stator kv.
type kvOptions struct {
	admin              adminclient.Config
	model, tier        string
	keys, hashes       string
	prompts, tokenizer string
	ttl                time.Duration
	asJSON             bool
}

func runKV(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "kv [show|pin|prefetch|flush]", kvAbout)
	var o kvOptions
	o.admin.AddFlags(f.FlagSet)
	f.Lookup("admin-address").Usage = "`address` of the admin port of the agent or of stator up: ip:port, https://name:port or unix:///path"
	f.StringVar(&o.model, "model", "", "`name` of the model (default: the one that has a store)")
	f.StringVar(&o.hashes, "hashes", "", "hashes of an engine with commas between them, in decimal or in hexadecimal with 0x")
	f.StringVar(&o.keys, "keys", "", "keys of blocks with commas between them, 32 hexadecimal digits each")
	f.StringVar(&o.prompts, "prompts", "", "`file` with requests, one a line (- is standard input); simulated engines only")
	f.Renamed("tokenizer", modelDir)
	f.StringVar(&o.tokenizer, modelDir, "builtin:sim",
		"model folder, .gguf `file` or hf:ORG/MODEL that --prompts are tokenized with: models[].path")
	f.DurationVar(&o.ttl, "ttl", time.Hour, "how long pin keeps blocks, at most 168h; 0 ends their pins")
	f.StringVar(&o.tier, "tier", "", "the `tier` that flush empties, host or disk (default: both)")
	f.BoolVar(&o.asJSON, "json", false, "show prints JSON")
	words, err := f.ReadMixed(args)
	if err != nil {
		return err
	}
	if len(words) != 1 {
		return f.UsageError("use show, pin, prefetch or flush")
	}

	switch words[0] {
	case "show":
		return o.show(ctx, env)
	case "flush":
		return o.flush(ctx, env)
	case "pin", "prefetch":
		if o.hashes == "" && o.keys == "" && o.prompts == "" {
			return f.UsageError("name the blocks: --hashes, --keys or --prompts")
		}
		return o.change(ctx, env, words[0])
	}
	return f.UsageError("there is no %q: use show, pin, prefetch or flush", words[0])
}

// show prints the page about stores.
func (o *kvOptions) show(ctx context.Context, env environment) error {
	path := "/debug/kv"
	if o.asJSON {
		path += "?format=json"
	}
	text, err := o.fetchPage(ctx, path)
	if err != nil {
		return err
	}
	fmt.Fprint(env.out, text)
	return nil
}

// fetchPage fetches a page of the admin port.
func (o *kvOptions) fetchPage(ctx context.Context, path string) (string, error) {
	text, err := fetchPage(ctx, o.admin, path)
	if err != nil && err.Error() == noPage {
		return "", o.noStores()
	}
	return text, err
}

// noStores returns the error of an admin port of another part.
func (o *kvOptions) noStores() error {
	return fmt.Errorf("%s has no KV stores: --admin-address must be that of the agent or of stator up, which must have started",
		o.admin.Address)
}

// flush empties tiers.
func (o *kvOptions) flush(ctx context.Context, env environment) error {
	var answer struct {
		Left map[string]int `json:"left"`
	}
	err := o.post(ctx, "/kv/flush", map[string]any{"model": o.model, "tier": o.tier}, &answer)
	if err != nil {
		return err
	}
	for _, tier := range slices.Sorted(maps.Keys(answer.Left)) {
		fmt.Fprintf(env.out, "%d blocks have left the tier %s\n", answer.Left[tier], tier)
	}
	return nil
}

// change pins or prefetches the blocks that the flags name. Each prompt is a call, because prefetching ends at the first block that is
// nowhere.
func (o *kvOptions) change(ctx context.Context, env environment, call string) error {
	if o.hashes != "" || o.keys != "" {
		if err := o.changeBlocks(ctx, env, call, split(o.keys), split(o.hashes)); err != nil {
			return err
		}
	}
	if o.prompts == "" {
		return nil
	}

	hash, err := o.promptHasher(ctx)
	if err != nil {
		return err
	}
	return o.eachPrompt(env, func(line []byte) error {
		hashes, err := hash(line)
		if err != nil {
			return err
		}
		return o.changeBlocks(ctx, env, call, nil, hashes)
	})
}

// split returns the parts of a list with commas.
func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// changeBlocks sends a call for blocks, and prints what came of it.
func (o *kvOptions) changeBlocks(ctx context.Context, env environment, call string, keys, hashes []string) error {
	var answer struct{ Named, Pinned int }
	body := map[string]any{"model": o.model, "keys": keys, "hashes": hashes}
	if call == "pin" {
		body["ttl"] = o.ttl.String()
		if err := o.post(ctx, "/kv/pin", body, &answer); err != nil {
			return err
		}
		text := "pinned for " + o.ttl.String()
		if o.ttl == 0 {
			text = "no longer pinned"
		}
		fmt.Fprintf(env.out, "%d of %d blocks are %s\n", answer.Pinned, answer.Named, text)
		return nil
	}

	var fetched struct {
		Named int `json:"named"`
		There int `json:"in_host_memory"`
	}
	if err := o.post(ctx, "/kv/prefetch", body, &fetched); err != nil {
		return err
	}
	fmt.Fprintf(env.out, "the first %d of %d blocks are in host memory\n", fetched.There, fetched.Named)
	return nil
}

// kvCallTimeout bounds a call. It is longer than the one of the store.
const kvCallTimeout = 40 * time.Second

// post sends a call to the admin port, and reads its answer.
func (o *kvOptions) post(ctx context.Context, path string, body, answer any) error {
	text, err := adminCall{
		method: http.MethodPost, path: path, body: body, timeout: kvCallTimeout, most: 1 << 20, part: "the agent or stator up",
	}.send(ctx, o.admin)
	switch {
	case err != nil && err.Error() == noPage:
		return o.noStores()
	case err != nil:
		return err
	}
	return json.Unmarshal(text, answer)
}

// maxPromptBytes bounds a line of --prompts.
const maxPromptBytes = 16 << 20

// eachPrompt calls f with each line of --prompts.
func (o *kvOptions) eachPrompt(env environment, f func(line []byte) error) error {
	in := env.in
	if o.prompts != "-" {
		file, err := os.Open(o.prompts)
		if err != nil {
			return fmt.Errorf("--prompts: %w", err)
		}
		defer func() { _ = file.Close() }()
		in = file
	}

	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxPromptBytes)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if err := f(lines.Bytes()); err != nil {
			return fmt.Errorf("--prompts, line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("--prompts: %w", err)
	}
	return nil
}

// promptHasher returns a function for the hashes that the simulated engines of a model have for the blocks of a request.
func (o *kvOptions) promptHasher(ctx context.Context) (func(line []byte) ([]string, error), error) {
	size, seed, err := o.simulated(ctx)
	if err != nil {
		return nil, err
	}
	m, err := modelfile.Load(ctx, o.tokenizer)
	if err != nil {
		return nil, fmt.Errorf("--model-dir: %w", err)
	}
	hasher, err := engine.New(engine.Config{BlockSize: size, HashSeed: seed})
	if err != nil {
		return nil, err
	}

	t := promptlines.Tokenizer{Model: m, Now: time.Now, Done: ctx.Done()}
	return func(line []byte) ([]string, error) {
		answer, err := t.Answer(nil, line)
		if err != nil {
			return nil, err
		}
		var tokens struct {
			IDs []uint32 `json:"ids"`
		}
		if err := json.Unmarshal(answer, &tokens); err != nil {
			return nil, errors.New("a request must have one prompt")
		}
		if len(tokens.IDs) < size {
			return nil, fmt.Errorf("the prompt has %d tokens, and a block has %d: only complete blocks are stored", len(tokens.IDs), size)
		}
		var hashes []string
		for _, h := range hasher.PromptHashes(&engine.Request{Prompt: tokens.IDs}) {
			hashes = append(hashes, fmt.Sprintf("%#x", uint64(h)))
		}
		return hashes, nil
	}, nil
}

// simulated returns the block size and the seed of the simulated engines of a model, or an error if other engines use its store.
func (o *kvOptions) simulated(ctx context.Context) (size int, seed uint64, err error) {
	text, err := o.fetchPage(ctx, "/debug/kv?format=json")
	if err != nil {
		return 0, 0, err
	}
	var stores []struct {
		Model  string
		Layout *struct {
			PageTokens int `json:"page_tokens"`
			Hashing    string
		}
	}
	if err := json.Unmarshal([]byte(text), &stores); err != nil {
		return 0, 0, fmt.Errorf("read /debug/kv of %s: %w", o.admin.Address, err)
	}

	for _, s := range stores {
		if s.Model != o.model && (o.model != "" || len(stores) > 1) {
			continue
		}
		if s.Layout == nil {
			return 0, 0, fmt.Errorf("the KV store of %s is not open: stator kv show has the reason", s.Model)
		}
		if _, err := fmt.Sscanf(s.Layout.Hashing, "simulated, seed %d", &seed); err != nil {
			return 0, 0, fmt.Errorf("the engines of %s hash prompts as %q: name blocks by --hashes or --keys", s.Model, s.Layout.Hashing)
		}
		return s.Layout.PageTokens, seed, nil
	}
	return 0, 0, fmt.Errorf("there is no KV store of model %q: stator kv show lists them", o.model)
}
