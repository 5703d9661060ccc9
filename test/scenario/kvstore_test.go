package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// storeConfig is two engines with room for 64 blocks each, and a store with 256 blocks in host memory and 4,000 on a disk. Each token lasts
// as long as 20, so that loading is faster than computing.
const storeConfig = `models:
- name: sim
  path: "builtin:sim"
  kv: {hostBytes: 1048576, diskPath: %q, diskBytes: 25165824}
  launch: [{engine: sim, count: 2, args: {blocks: 64, tokenScale: 20}}]
`

// TestKVStore: engines write what they compute to the store of their node. Prompts that no engine has any more come back from host memory
// and from the disk with the right bytes, also after everything was started again, and the router counts their blocks.
func TestKVStore(t *testing.T) {
	t.Parallel()
	file := configFile(t, fmt.Sprintf(storeConfig, filepath.Join(t.TempDir(), "kv")))
	g := up(t, "--config", file)
	const prompts, blocks = 40, 20
	ask := func(i int) reply {
		return g.chat([]message{{"user", strings.Repeat(fmt.Sprintf("topic %d ", i), blocks*4)}}, 1)
	}
	for i := range prompts {
		ask(i)
	}
	onDisk := func() float64 { return g.metric("stator_kvstore_blocks", `tier="disk"`) }
	eventually(t, "all blocks are on the disk", func() error {
		if n, waiting := onDisk(), g.metric("stator_kvstore_waiting_blocks"); n < prompts*blocks || waiting > 0 {
			return fmt.Errorf("%g are there, %g wait", n, waiting)
		}
		return nil
	})

	// The picked worker need not be the one that holds the blocks, if the other one was slow.
	held := 0
	for i := range prompts {
		d := g.decision(ask(i).decision)
		held += d.mostHeld()
	}
	for name, least := range map[string]float64{
		`stator_kvstore_fetched_blocks_total`: prompts * blocks / 2, `stator_kvstore_loaded_blocks_total`: prompts * blocks / 4,
	} {
		if n := g.metric(name); n < least {
			t.Errorf("%s is %g, want at least %g", name, n, least)
		}
	}
	if held < prompts*blocks/2 {
		t.Errorf("the router found %d blocks of %d", held, prompts*blocks)
	}
	g.assertNoWrongBlocks()

	// Another process finds the blocks on the disk.
	g.up.stop()
	g = up(t, "--config", file)
	for i := range prompts {
		ask(i)
	}
	if n := g.metric("stator_kvstore_loaded_blocks_total"); n < prompts*blocks/2 {
		t.Errorf("after a restart %g blocks were loaded from the disk", n)
	}
	g.assertNoWrongBlocks()
}

// sharedStores is a model with an engine on each of two nodes, with room for 64 blocks in an engine and 512 in host memory. No node has the
// address of the other one.
const sharedStores = `models:
- name: sim
  path: "builtin:sim"
  kv: {hostBytes: 1048576, peerListen: "127.0.0.1:0", peerTokenFile: %q, peerTransport: %s}
  launch:
  - {engine: sim, node: a, args: {blocks: 64, tokenScale: 20}}
  - {engine: sim, node: b, args: {blocks: 64, tokenScale: 20}}
`

// TestKVStoreOfPeer: two nodes find each other by the bus, and the engine of one loads what that of the other has computed, with the right
// bytes. When the other agent is killed the node has no peer any more, and computes. When it is back they find each other again.
func TestKVStoreOfPeer(t *testing.T) {
	t.Parallel()
	storeOfPeer(t, "tcp")
}

// TestKVStoreOfPeerByNIXL is the same with NIXL.
func TestKVStoreOfPeerByNIXL(t *testing.T) {
	t.Parallel()
	if os.Getenv("NIXL_LIB_DIR") == "" {
		t.Skip("NIXL_LIB_DIR names no folder with libnixl_capi.so: run make test-nixl, which installs it into the checkout")
	}
	build := exec.Command("go", "build", "-o", filepath.Join(filepath.Dir(binary), "stator-transfer"), "../../cmd/stator-transfer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build stator-transfer: %v: %s", err, out)
	}
	storeOfPeer(t, "nixl")
}

