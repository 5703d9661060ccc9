package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/enginesim"
	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/test/emittersim"
)

// TestCachesOutsideEngines: a coordinator of two caches, of which every worker can load the blocks of one, and one worker the blocks of the
// other. It loses and swaps messages, breaks connections, names blocks that no cache has, and another leader takes its address. After each
// fault the emitters are exact again, and decisions count exactly the blocks that the caches have.
func TestCachesOutsideEngines(t *testing.T) {
	t.Parallel()
	const chunk, block = 64, 16
	c := emittersim.Start(t, chunk, 1<<10)
	pool, host := c.Cache("kv@pool:fs@sim", "lmcache-l2-fs"), c.Cache("kv@node:one@sim", "lmcache-l1")
	g := up(t, "--config", configFile(t, fmt.Sprintf(`models:
- name: sim
  path: "builtin:sim"
  blockSize: %d
  launch: [{engine: sim, count: 2}]
  emitters:
  - {name: pool, kvEvents: %q, kvReplay: %q}
  - {name: host, kvEvents: %[2]q, kvReplay: %[3]q, workers: [sim-0], topic: "kv@node:one@sim"}
`, block, c.Events, c.Replay)))

	var prompts [][]uint32
	for i := range 4 {
		var p []uint32
		for j := range 8*chunk + 3 {
			p = append(p, uint32(1+(i*j)%200))
		}
		prompts = append(prompts, p)
	}
	equal := func(when string) {
		t.Helper()
		eventually(t, when+": both emitters are exact, and decisions count the blocks of the caches", func() error {
			if list := g.emitters(); len(list) != 2 || list[0].CacheState != "exact" || list[1].CacheState != "exact" {
				return fmt.Errorf("%+v", list)
			}
			for i, p := range prompts {
				for _, d := range g.dryRun(p).Candidates {
					want := pool.Held(p)
					if d.Worker == "sim-0" {
						want = max(want, host.Held(p))
					}
					if d.OutsideBlocks*block != want || d.Score.LoadedTokens != min(want, (len(p)-1)/block*block) {
						return fmt.Errorf("prompt %d on %s: %d blocks, %d loaded, want %d tokens", i, d.Worker, d.OutsideBlocks, d.Score.LoadedTokens, want)
					}
				}
			}
			return nil
		})
	}

	equal("at first")
	pool.Store(prompts[0][:3*chunk])
	host.Store(prompts[0])
	equal("stored")
	if d := g.dryRun(prompts[0]); d.Worker != "sim-0" {
		t.Errorf("%s was picked, and another worker can load more", d.Worker)
	}
	c.Lose()
	pool.Store(prompts[1])
	c.Swap()
	host.Store(prompts[2])
	equal("lost and swapped")
	pool.Claim(prompts[3])
	host.Claim(prompts[1])
	equal("claimed")
	c.Cut()
	c.Lose()
	pool.Remove(prompts[1], 2)
	host.Remove(prompts[0], 4)
	equal("cut, and removed meanwhile")
	host.Clear()
	c.Lead(pool, host)
	equal("another leader")
	pool.Store(prompts[3])
	c.Lead(host, pool)
	c.Lead(pool, host)
	host.Store(prompts[1])
	equal("two leaders in turn")

	if n := g.metric("stator_emitters_source_restarts_total", `worker="pool"`); n < 2 {
		t.Errorf("%g restarts were found", n)
	}
	if n := g.metric("stator_emitters_state", `state="exact"`); n != 2 {
		t.Errorf("%g emitters are exact", n)
	}
}

// tiers are caches outside engines from which one engine loads. It stores in all of them.
type tiers []*emittersim.Cache

func (t tiers) Held(prompt []uint32) (held int) {
	for _, k := range t {
		held = max(held, k.Held(prompt))
	}
	return held
}

func (t tiers) Store(prompt []uint32) {
	for _, k := range t {
		k.Store(prompt)
	}
}

