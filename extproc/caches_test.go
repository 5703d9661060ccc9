package extproc

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/test/busproxy"
	"github.com/stator-project/stator/test/testkit"
	"github.com/stator-project/stator/workeragent"
	"github.com/stator-project/stator/workeragent/engine"
)

// recovery is the time within which a cache state must be exact again after a fault. It takes a second or two, and more on a busy machine.
const recovery = 60 * time.Second

// cluster is a router, an agent and its simulated engines (processes with real ZMQ sockets), and a NATS
// server between them. A proxy can lose, repeat and reorder the messages to the router.
type cluster struct {
	t            *testing.T
	port         int // of the NATS server
	server       *bus.Embedded
	proxy        *busproxy.Proxy
	agent        *workeragent.Agent
	agentMetrics *prometheus.Registry
	log          testkit.Log
	prompts      []string // texts that were sent to engines, in order

	replica
}

// replica is a router with its metrics. stop ends it.
type replica struct {
	*Router
	metrics *prometheus.Registry
	stop    func()
}

func newCluster(t *testing.T, pastBatches, engines int) *cluster {
	t.Helper()
	testkit.NoLeaks(t)
	t.Cleanup(client.CloseIdleConnections)
	c := &cluster{t: t, port: testkit.Port(t)}
	c.log.PrintOnFailure(t)
	c.startBus()
	t.Cleanup(func() { c.server.Close() })
	proxy, err := busproxy.New(fmt.Sprintf("127.0.0.1:%d", c.port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	c.proxy = proxy
	c.startAgent(pastBatches, engines)
	c.startRouter()
	t.Cleanup(func() { c.stop() })
	return c
}

// startBus starts an empty NATS server on the cluster's port.
func (c *cluster) startBus() {
	c.t.Helper()
	var err error
	if c.server, err = bus.Embed(bus.EmbedConfig{Host: "127.0.0.1", Port: c.port, Dir: c.t.TempDir()}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) join(url, name string, lost func()) *bus.Bus {
	c.t.Helper()
	b, err := bus.Connect(c.t.Context(), bus.Config{URL: url, Cluster: "test", LeaseTTL: time.Second, Name: name, Log: c.log.Logger(), Lost: lost})
	if err != nil {
		c.t.Fatal(err)
	}
	return b
}

// startAgent starts an agent with engines w0, w1 and so on, which are this test binary: see TestMain.
func (c *cluster) startAgent(pastBatches, engines int) {
	c.t.Helper()
	b := c.join(fmt.Sprintf("nats://127.0.0.1:%d", c.port), "agent", nil)
	c.agentMetrics = prometheus.NewRegistry()
	cfg := workeragent.Config{Bus: b, Log: c.log.Logger(), Metrics: c.agentMetrics, PastBatches: pastBatches}
	for i := range engines {
		cfg.Launches = append(cfg.Launches, engine.Launch{
			Kind: "sim", Name: fmt.Sprintf("w%d", i), Model: "sim", ModelPath: "builtin:sim", BlockSize: 16, Self: os.Args[0],
		})
	}

	var err error
	cfg.Site, err = engine.NewSite("127.0.0.1", engine.DefaultPorts, c.t.TempDir())
	if err != nil {
		c.t.Fatal(err)
	}
	c.agent, err = workeragent.New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = c.agent.Run(ctx) })
	c.t.Cleanup(func() {
		stop()
		all.Wait()
		b.Close()
	})
}

// startRouter starts a replica with an empty index.
func (c *cluster) startRouter() {
	c.t.Helper()
	settings, err := config.Parse([]byte(`{apiVersion: stator.dev/v1alpha1, kind: Stator, models: [{name: sim, path: "builtin:sim"}], index: {driftTokens: 2000}}`))
	if err != nil {
		c.t.Fatal(err)
	}
	metrics := prometheus.NewRegistry()
	r, err := New(Config{Settings: settings, Log: c.log.Logger(), Metrics: metrics})
	if err != nil {
		c.t.Fatal(err)
	}

	b := c.join(c.proxy.URL(), "router", r.BusLost)
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		err := r.Run(ctx, RunConfig{Bus: b, AwaitFleet: true, Listen: func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }})
		if err != nil {
			c.t.Error(err)
		}
	})
	c.replica = replica{r, metrics, sync.OnceFunc(func() {
		stop()
		all.Wait()
		b.Close()
	})}
}

var client = &http.Client{Timeout: 20 * time.Second}

