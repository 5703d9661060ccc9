package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/test/testkit"
)

// TestOwnEnginesWithoutAFile: `stator up --to` needs nothing but addresses. The tokenizer and the block sizes are those that engines report,
// each engine may have its own size, an engine without events is used by prediction, one that starts later joins, and one that comes back with another model serves that.
func TestOwnEnginesWithoutAFile(t *testing.T) {
	t.Parallel()
	first, second, third := freeAddress(t), freeAddress(t), freeAddress(t)
	run := func(address string, args ...string) *command {
		return start(t, append([]string{"sim", "--listen-address", address, "--block-size", "32"}, args...)...)
	}
	events := []string{"--kv-events", "tcp://" + freeAddress(t), "--kv-replay", "tcp://" + freeAddress(t)}
	engine := run(first, events...)
	run(second)
	g := up(t, "--to", "http://"+first+"/v1,http://"+second+","+third)

	prompt := []message{{"user", strings.Repeat("lighthouse ", 400)}}
	g.chat(prompt, 1)
	eventually(t, "the whole prompt is found in a cache", func() error {
		r := g.chat(prompt, 1)
		if want := (r.usage.PromptTokens - 1) / 32 * 32; r.usage.Details.CachedTokens != want {
			return fmt.Errorf("%d of %d tokens", r.usage.Details.CachedTokens, want)
		}
		if d := g.decision(r.decision); d.Blocks != r.usage.PromptTokens/32 {
			return fmt.Errorf("%d blocks of a prompt of %d tokens", d.Blocks, r.usage.PromptTokens)
		}
		return nil
	})
	file := filepath.Join(t.TempDir(), "body.json")
	body := fmt.Sprintf(`{"model": "other", "max_tokens": 1, "stream": true, "messages": [{"role": "user", "content": %q}]}`, prompt[0].Content)
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	g.awaitIdle() // otherwise load would count, too
	explain := []string{"explain", "--admin-address", g.admin, "--dry-run", "-f", file, "--model", "sim"}
	dry := start(t, explain...)
	<-dry.done
	if out := dry.out.String(); !strings.Contains(out, "decision dry-run · picked · model sim") || !strings.Contains(out, "it holds 50 of 50 blocks") {
		t.Errorf("the dry run wrote:\n%s", out)
	}
	sent := start(t, append(explain, "--send", "--gateway", g.url)...)
	<-sent.done
	g.awaitIdle()
	tokens := g.chat(prompt, 1).usage
	want := fmt.Sprintf(": %d of %d prompt tokens promised as cached, %[1]d of %[2]d found", tokens.Details.CachedTokens, tokens.PromptTokens)
	if out := sent.out.String(); !strings.Contains(out, want) {
		t.Errorf("the sent request wrote, without %q:\n%s", want, out)
	}
	g.assertServed(4)

	for _, want := range []string{
		"engine-0 http://" + first + ": vllm serves sim, ranks 1, blocks of 32 tokens, KV events\n",
		"engine-1 http://" + second + ": vllm serves sim, ranks 1, blocks of 32 tokens, no KV events: its cache is predicted",
		"engine-2 http://" + third + " does not answer yet, and joins when it does", "export OPENAI_BASE_URL=" + g.url + "/v1",
	} {
		if out := g.up.out.String(); !strings.Contains(out, want) {
			t.Errorf("the output lacks %q", want)
		}
	}

	run(third, "--block-size", "64")
	eventually(t, "the engine that was late is a worker", func() error {
		if n := len(g.fleet()); n != 3 {
			return fmt.Errorf("%d workers", n)
		}
		return nil
	})
	g.await()

	// Its cache is searched by blocks of its size.
	pinned := fmt.Sprintf(`{"model": "sim", "max_tokens": 1, "prompt": %q, "nvext": {"router": {"worker": "engine-2"}}}`, prompt[0].Content)
	eventually(t, "the prompt is found at the engine with larger blocks", func() error {
		r, err := g.send(t.Context(), "POST", "/v1/completions", []byte(pinned))
		if err != nil {
			return err
		}
		if want := (r.usage.PromptTokens - 1) / 64 * 64; r.status != 200 || want == 0 || r.usage.Details.CachedTokens != want {
			return fmt.Errorf("status %d: %d of %d tokens cached: %s", r.status, r.usage.Details.CachedTokens, want, r.body)
		}
		if d := g.decision(r.decision); d.Overlap*d.BlockSize != r.usage.PromptTokens/64*64 {
			return fmt.Errorf("%d blocks of %d tokens promised", d.Overlap, d.BlockSize)
		}
		return nil
	})
	if n := g.metric("stator_extproc_other_block_size_workers"); n != 0 {
		t.Errorf("%g workers are counted as having other blocks", n)
	}

	engine.stop()
	run(first, append(events, "--model", "other")...)
	eventually(t, "the other model is served", func() error {
		r, err := g.send(t.Context(), "POST", "/v1/completions", []byte(`{"model": "other", "prompt": "a", "max_tokens": 1}`))
		if err == nil && r.status != 200 {
			err = fmt.Errorf("status %d: %s", r.status, r.body)
		}
		return err
	})
}

// TestOwnEngineWithoutTokenizer: an engine whose files are on no machine of ours is used by load, and the output says what to give.
func TestOwnEngineWithoutTokenizer(t *testing.T) {
	t.Parallel()
	folder, address := filepath.Join(t.TempDir(), "acme"), freeAddress(t)
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range testkit.Contents(t, models.Sim()) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start(t, "sim", "--listen-address", address, "--model-dir", folder)
	eventually(t, "the engine answers", func() error {
		_, err := get("http://" + address + "/health")
		return err
	})
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}

	g := up(t, "--to", address)
	g.chat([]message{{"user", "hello"}}, 1)
	if out := g.up.out.String(); !strings.Contains(out, "model sim has no tokenizer, and its requests go by load: ") ||
		!strings.Contains(out, "Name its files with --model-dir\n") {
		t.Error("the output does not say that the tokenizer is missing")
	}

	named := up(t, "--to", address, "--model-dir", "builtin:sim")
	if d := named.decision(named.chat([]message{{"user", "hello"}}, 1).decision); d.PromptTokens == 0 {
		t.Error("the prompt was not read with --model-dir")
	}
}