// TestTokensLoadedFromCachesOutsideEngines: engines whose own caches are too small for the conversations load the rest of each prompt from
// caches outside. In each request the cached tokens that the engine reports, with the loaded ones, are the blocks that the decision found.
func TestTokensLoadedFromCachesOutsideEngines(t *testing.T) {
	t.Parallel()
	const chunk, block, conversations, turns = 64, 16, 6, 7
	c := emittersim.Start(t, chunk, 1<<12)
	pool, host := c.Cache("kv@pool:fs@sim", "lmcache-l2-fs"), c.Cache("kv@node:one@sim", "lmcache-l1")
	config := fmt.Sprintf(`models:
- name: sim
  path: "builtin:sim"
  emitters:
  - {name: pool, kvEvents: %q, kvReplay: %q}
  - {name: host, kvEvents: %[1]q, kvReplay: %[2]q, workers: [e0], topic: "kv@node:one@sim"}
  workers:
`, c.Events, c.Replay)
	var engines []*enginesim.Sim
	for i, outside := range []tiers{{host, pool}, {pool}, {pool}} {
		e, events, replay := outsideEngine(t, block, outside)
		engines = append(engines, e)
		config += fmt.Sprintf("  - {name: e%d, engine: sim, address: %q, kvEvents: %q, kvReplay: %q}\n", i, e.Addr(), events, replay)
	}
	g := up(t, "--config", configFile(t, config))

	// settled waits until the router has all blocks that the caches have.
	settled := func() {
		t.Helper()
		eventually(t, "the router has the blocks of all caches", func() error {
			var ranks []struct {
				Worker, State string
				Blocks        int
			}
			g.page("/debug/feed", &ranks)
			for i, e := range engines {
				if len(ranks) != len(engines) || ranks[i].State != "exact" || ranks[i].Blocks != e.CachedBlocks() {
					return fmt.Errorf("%+v, want %d blocks on e%d", ranks, e.CachedBlocks(), i)
				}
			}
			for _, e := range g.emitters() {
				want := map[string]*emittersim.Cache{"pool": pool, "host": host}[e.Name].Chunks() * chunk / block
				if e.CacheState != "exact" || e.Blocks != want {
					return fmt.Errorf("%d blocks of %s, want %d: %s", e.Blocks, e.Name, want, e.CacheState)
				}
			}
			return nil
		})
	}

	prompts := make([][]uint32, conversations)
	promised, loaded := 0, 0
	for turn := range turns {
		for i := range prompts {
			for j := range 40 + 13*i {
				prompts[i] = append(prompts[i], uint32(1+(i*31+turn*17+j)%200))
			}
			settled()
			near := host.Held(prompts[i]) // before the engine stores the whole prompt there
			body, err := json.Marshal(map[string]any{"model": "sim", "prompt": prompts[i], "max_tokens": 1})
			if err != nil {
				t.Fatal(err)
			}
			r, err := g.send(t.Context(), http.MethodPost, "/v1/completions", body)
			if err != nil || r.status != http.StatusOK {
				t.Fatalf("status %d, %v: %s", r.status, err, r.body)
			}
			var d decisionlog.Decision
			g.page("/debug/decisions/"+r.decision, &d)
			at := slices.IndexFunc(d.Candidates, func(c decisionlog.Candidate) bool { return c.Picked })
			reusable := (len(prompts[i]) - 1) / block * block
			own := min(d.OverlapBlocks*block, reusable)
			found := min((d.OverlapBlocks+d.Candidates[at].OutsideBlocks)*block, reusable)
			// A load that seems slower than to compute the tokens is not promised. On a busy machine any may: that from both caches, or
			// that from the farther one.
			if atHost := min(max(own, near), reusable); d.CachedTokens != found && d.CachedTokens != own &&
				(d.Worker != "e0" || d.CachedTokens != atHost) {
				t.Errorf("%d tokens are promised, and %d were found, %d of them on %s", d.CachedTokens, found, own, d.Worker)
			}
			if loads := d.Candidates[at].Score.LoadedTokens; d.CachedTokens != own+loads {
				t.Errorf("%d tokens are promised with %d to load, and %s has %d", d.CachedTokens, loads, d.Worker, own)
			}
			if served := r.usage.Details.CachedTokens; served != found {
				t.Errorf("turn %d of conversation %d on %s: %d tokens were found, %d of them outside, and %d served", turn, i, d.Worker, found, found-own, served)
			}
			promised += found
			loaded += found - own
		}
	}
	if loaded == 0 || loaded == promised {
		t.Errorf("%d of %d promised tokens were loaded", loaded, promised)
	}
	t.Logf("%d of %d promised tokens were loaded", loaded, promised)
	g.assertServed(conversations * turns)
}

// emitterRow is a cache outside engines of /debug/fleet.
type emitterRow struct {
	Name       string
	CacheState string `json:"cache_state"`
	Blocks     int
}

func (g *gateway) emitters() []emitterRow {
	g.t.Helper()
	var page struct{ Emitters []emitterRow }
	g.page("/debug/fleet", &page)
	return page.Emitters
}

// outsideEngine starts an engine in this process, with a small cache of its own. It ends with the test.
func outsideEngine(t *testing.T, block int, outside tiers) (e *enginesim.Sim, events, replay string) {
	t.Helper()
	model, err := modelfile.Load(t.Context(), "builtin:sim")
	if err != nil {
		t.Fatal(err)
	}
	events, replay = "tcp://"+freeAddress(t), "tcp://"+freeAddress(t)
	e, err = enginesim.New(enginesim.Config{
		ModelName: "sim", Model: model, Vocabulary: model.Tokenizer(), Events: events, Replay: replay, Outside: outside,
		Engine: engine.Config{Blocks: 48, BlockSize: block, Timing: perfmodel.Fixed{PrefillTime: 5 * time.Millisecond}},
	})
	if err == nil {
		err = e.Listen()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("engine: %v", err)
		}
	})
	return e, events, replay
}

// dryRun returns the decision for a prompt of token ids, without its effects.
func (g *gateway) dryRun(tokens []uint32) (d decisionlog.Decision) {
	g.t.Helper()
	body, err := json.Marshal(map[string]any{"model": "sim", "prompt": tokens, "max_tokens": 1})
	if err != nil {
		g.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost,
		"http://"+g.admin+"/dry-run?path=/v1/completions&format=json", strings.NewReader(string(body)))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&d); err != nil || resp.StatusCode != http.StatusOK {
		g.t.Fatalf("dry run: %s, %v", resp.Status, err)
	}
	return d
}
