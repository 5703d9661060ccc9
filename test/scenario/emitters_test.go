package scenario

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/decisionlog"
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
			var page struct {
				Emitters []struct {
					Name       string
					CacheState string `json:"cache_state"`
				}
			}
			g.page("/debug/fleet", &page)
			if len(page.Emitters) != 2 || page.Emitters[0].CacheState != "exact" || page.Emitters[1].CacheState != "exact" {
				return fmt.Errorf("%+v", page)
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
