package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/test/loopback"
	"github.com/stator-project/stator/workeragent"
	"github.com/stator-project/stator/workeragent/engine"
)

// heals is within what time knowledge must be exact again once a fault is over.
const heals = 5 * time.Second

// clinic is a router's knowledge, an agent and its simulated engines (processes with real ZMQ
// sockets), and a NATS server between them whose messages to the router can be tampered with.
type clinic struct {
	t      *testing.T
	port   int
	server *bus.Embedded
	proxy  *busProxy
	agent  *workeragent.Agent
	told   *prometheus.Registry // the agent's metrics
	log    *logBuffer
	asked  []string // prompts that engines were asked, in order

	router
}

// router is what a replica has and what ends it.
type router struct {
	*decider
	end func()
}

func newClinic(t *testing.T, pastBatches, engines int) *clinic {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		client.CloseIdleConnections()
		goleak.VerifyNone(t, ignore,
			goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*ipQueue[...]).unregister"),
			goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.init.0.func1"))
	})
	c := &clinic{t: t, port: freePort(t), log: &logBuffer{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", c.log)
		}
	})
	c.startBus()
	t.Cleanup(func() { c.server.Close() })
	c.proxy = newBusProxy(t, fmt.Sprintf("127.0.0.1:%d", c.port))
	c.startAgent(pastBatches, engines)
	c.startRouter()
	t.Cleanup(func() { c.end() })
	return c
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := loopback.Port()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// startBus starts a server that knows nothing, where one was or will be looked for.
func (c *clinic) startBus() {
	c.t.Helper()
	var err error
	if c.server, err = bus.Embed(bus.EmbedConfig{Host: "127.0.0.1", Port: c.port, Dir: c.t.TempDir()}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *clinic) join(url, name string, lost func()) *bus.Bus {
	c.t.Helper()
	b, err := bus.Connect(c.t.Context(), bus.Config{URL: url, Cluster: "test", LeaseTTL: time.Second, Name: name, Log: c.logger(), Lost: lost})
	if err != nil {
		c.t.Fatal(err)
	}
	return b
}

func (c *clinic) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(c.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// startAgent starts an agent with engines w0, w1 and so on, which are this test binary under
// the program's name.
func (c *clinic) startAgent(pastBatches, engines int) {
	c.t.Helper()
	self := filepath.Join(c.t.TempDir(), "stator")
	binary, err := os.Executable()
	if err == nil {
		err = os.Symlink(binary, self)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	b := c.join(fmt.Sprintf("nats://127.0.0.1:%d", c.port), "agent", nil)
	c.told = prometheus.NewRegistry()
	cfg := workeragent.Config{Bus: b, Log: c.logger(), Metrics: c.told, PastBatches: pastBatches}
	for i := range engines {
		cfg.Launches = append(cfg.Launches, engine.Launch{
			Kind: "sim", Name: fmt.Sprintf("w%d", i), Model: "sim", ModelPath: "builtin:sim", BlockSize: 16, Self: self,
			Args: map[string]string{"engineSpeedup": "100"},
		})
	}
	if c.agent, err = workeragent.New(cfg); err != nil {
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

// startRouter starts a replica that knows nothing.
func (c *clinic) startRouter() {
	c.t.Helper()
	cfg, err := config.Parse([]byte(`{apiVersion: stator.dev/v1alpha1, kind: Stator, models: [{name: sim, path: "builtin:sim"}], index: {driftTokens: 2000}}`))
	if err != nil {
		c.t.Fatal(err)
	}
	d, err := newDecider(cfg, c.logger(), prometheus.NewRegistry())
	if err != nil {
		c.t.Fatal(err)
	}
	b := c.join(c.proxy.url(), "router", d.busLost)
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = d.followBus(ctx, b, nil, nil) })
	c.router = router{d, sync.OnceFunc(func() {
		stop()
		all.Wait()
		b.Close()
	})}
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var client = &http.Client{Timeout: 20 * time.Second}

// within waits until ok has no error, so long at most.
func (c *clinic) within(d time.Duration, what string, ok func() error) {
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

// worker is a worker as the router has it now.
func (c *clinic) worker(name string) (fleet.Worker, error) {
	w := c.fleet.Snapshot().Worker(name)
	if w == nil || w.State != fleet.Ready {
		return fleet.Worker{}, fmt.Errorf("%s is not ready", name)
	}
	return *w, nil
}

// ask sends a new prompt to a worker, or one that was asked before, and returns it.
func (c *clinic) ask(worker, text string) string {
	c.t.Helper()
	w, err := c.worker(worker)
	if err != nil {
		c.t.Fatal(err)
	}
	if text == "" {
		text = fmt.Sprintf("question %d of %s: ", len(c.asked), worker) + strings.Repeat("why is the sky blue and the sea green? ", 12)
		c.asked = append(c.asked, text)
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

// blocks cuts a prompt as the router does.
func (c *clinic) blocks(text string) []blockhash.Block {
	c.t.Helper()
	req, err := openai.Parse(prompt.Completions, completion(text), openai.Limits{})
	if err != nil {
		c.t.Fatal(err)
	}
	var p prompt.Prompt
	if err := c.prepared["builtin:sim"].Prepare(req, &p); err != nil {
		c.t.Fatal(err)
	}
	return p.AppendBlocks(nil, 16, blockhash.Seed("", ""))
}

// overlap is how many of a prompt's blocks the router believes a worker to hold, and how many
// there are.
func (c *clinic) overlap(worker, text string) (held, all int) {
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

// healthy waits until the router knows a worker's cache exactly, and all these prompts in it.
func (c *clinic) healthy(worker, what string, prompts ...string) {
	c.t.Helper()
	c.within(heals, what, func() error {
		if err := c.stateIs(worker, feed.Exact)(); err != nil {
			return err
		}
		for i, text := range prompts {
			if held, all := c.overlap(worker, text); held != all {
				return fmt.Errorf("of prompt %d it is known to hold %d of %d blocks", i, held, all)
			}
		}
		return nil
	})
}

func (c *clinic) stateIs(worker string, want feed.State) func() error {
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

// ready waits until engines serve: starting them is not what is measured.
func (c *clinic) ready(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.within(30*time.Second, name+" is ready", func() error { _, err := c.worker(name); return err })
	}
}

// events tells batches of events from marks and from everything else.
func events(subject string, payload []byte) bool {
	return strings.Contains(subject, ".kv.") && len(payload) > 80
}

// Batches that are lost, doubled or reordered on their way to the router are made up for, at the
// end of a stream too, where nothing comes after them.
func TestEventsLostDoubledReordered(t *testing.T) {
	c := newClinic(t, 0, 1)
	c.ready("w0")
	c.healthy("w0", "an empty cache is known exactly")
	known := []string{c.ask("w0", "")}
	c.healthy("w0", "its first prompt is known", known...)

	var lost atomic.Int64
	c.proxy.set(func(subject string, payload []byte) (int, bool) {
		if events(subject, payload) && lost.Add(1) <= 2 {
			return 0, false
		}
		return 1, false
	})
	for range 4 {
		known = append(known, c.ask("w0", ""))
	}
	c.healthy("w0", "two batches are lost, more follow", known...)

	lost.Store(0)
	c.proxy.set(func(subject string, payload []byte) (int, bool) {
		if events(subject, payload) {
			lost.Add(1)
			return 0, false
		}
		return 1, false
	})
	known = append(known, c.ask("w0", ""))
	c.within(heals, "the last batches of a stream are lost", func() error {
		if lost.Load() == 0 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	c.healthy("w0", "the last batches of a stream were lost", known...)

	before := c.feed.Stats().Duplicates
	c.proxy.set(func(string, []byte) (int, bool) { return 2, false })
	known = append(known, c.ask("w0", ""), c.ask("w0", ""))
	c.healthy("w0", "everything comes twice", known...)
	c.within(heals, "what came twice was counted", func() error {
		if c.feed.Stats().Duplicates == before {
			return fmt.Errorf("no duplicates")
		}
		return nil
	})

	var n atomic.Int64
	c.proxy.set(func(subject string, payload []byte) (int, bool) {
		return 1, events(subject, payload) && n.Add(1)%2 == 1
	})
	for range 6 {
		known = append(known, c.ask("w0", ""))
	}
	c.healthy("w0", "pairs are swapped", known...)
	c.proxy.set(nil)
	if n := c.feed.Stats().GivenUp; n != 0 {
		t.Errorf("%d gaps were given up", n)
	}
}

// agentSays reads one of the agent's metrics.
func (c *clinic) agentSays(name string) float64 {
	c.t.Helper()
	families, err := c.told.Gather()
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

// A replica that starts when the past is no longer remembered is exact by a snapshot; replicas
// that start together share one.
func TestReplicasStartLate(t *testing.T) {
	c := newClinic(t, 4, 2)
	c.ready("w0", "w1")
	known := map[string][]string{}
	for i := range 24 {
		w := fmt.Sprintf("w%d", i%2)
		known[w] = append(known[w], c.ask(w, ""))
	}
	c.healthy("w0", "the first replica heard everything", known["w0"]...)
	first := c.router
	defer first.end()
	for range 3 {
		c.startRouter()
		defer c.end()
		c.healthy("w0", "another replica has started", known["w0"]...)
		c.healthy("w1", "another replica has started", known["w1"]...)
		if n := testutil.ToFloat64(c.caches.recoveries.WithLabelValues(bySnapshot, "exact")); n != 2 {
			t.Errorf("%g ranks were recovered by a snapshot, of 2", n)
		}
		if a, b := first.index.Stats().Pairs, c.index.Stats().Pairs; a != b {
			t.Errorf("the first replica knows %d blocks, a late one %d", a, b)
		}
	}
	if n := c.agentSays("stator_agent_snapshots_shared_total"); n < 3 {
		t.Errorf("%g snapshots were shared", n)
	}
	known["w0"] = append(known["w0"], c.ask("w0", ""))
	c.healthy("w0", "what comes after a snapshot is known", known["w0"]...)

	// A gap that nobody can replay any more: only a snapshot heals it.
	c.proxy.set(func(subject string, payload []byte) (int, bool) {
		if events(subject, payload) {
			return 0, false
		}
		return 1, false
	})
	for range 8 {
		known["w0"] = append(known["w0"], c.ask("w0", ""))
	}
	c.proxy.set(nil)
	c.healthy("w0", "a gap too large for a replay", known["w0"]...)
	if n := c.feed.Stats().GivenUp; n != 0 {
		t.Errorf("%d gaps were given up before a snapshot was asked for", n)
	}
}

// An engine dies and comes back: from the moment that its worker is somebody new, nothing that
// the old process held is believed, however the messages fall.
func TestEngineRestarts(t *testing.T) {
	c := newClinic(t, 0, 2)
	c.ready("w0", "w1")
	text := c.ask("w0", "")
	other := c.ask("w1", "")
	c.healthy("w0", "its prompt is known", text)
	c.healthy("w1", "its prompt is known", other)
	// Everything about events comes twice and late, so that words of the dead are still on their way.
	var n atomic.Int64
	c.proxy.set(func(subject string, payload []byte) (int, bool) {
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
		held, _ := c.overlap("w0", text)
		if w := c.fleet.Snapshot().Worker("w0"); held > 0 && w != nil && w.Epoch != before.Epoch {
			t.Fatalf("%d blocks of the dead epoch are believed of the new one", held)
		}
		return nil
	}
	c.within(30*time.Second, "the engine is somebody new, and ready", func() error {
		if err := stale(); err != nil {
			return err
		}
		w, err := c.worker("w0")
		if err == nil && w.Epoch == before.Epoch {
			err = fmt.Errorf("it is the old one still")
		}
		return err
	})
	c.healthy("w0", "its empty cache is known exactly")
	for range 100 {
		_ = stale()
	}
	c.ask("w0", text)
	c.healthy("w0", "its prompt is known again", text)
	c.healthy("w1", "the other worker's still is", other)
}

// The bus dies and comes back empty. Engines go on meanwhile, and what they did is made up for.
func TestBusRestarts(t *testing.T) {
	c := newClinic(t, 0, 1)
	c.ready("w0")
	known := []string{c.ask("w0", "")}
	c.healthy("w0", "its prompt is known", known...)
	c.server.Close()
	c.within(heals, "knowledge is stale without a bus", c.stateIs("w0", feed.Stale))
	if held, all := c.overlap("w0", known[0]); held != all {
		t.Errorf("stale knowledge was dropped: %d of %d", held, all)
	}
	for range 3 {
		known = append(known, c.ask("w0", ""))
	}
	c.startBus()
	c.healthy("w0", "the bus is back", known...)
	known = append(known, c.ask("w0", ""))
	c.healthy("w0", "events come again", known...)

	c.proxy.cut()
	known = append(known, c.ask("w0", ""))
	c.healthy("w0", "only the router was cut off", known...)
}

// What is known of an engine is wrong, and its own counts show it: it is built up anew.
func TestDriftIsHealed(t *testing.T) {
	c := newClinic(t, 0, 1)
	c.ready("w0")
	known := c.ask("w0", "")
	c.healthy("w0", "its prompt is known", known)
	m, _ := c.fleet.Snapshot().Rank("w0", 0)
	lie := "a prompt that the engine never saw: " + strings.Repeat("nobody asked it this before, and nobody will. ", 12)
	blocks, names := c.blocks(lie), []uint64{}
	for i := range blocks {
		names = append(names, uint64(1000+i))
	}
	c.index.Store(m.ID, fleet.Device, 0, false, names, blocks)
	if held, all := c.overlap("w0", lie); held != all {
		t.Fatalf("%d of %d", held, all)
	}
	c.within(30*time.Second, "the lie is not believed any more", func() error {
		d := c.decider.router.Decide(&route.Request{Endpoint: prompt.Completions, Known: true, Body: completion(lie)}, time.Now())
		c.ask("w0", "") // other prompts reach the engine, as long ones
		c.decider.router.End(d.ID, time.Now())
		if n := c.drift.Stats(); len(n) == 0 || n[0].Resyncs == 0 {
			return fmt.Errorf("drift %+v", n)
		}
		return nil
	})
	c.within(heals, "the lie is forgotten", func() error {
		if _, predicted := c.index.PredictedUntil(m.ID, blockhash.Sequence(blocks[0])); predicted {
			return nil
		}
		if held, _ := c.overlap("w0", lie); held > 0 {
			return fmt.Errorf("%d blocks", held)
		}
		return nil
	})
	c.healthy("w0", "what the engine holds is known again", known)
	if !strings.Contains(c.log.String(), "engine and router disagree on what is cached") {
		t.Error("the log does not say so")
	}
}