// storeOfPeer runs two nodes whose blocks come by a transport.
func storeOfPeer(t *testing.T, transport string) {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-token-of-many-characters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	adminA, adminB := freeAddress(t), freeAddress(t)
	p := startPartsFor(t, partsSettings{models: fmt.Sprintf(sharedStores, token, transport), agent: []string{"--node", "a", "--admin-address", adminA}})
	start(t, "agent", "--config", p.file, "--node", "b", "--admin-address", adminB)
	p.awaitNodes(map[string]int{"a": 1, "b": 1})
	awaitPeer(t, adminA, "b")
	awaitPeer(t, adminB, "a")

	const prompts, blocks = 10, 20
	ask := func(node string, i int) {
		t.Helper()
		p.engineOn(node).chat([]message{{"user", strings.Repeat(fmt.Sprintf("topic %d ", i), blocks*4)}}, 1)
	}
	ofB := &gateway{t: t, admin: adminB}
	for i := range prompts {
		ask("a", i)
	}
	eventually(t, "node b has found the blocks of node a", func() error {
		if n := ofB.metric("stator_kvstore_blocks", `tier="peer"`); n < prompts*blocks {
			return fmt.Errorf("%g blocks are known", n)
		}
		return nil
	})
	if transport == "nixl" {
		awaitTransfer(t, adminA)
		awaitTransfer(t, adminB)
	}

	for i := range prompts - 1 {
		ask("b", i)
	}
	if n := ofB.metric("stator_kvstore_loaded_blocks_total", `tier="peer"`); n < prompts*blocks/2 {
		t.Errorf("%g blocks were loaded from the other node", n)
	}
	if n := ofB.metric("stator_kvstore_peer_transfers_total", `transport="nixl"`, `result="ok"`); transport == "nixl" && n == 0 {
		t.Error("no block came by NIXL")
	}
	p.assertNoWrongBlocks()

	p.agent.kill()
	awaitPeer(t, adminB, "")
	ask("b", prompts-1)
	p.awaitNodes(map[string]int{"b": 1})
	p.assertNoWrongBlocks()

	p.agent = start(t, "agent", "--config", p.file, "--node", "a", "--admin-address", adminA)
	awaitPeer(t, adminB, "a")
	awaitPeer(t, adminA, "b")
	p.agent.stop()
	awaitPeer(t, adminB, "")
}

// reachedStores is a model with two engines on a node and one on another.
const reachedStores = `models:
- name: sim
  path: "builtin:sim"
  kv: {hostBytes: 1048576, peerListen: "127.0.0.1:0", peerTokenFile: %q}
  launch:
  - {engine: sim, node: a, count: 2, args: {blocks: 64, tokenScale: 20}}
  - {engine: sim, node: b, args: {blocks: 64, tokenScale: 20}}
`

// TestStoreInReachWins: while the engine that has computed a prompt is busy, the router picks the other engine of its node, which loads the
// blocks from the store that they share. While both are busy it picks that of another node, which loads them from there.
func TestStoreInReachWins(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-token-of-many-characters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	adminA, adminB := freeAddress(t), freeAddress(t)
	p := startPartsFor(t, partsSettings{gateway: ", hintsFrom: everyone", models: fmt.Sprintf(reachedStores, token),
		agent: []string{"--node", "a", "--admin-address", adminA}})
	start(t, "agent", "--config", p.file, "--node", "b", "--admin-address", adminB)
	p.awaitNodes(map[string]int{"a": 2, "b": 1})
	awaitPeer(t, adminB, "a")
	onA, onB := p.workersOn("a"), p.workersOn("b")

	const blocks = 20
	prompt := func(i int) string { return strings.Repeat(fmt.Sprintf("topic %d ", i), blocks*4) }
	for i := range 2 {
		if err := p.chatAt(t.Context(), onA[0], prompt(i)); err != nil {
			t.Fatal(err)
		}
	}
	ofB := &gateway{t: t, admin: adminB}
	eventually(t, "node b has found the blocks of node a", func() error {
		if n := ofB.metric("stator_kvstore_blocks", `tier="peer"`); n < 2*blocks {
			return fmt.Errorf("%g blocks are known", n)
		}
		return nil
	})

	for i, want := range []struct {
		busy   []string
		worker string
	}{{onA[:1], onA[1]}, {onA, onB[0]}} {
		before := p.loadedBy(want.worker)
		free := p.keepBusy(want.busy)
		d := p.decision(p.chat([]message{{"user", prompt(i)}}, 1).decision)
		free()
		if d.Worker != want.worker {
			t.Errorf("with %v busy %s was picked, want %s", want.busy, d.Worker, want.worker)
		}
		for _, c := range d.Candidates {
			if reached := []int{c.NodeBlocks, c.PeerBlocks}[i]; c.Picked && reached < blocks {
				t.Errorf("with %v busy the picked worker can load %d blocks, want %d", want.busy, reached, blocks)
			}
		}
		if n := p.loadedBy(want.worker) - before; n < blocks*16 {
			t.Errorf("%s has loaded %g tokens, want %d", want.worker, n, blocks*16)
		}
	}
	p.assertNoWrongBlocks()
}