// within waits until ok returns no error, for d at most.
func (c *cluster) within(d time.Duration, what string, ok func() error) {
	c.t.Helper()
	began := time.Now()
	for {
		err := ok()
		if err == nil {
			c.t.Logf("%s: after %s", what, time.Since(began).Round(time.Millisecond))
			return
		}
		if time.Since(began) > d {
			c.t.Fatalf("not within %s: %s: %v", d, what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// worker returns a worker of the router's fleet.
func (c *cluster) worker(name string) (fleet.Worker, error) {
	w := c.fleet.Snapshot().Worker(name)
	if w == nil || w.State != fleet.Ready {
		return fleet.Worker{}, fmt.Errorf("%s is not ready", name)
	}
	return *w, nil
}

// ask sends a prompt to a worker, a new one for "", and returns it.
func (c *cluster) ask(worker, text string) string {
	c.t.Helper()
	w, err := c.worker(worker)
	if err != nil {
		c.t.Fatal(err)
	}
	if text == "" {
		text = fmt.Sprintf("question %d of %s: ", len(c.prompts), worker) + strings.Repeat("why is the sky blue and the sea green? ", 12)
		c.prompts = append(c.prompts, text)
	}
	resp, err := client.Post("http://"+w.Address+"/v1/completions", "application/json", bytes.NewReader(completion(text)))
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%s: %s", resp.Status, body)
	}
	return text
}

func completion(text string) []byte {
	body, err := json.Marshal(map[string]any{"model": "sim", "prompt": text, "max_tokens": 1})
	if err != nil {
		panic(err)
	}
	return body
}

// blocks returns the blocks of a prompt as the router computes them.
func (c *cluster) blocks(text string) []blockhash.Block {
	c.t.Helper()
	req, err := openai.Parse(prompt.Completions, completion(text), openai.Limits{})
	if err != nil {
		c.t.Fatal(err)
	}
	var p prompt.Prompt
	if err := c.models.prepared["builtin:sim"].Prepare(req, &p); err != nil {
		c.t.Fatal(err)
	}
	return p.AppendBlocks(nil, 16, blockhash.Seed("", ""))
}

// overlap returns the number of a prompt's blocks that the index stores for a worker, and the number of all.
func (c *cluster) overlap(worker, text string) (stored, all int) {
	c.t.Helper()
	blocks := c.blocks(text)
	m, ok := c.fleet.Snapshot().Rank(worker, 0)
	if !ok {
		return 0, len(blocks)
	}
	var out kvindex.Overlap
	c.index.Lookup(blocks, &out)
	return out.Of(m.ID)[fleet.Device], len(blocks)
}

// exact waits until a worker's cache state is exact, and all blocks of these prompts are stored for it.
func (c *cluster) exact(worker, what string, prompts ...string) {
	c.t.Helper()
	c.within(recovery, what, func() error {
		if err := c.stateIs(worker, feed.Exact)(); err != nil {
			return err
		}
		for i, text := range prompts {
			if stored, all := c.overlap(worker, text); stored != all {
				return fmt.Errorf("%d of %d blocks of prompt %d are stored", stored, all, i)
			}
		}
		return nil
	})
}

func (c *cluster) stateIs(worker string, want feed.State) func() error {
	return func() error {
		if _, err := c.worker(worker); err != nil {
			return err
		}
		m, _ := c.fleet.Snapshot().Rank(worker, 0)
		if s := c.feed.State(m); s != want {
			return fmt.Errorf("%s is %s", worker, s)
		}
		return nil
	}
}

// ready waits until engines serve. Their start is not part of any measurement.
func (c *cluster) ready(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.within(30*time.Second, name+" is ready", func() error { _, err := c.worker(name); return err })
	}
}

// isBatch reports whether a message is a batch of events, and not a mark or something else.
func isBatch(subject string, payload []byte) bool {
	return strings.Contains(subject, ".kv.") && len(payload) > 80
}

// TestLostDoubledAndReorderedBatches: the router recovers from them, also at the end of a stream, when
// no later batch shows the loss.
func TestLostDoubledAndReorderedBatches(t *testing.T) {
	c := newCluster(t, 0, 1)
	c.ready("w0")
	c.exact("w0", "an empty cache is exact")
	prompts := []string{c.ask("w0", "")}
	c.exact("w0", "the first prompt is stored", prompts...)

	var lost atomic.Int64
	c.proxy.Set(func(subject string, payload []byte) (int, bool) {
		if isBatch(subject, payload) && lost.Add(1) <= 2 {
			return 0, false
		}
		return 1, false
	})
	for range 4 {
		prompts = append(prompts, c.ask("w0", ""))
	}
	c.exact("w0", "two batches were lost, others followed", prompts...)

	lost.Store(0)
	c.proxy.Set(func(subject string, payload []byte) (int, bool) {
		if isBatch(subject, payload) {
			lost.Add(1)
			return 0, false
		}
		return 1, false
	})
	prompts = append(prompts, c.ask("w0", ""))
	c.within(recovery, "the last batches of a stream are lost", func() error {
		if lost.Load() == 0 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	c.exact("w0", "the last batches of a stream were lost", prompts...)

	before := c.feed.Stats().Duplicates
	c.proxy.Set(func(string, []byte) (int, bool) { return 2, false })
	prompts = append(prompts, c.ask("w0", ""), c.ask("w0", ""))
	c.exact("w0", "every message arrived twice", prompts...)
	c.within(recovery, "duplicates are counted", func() error {
		if c.feed.Stats().Duplicates == before {
			return fmt.Errorf("no duplicates")
		}
		return nil
	})

	var n atomic.Int64
	c.proxy.Set(func(subject string, payload []byte) (int, bool) {
		return 1, isBatch(subject, payload) && n.Add(1)%2 == 1
	})
	for range 6 {
		prompts = append(prompts, c.ask("w0", ""))
	}
	c.exact("w0", "pairs of messages were swapped", prompts...)
	c.proxy.Set(nil)
	if n := c.feed.Stats().UnrecoveredGaps; n != 0 {
		t.Errorf("%d gaps were given up", n)
	}
}

// recoveries returns the number of recoveries by a method that made a rank exact.
func (r *replica) recoveries(by string) float64 {
	families, err := r.metrics.Gather()
	if err != nil {
		return -1
	}
	for _, f := range families {
		if f.GetName() != "stator_feed_recoveries_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); l[0].GetValue() == by && l[1].GetValue() == "exact" {
				return m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

// agentMetric returns one of the agent's counters.
func (c *cluster) agentMetric(name string) float64 {
	c.t.Helper()
	families, err := c.agentMetrics.Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	c.t.Fatalf("there is no %s", name)
	return 0
}

// TestLateReplicasRestoreSnapshots: a replica that starts when the agent no longer remembers the first
// batches becomes exact by a snapshot. Replicas that start together share one.
func TestLateReplicasRestoreSnapshots(t *testing.T) {
	c := newCluster(t, 4, 2)
	c.ready("w0", "w1")
	prompts := map[string][]string{}
	for i := range 24 {
		w := fmt.Sprintf("w%d", i%2)
		prompts[w] = append(prompts[w], c.ask(w, ""))
	}
	c.exact("w0", "the first replica received every batch", prompts["w0"]...)
	first := c.replica
	defer first.stop()
	for range 3 {
		c.startRouter()
		defer c.stop()
		c.exact("w0", "another replica has started", prompts["w0"]...)
		c.exact("w1", "another replica has started", prompts["w1"]...)
		if n := c.recoveries("snapshot"); n != 2 {
			t.Errorf("%g ranks were recovered by a snapshot, of 2", n)
		}
		if a, b := first.index.Stats().Pairs, c.index.Stats().Pairs; a != b {
			t.Errorf("the first replica stores %d blocks, a late one %d", a, b)
		}
	}
	if n := c.agentMetric("stator_agent_snapshots_shared_total"); n < 3 {
		t.Errorf("%g snapshots were shared", n)
	}
	prompts["w0"] = append(prompts["w0"], c.ask("w0", ""))
	c.exact("w0", "the batch after the snapshot was applied", prompts["w0"]...)

	// A gap that the agent can no longer replay: only a snapshot closes it.
	c.proxy.Set(func(subject string, payload []byte) (int, bool) {
		if isBatch(subject, payload) {
			return 0, false
		}
		return 1, false
	})
	for range 8 {
		prompts["w0"] = append(prompts["w0"], c.ask("w0", ""))
	}
	c.proxy.Set(nil)
	c.exact("w0", "a gap too large for a replay", prompts["w0"]...)
	if n := c.feed.Stats().UnrecoveredGaps; n != 0 {
		t.Errorf("%d gaps were given up before a snapshot was requested", n)
	}
}

// TestBlocksOfOldEpochAreDropped: an engine is killed and starts again. Once its worker has a new epoch no
// block of the old process is in the index, in whatever order the messages arrive.
func TestBlocksOfOldEpochAreDropped(t *testing.T) {
	c := newCluster(t, 0, 2)
	c.ready("w0", "w1")
	text := c.ask("w0", "")
	other := c.ask("w1", "")
	c.exact("w0", "its prompt is stored", text)
	c.exact("w1", "its prompt is stored", other)
	// Every message about events arrives twice and late, so that some of the old process are in flight.
	var n atomic.Int64
	c.proxy.Set(func(subject string, payload []byte) (int, bool) {
		return 2, strings.Contains(subject, ".kv.") && n.Add(1)%2 == 1
	})
	before, err := c.worker("w0")
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(c.agent.Processes()["w0"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	stale := func() error {
		stored, _ := c.overlap("w0", text)
		if w := c.fleet.Snapshot().Worker("w0"); stored > 0 && w != nil && w.Epoch != before.Epoch {
			t.Fatalf("%d blocks of the old epoch are stored for the new one", stored)
		}
		return nil
	}
	c.within(30*time.Second, "the engine has a new epoch, and is ready", func() error {
		if err := stale(); err != nil {
			return err
		}
		w, err := c.worker("w0")
		if err == nil && w.Epoch == before.Epoch {
			err = fmt.Errorf("it still has the old epoch")
		}
		return err
	})
	c.exact("w0", "its empty cache is exact")
	for range 100 {
		_ = stale()
	}
	c.ask("w0", text)
	c.exact("w0", "its prompt is stored again", text)
	c.exact("w1", "the other worker's prompt is still stored", other)
}

// TestBusRestarts: the bus is stopped and starts again empty. The engines serve meanwhile, and the router
// receives their events afterwards.
func TestBusRestarts(t *testing.T) {
	c := newCluster(t, 0, 1)
	c.ready("w0")
	prompts := []string{c.ask("w0", "")}
	c.exact("w0", "its prompt is stored", prompts...)
	c.server.Close()
	c.within(recovery, "the cache state is stale without a bus", c.stateIs("w0", feed.Stale))
	if stored, all := c.overlap("w0", prompts[0]); stored != all {
		t.Errorf("blocks of a stale rank were dropped: %d of %d are left", stored, all)
	}
	for range 3 {
		prompts = append(prompts, c.ask("w0", ""))
	}
	c.startBus()
	c.exact("w0", "the bus is back", prompts...)
	prompts = append(prompts, c.ask("w0", ""))
	c.exact("w0", "new events arrive", prompts...)

	c.proxy.Cut()
	prompts = append(prompts, c.ask("w0", ""))
	c.exact("w0", "only the router was disconnected", prompts...)
}

// TestDriftRebuildsCacheState: the index has blocks that the engine does not have. The engine's counters
// show it, and the router rebuilds the worker's cache state.
func TestDriftRebuildsCacheState(t *testing.T) {
	c := newCluster(t, 0, 1)
	c.ready("w0")
	text := c.ask("w0", "")
	c.exact("w0", "its prompt is stored", text)
	m, _ := c.fleet.Snapshot().Rank("w0", 0)
	wrong := "a prompt that the engine never received: " + strings.Repeat("it was not asked this before, and will not be. ", 12)
	blocks, names := c.blocks(wrong), []uint64{}
	for i := range blocks {
		names = append(names, uint64(1000+i))
	}
	c.index.Store(m.ID, fleet.Device, kvindex.Chain{Hashes: names, Blocks: blocks})
	if stored, all := c.overlap("w0", wrong); stored != all {
		t.Fatalf("%d of %d", stored, all)
	}
	c.within(30*time.Second, "the drift is found", func() error {
		d := c.routes.Decide(&request.Request{Endpoint: prompt.Completions, Known: true, Body: completion(wrong)}, time.Now())
		c.ask("w0", "") // the engine receives other prompts of the same length
		c.routes.End(d.ID, time.Now())
		if n := c.drift.Stats(); len(n) == 0 || n[0].Resyncs == 0 {
			return fmt.Errorf("drift %+v", n)
		}
		return nil
	})
	c.within(recovery, "the wrong blocks are dropped", func() error {
		if _, predicted := c.index.PredictedUntil(m.ID, blockhash.Sequence(blocks[0])); predicted {
			return nil
		}
		if stored, _ := c.overlap("w0", wrong); stored > 0 {
			return fmt.Errorf("%d blocks", stored)
		}
		return nil
	})
	c.exact("w0", "the engine's blocks are stored again", text)
	if !strings.Contains(c.log.String(), "engine and router disagree on cached tokens") {
		t.Error("it is not logged")
	}
}

// TestPromisesMissedWithoutEvents: an engine finds none of the promised tokens while its events do not arrive. They may explain it, so its
// blocks stay, and the cache is exact again with them. The same with all events empties the rank.
func TestPromisesMissedWithoutEvents(t *testing.T) {
	c := newCluster(t, 0, 1)
	c.ready("w0")
	text := c.ask("w0", "")
	c.exact("w0", "a prompt", text)
	worker, err := c.worker("w0")
	if err != nil {
		t.Fatal(err)
	}

	c.proxy.Refuse(true)
	c.within(recovery, "events are missing", c.stateIs("w0", feed.Stale))
	c.promisesMissed(&worker, time.Now())
	c.proxy.Refuse(false)
	c.exact("w0", "events have arrived", text)

	c.promisesMissed(&worker, time.Now())
	c.within(recovery, "the promises were missed with all events", c.stateIs("w0", feed.Stale))
	if stored, _ := c.overlap("w0", text); stored > 0 {
		t.Errorf("%d blocks are still promised", stored)
	}
}
