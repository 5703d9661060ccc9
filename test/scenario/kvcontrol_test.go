package scenario

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// smallStoreConfig is an engine with room for 64 blocks, and a store with 256 blocks in host memory and 128 on a disk.
const smallStoreConfig = `models:
- name: sim
  path: "builtin:sim"
  kv: {hostBytes: 1048576, diskPath: %q, diskBytes: 1048576}
  launch: [{engine: sim, args: {blocks: 64, tokenScale: 20}}]
`

// TestKVControl: a prompt whose blocks are pinned stays in the store while others pass through it, and one that is not pinned is lost.
// Blocks can be loaded into host memory and dropped. All this needs the token of the admin port where there is one.
func TestKVControl(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := up(t, "--config", configFile(t, fmt.Sprintf(smallStoreConfig, filepath.Join(t.TempDir(), "kv"))))
	prompt := func(i int) []message { return []message{{"user", strings.Repeat(fmt.Sprintf("topic %d ", i), 160)}} }
	lines := func(i int) string {
		line, err := json.Marshal(map[string]any{"messages": prompt(i)})
		if err != nil {
			t.Fatal(err)
		}
		return string(line)
	}
	g.chat(prompt(0), 1)
	g.chat(prompt(1), 1)
	g.storeIsIdle(t)

	var pinned, named int
	out := g.kv(t, lines(0), "pin", "--model", "sim", "--prompts", "-", "--ttl", "1h")
	if _, err := fmt.Sscanf(out, "%d of %d blocks are pinned", &pinned, &named); err != nil || pinned != named || named < 30 {
		t.Fatalf("pin: %s, %v", out, err)
	}
	for i := range 40 {
		g.chat(prompt(100+i), 1)
	}
	g.storeIsIdle(t)

	there := func(i int) (n int) {
		out := g.kv(t, lines(i), "prefetch", "--prompts", "-")
		if _, err := fmt.Sscanf(out, "the first %d of", &n); err != nil {
			t.Fatalf("prefetch: %s, %v", out, err)
		}
		return n
	}
	if n := there(0); n != named {
		t.Errorf("%d of %d pinned blocks are left", n, named)
	}
	if n := there(1); n != 0 {
		t.Errorf("%d blocks that are not pinned are left: the test shows nothing", n)
	}
	if page := g.kv(t, "", "show"); !strings.Contains(page, "simulated, seed 0") {
		t.Errorf("show: %s", page)
	}
	g.storeIsIdle(t)
	g.kv(t, "", "flush")
	if n := g.metric("stator_kvstore_blocks"); n != 0 {
		t.Errorf("after the flush %g blocks are left", n)
	}
	if n := there(0); n != 0 {
		t.Errorf("after the flush %d pinned blocks are left", n)
	}

	g.up.stop()
	g.up = nil
	assertTokenNeeded(t, token)
}

// TestCacheControl: a prompt whose request has a cache_control stays in the store while others pass through it, and one without it is lost.
// A member of transfers that a client sends itself has no effect. A quarter of host memory has room for one prompt and 24 blocks of another.
func TestCacheControl(t *testing.T) {
	t.Parallel()
	g := up(t, "--config", configFile(t, "gateway: {hintsFrom: everyone}\n"+fmt.Sprintf(smallStoreConfig, filepath.Join(t.TempDir(), "kv"))))
	prompt := func(i int) []message { return []message{{"user", strings.Repeat(fmt.Sprintf("topic %d ", i), 160)}} }
	ask := func(i int, more string) {
		t.Helper()
		body, err := json.Marshal(prompt(i))
		if err != nil {
			t.Fatal(err)
		}
		r, err := g.send(t.Context(), "POST", "/v1/chat/completions", fmt.Appendf(nil, `{"model":"sim","max_tokens":1,"messages":%s%s}`, body, more))
		if err != nil || r.status != 200 {
			t.Fatalf("status %d, %v: %s", r.status, err, r.body)
		}
	}
	ask(0, `,"nvext":{"cache_control":{"type":"ephemeral","ttl":"1h"}}`)
	ask(1, `,"kv_transfer_params":{"stator_pin_seconds":3600}`)
	ask(2, `,"stream":true,"nvext":{"cache_control":{}}`)
	eventually(t, "two prompts are pinned", func() error {
		pinned, left := g.metric("stator_kvstore_pinned_blocks_total"), g.metric("stator_kvstore_unpinned_blocks_total")
		if pinned != 64 || left != 16 {
			return fmt.Errorf("%g blocks are pinned, and %g are not", pinned, left)
		}
		return nil
	})
	for i := range 40 {
		ask(100+i, "")
	}
	g.storeIsIdle(t)

	for i, kept := range []int{40, 0, 24} {
		line, err := json.Marshal(map[string]any{"messages": prompt(i)})
		if err != nil {
			t.Fatal(err)
		}
		var n int
		out := g.kv(t, string(line), "prefetch", "--prompts", "-")
		if _, err := fmt.Sscanf(out, "the first %d of", &n); err != nil || n != kept {
			t.Errorf("prompt %d: %s, %v; want %d", i, out, err, kept)
		}
	}
}

// assertTokenNeeded starts an agent's store with a token, and calls it without and with the token.
func assertTokenNeeded(t *testing.T, token string) {
	t.Helper()
	busAddress, admin := freeAddress(t), freeAddress(t)
	start(t, "bus", "--listen-address", busAddress)
	file := configFile(t, fmt.Sprintf("bus: {url: nats://%s}\n", busAddress)+fmt.Sprintf(smallStoreConfig, filepath.Join(t.TempDir(), "kv")))
	start(t, "agent", "--config", file, "--admin-address", admin, "--admin-token-file", token)

	run := func(args ...string) (string, error) {
		out, err := exec.Command(binary, append([]string{"kv", "flush", "--admin-address", admin}, args...)...).CombinedOutput()
		return string(out), err
	}
	eventually(t, "the agent's store answers with the token", func() error {
		if out, err := run("--admin-token-file", token); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if out, err := run(); err == nil || !strings.Contains(out, "needs the token") {
		t.Errorf("a call without the token: %s, %v", out, err)
	}
}

// kv runs stator kv with a text as its input, and returns what it prints.
func (g *gateway) kv(t *testing.T, in string, args ...string) string {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"kv", "--admin-address", g.admin}, args...)...)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("stator kv %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// storeIsIdle waits until the engine has written its blocks and none waits for the disk. A busy machine may stop the engine for a while.
func (g *gateway) storeIsIdle(t *testing.T) {
	t.Helper()
	settles(t, "the store is idle", func() (float64, error) {
		n, waiting := g.metric("stator_kvstore_committed_blocks_total"), g.metric("stator_kvstore_waiting_blocks")
		if n == 0 || waiting > 0 {
			return 0, fmt.Errorf("%g blocks were written, %g wait", n, waiting)
		}
		return n, nil
	})
}