// keepBusy sends long prompts to workers until free is called.
func (p *parts) keepBusy(workers []string) (free func()) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	var all sync.WaitGroup
	var running atomic.Int64
	sent := 0
	send := func() {
		for range 6 { // half of them may end between the check and the decision
			sent++
			for _, w := range workers {
				text := strings.Repeat(fmt.Sprintf("%s is busy with number %d ", w, sent), 30)
				running.Add(1)
				all.Go(func() {
					defer running.Add(-1)
					if err := p.chatAt(ctx, w, text); err != nil && ctx.Err() == nil {
						p.t.Errorf("keep %s busy: %v", w, err)
					}
				})
			}
		}
	}

	eventually(p.t, "the workers are busy", func() error {
		if running.Load() == 0 {
			send() // again, if all have ended before the router was asked
		}
		for _, r := range p.fleet() {
			if slices.Contains(workers, r.Worker) && r.Booked < 3 {
				return fmt.Errorf("%s has %d requests", r.Worker, r.Booked)
			}
		}
		return nil
	})
	return func() {
		cancel()
		all.Wait()
	}
}

// chatAt sends a prompt to a worker by the gateway.
func (p *parts) chatAt(ctx context.Context, worker, text string) error {
	body := fmt.Appendf(nil, `{"model": "sim", "max_tokens": 1, "messages": [{"role": "user", "content": %q}], "nvext": {"router": {"worker": %q}}}`,
		text, worker)
	r, err := p.send(ctx, http.MethodPost, chatPath, body)
	if err == nil && r.status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", r.status, r.body)
	}
	return err
}

// workersOn returns the names of the workers of a node.
func (p *parts) workersOn(node string) (names []string) {
	for _, r := range p.fleet() {
		if strings.HasPrefix(r.Worker, node+".") {
			names = append(names, r.Worker)
		}
	}
	return names
}

// loadedBy returns how many tokens an engine has loaded from its store.
func (p *parts) loadedBy(worker string) float64 {
	p.t.Helper()
	for _, r := range p.fleet() {
		if r.Worker != worker {
			continue
		}
		page, err := get("http://" + r.Address + "/metrics")
		if err != nil {
			p.t.Fatal(err)
		}
		return sample(page, "vllm:external_prefix_cache_hits_total")
	}
	p.t.Fatalf("there is no worker %s", worker)
	return 0
}

// awaitPeer waits until the store of an agent has one peer, which is usable, and whose node has the name; or none if the name is empty.
func awaitPeer(t *testing.T, admin, node string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the peer of %s is %q", admin, node), func() error {
		text, err := get("http://" + admin + "/debug/kv?format=json")
		if err != nil {
			return err
		}
		var stores []struct {
			State string
			Peers []struct{ Node, Address, State, Reason string }
		}
		if err := json.Unmarshal([]byte(text), &stores); err != nil {
			t.Fatal(err)
		}
		if len(stores) != 1 || stores[0].State != "serving" {
			return fmt.Errorf("the stores are %+v", stores)
		}
		all := stores[0].Peers
		if node == "" && len(all) > 0 || node != "" && (len(all) != 1 || all[0].Node != node || all[0].State != "usable") {
			return fmt.Errorf("the peers are %+v", all)
		}
		return nil
	})
}

// awaitTransfer waits until the store of an agent has its stator-transfer.
func awaitTransfer(t *testing.T, admin string) {
	t.Helper()
	eventually(t, "stator-transfer runs", func() error {
		var stores []struct {
			NIXL struct {
				PID    int
				Reason string
			}
		}
		(&gateway{t: t, admin: admin}).page("/debug/kv", &stores)
		if len(stores) != 1 || stores[0].NIXL.PID == 0 {
			return fmt.Errorf("the stores are %+v", stores)
		}
		return nil
	})
}

// engineOn returns a client of the engine on a node, past the gateway.
func (p *parts) engineOn(node string) *gateway {
	p.t.Helper()
	for _, r := range p.fleet() {
		if strings.HasPrefix(r.Worker, node+".") {
			return &gateway{t: p.t, url: "http://" + r.Address, admin: p.admin}
		}
	}
	p.t.Fatalf("node %s has no engine", node)
	return nil
}

// assertNoWrongBlocks checks that no engine has found other bytes in a block than those that were written.
func (g *gateway) assertNoWrongBlocks() {
	g.t.Helper()
	loaded := 0.0
	for _, r := range g.fleet() {
		page, err := get("http://" + r.Address + "/metrics")
		if err != nil {
			g.t.Fatal(err)
		}
		if n := sample(page, "vllm:kv_store_wrong_tokens_total"); n != 0 {
			g.t.Errorf("%s found wrong bytes in blocks of %g tokens", r.Worker, n)
		}
		loaded += sample(page, "vllm:external_prefix_cache_hits_total")
	}
	if loaded == 0 {
		g.t.Error("no engine has loaded blocks: the test shows nothing")
	}
}
