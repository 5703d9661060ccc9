package sockets_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/enginesim"
	"github.com/stator-project/stator/extproc/sockets"
	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/kvsource/sources"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// ports are those of one simulated engine.
type ports struct{ http, events, replay string }

func freePorts(t *testing.T) ports {
	t.Helper()
	return ports{testkit.Address(t), testkit.Address(t), testkit.Address(t)}
}

// startEngine runs a simulated engine until stop is called or the test ends. It returns when the engine is ready.
func startEngine(t *testing.T, at ports) (e *enginesim.Sim, stop func()) {
	t.Helper()
	return startEngineBy(t, at, func(*enginesim.Config) {})
}

// startEngineBy is startEngine with a change of the engine's settings.
func startEngineBy(t *testing.T, at ports, change func(*enginesim.Config)) (e *enginesim.Sim, stop func()) {
	t.Helper()
	cfg := enginesim.Config{
		Listen: at.http, Events: "tcp://" + at.events, Replay: "tcp://" + at.replay,
		ModelName: "tiny", Model: testkit.ByteModel{}, Vocabulary: testkit.ByteModel{}, LoadAdapters: true,
		Engine: engine.Config{Blocks: 64, BlockSize: 4, Timing: perfmodel.Fixed{}},
	}
	change(&cfg)
	e, err := enginesim.New(cfg)
	if err == nil {
		err = e.Listen()
	}
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = e.Run(ctx) })
	stop = sync.OnceFunc(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)

	testkit.Eventually(t, "the engine is ready", func() bool {
		resp, err := http.Get("http://" + at.http + "/health")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return e, stop
}

// ask sends a prompt to the engine, which caches its blocks.
func ask(t *testing.T, at ports, text string) {
	t.Helper()
	body := fmt.Sprintf(`{"model": "tiny", "prompt": %q, "max_tokens": 1}`, text)
	resp, err := http.Post("http://"+at.http+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if answer, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", resp.Status, answer)
	}
}

// network forwards connections to an engine until they are cut.
type network struct {
	ln    net.Listener
	mu    sync.Mutex
	conns []net.Conn // guarded by mu
	all   sync.WaitGroup
}

func newNetwork(t *testing.T, to string) *network {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{ln: ln}
	n.all.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			n.mu.Lock()
			n.conns = append(n.conns, in, out)
			n.mu.Unlock()
			n.all.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			n.all.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
		}
	})
	t.Cleanup(func() { _ = ln.Close(); n.cut(); n.all.Wait() })
	return n
}

// cut breaks all connections. New ones can be made.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		_ = c.Close()
	}
	n.conns = nil
}

// reader is a fleet of one worker w0, whose sockets are read into a feed.
type reader struct {
	t     *testing.T
	fleet *fleet.Fleet
	feed  *feed.Feed
	index *kvindex.Index
	log   testkit.Log
	// sources are the sources that run.
	sources *sources.Set
	// loads counts the loads that were read, and queries is the count of the last one. restarts counts new processes.
	loads, restarts atomic.Int32
	queries         atomic.Uint64
}

func read(t *testing.T, w fleet.Worker) *reader { return readBeside(t, w, nil) }

// readBeside reads a worker beside another reader, which is asked for missing batches; nil for none.
func readBeside(t *testing.T, w fleet.Worker, other *reader) *reader {
	t.Helper()
	r := &reader{t: t, index: kvindex.New(kvindex.Config{}), sources: sources.Register(prometheus.NewRegistry(), "sockets")}
	r.log.PrintOnFailure(t)
	r.fleet = fleet.New(fleet.Hooks{})
	r.feed = feed.New(feed.Config{}, r.fleet, r.index)
	w.Name, w.Model, w.Ranks, w.BlockSize, w.State = "w0", "tiny", 1, 4, fleet.Ready
	if _, err := r.fleet.Put(w); err != nil {
		t.Fatal(err)
	}

	read, err := sockets.New(sockets.Config{
		Fleet: r.fleet, Feed: r.feed, Log: r.log.Logger(), Sources: r.sources,
		Load: func(_ *fleet.Worker, l engineprobe.Load) {
			r.loads.Add(1)
			r.queries.Store(l.PrefixQueries)
		},
		Restarted: func(*fleet.Worker) { r.restarts.Add(1) },
		Take: func(_ context.Context, worker string, epoch uint64, rank int) (*feed.Snapshot, error) {
			if other == nil {
				return nil, feed.ErrNoSnapshot
			}
			s, _ := other.feed.Snapshot(worker, epoch, rank)
			return &s, nil
		},
	}, []fleet.Worker{w})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { read.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return r
}

// exact waits until the worker's state is exact, with all the blocks of the engine.
func (r *reader) exact(e *enginesim.Sim, when string) {
	r.t.Helper()
	testkit.Eventually(r.t, when+": exact", func() bool {
		s := r.feed.States()
		return s[0].State == feed.Exact && s[0].Blocks == e.CachedBlocks()
	})
}

// TestSocketsRecover: the connection breaks while the engine is idle, and while it is not, and the
// engine restarts and stays idle. Each time the worker becomes exact again without a further event.
func TestSocketsRecover(t *testing.T) {
	at := freePorts(t)
	first, stop := startEngine(t, at)
	events := newNetwork(t, at.events)
	r := read(t, fleet.Worker{Address: at.http, KVEvents: "tcp://" + events.ln.Addr().String(), KVReplay: "tcp://" + at.replay})

	r.exact(first, "an engine that has published nothing")
	ask(t, at, "a prompt of several blocks")
	r.exact(first, "after the first prompt")

	events.cut()
	r.exact(first, "the connection broke while the engine was idle")
	events.cut()
	ask(t, at, "another prompt of several blocks")
	r.exact(first, "the connection broke before a prompt")
	if first.CachedBlocks() == 0 {
		t.Fatal("the engine cached nothing")
	}

	stop()
	events.cut()
	second, _ := startEngine(t, at)
	r.exact(second, "the engine restarted and is idle")
	if n := r.index.Stats().Pairs; n != 0 {
		t.Errorf("%d blocks of the old process are in the index", n)
	}
	ask(t, at, "a prompt of several blocks")
	r.exact(second, "the new process published")

	all := r.sources.All()
	if len(all) != 1 || all[0].Worker != "w0" || !all[0].Connected || all[0].Connects < 3 || all[0].Restarts != 1 {
		t.Errorf("sources: %+v", all)
	}
}

// TestMissingBatchesAreTaken: a reader that comes late to an engine without a replay socket takes what another reader has. So does one whose
// connection broke.
func TestMissingBatchesAreTaken(t *testing.T) {
	at := freePorts(t)
	e, _ := startEngine(t, at)
	events := newNetwork(t, at.events)
	first := read(t, fleet.Worker{Address: at.http, KVEvents: "tcp://" + at.events, KVReplay: "tcp://" + at.replay})
	ask(t, at, "a prompt of several blocks")
	first.exact(e, "the first reader has a replay socket")

	second := readBeside(t, fleet.Worker{Address: at.http, KVEvents: "tcp://" + events.ln.Addr().String()}, first)
	// Each batch of a further prompt shows what is missing. The first may be lost: the engine learns of a subscription after the connection.
	hasAll := func(when string) {
		t.Helper()
		testkit.Eventually(t, when, func() bool {
			if n := second.feed.States()[0].Blocks; n > 0 && n == e.CachedBlocks() {
				return true
			}
			ask(t, at, "a prompt of several blocks, at "+time.Now().String())
			return false
		})
	}
	hasAll("the second reader has the blocks of the time before it, too")
	events.cut()
	ask(t, at, "a prompt that comes while the connection is away")
	hasAll("the second reader has those of the time without a connection")
	if s := second.feed.States()[0]; s.UnrecoveredGaps != 0 || s.Snapshots == 0 {
		t.Errorf("%+v", s)
	}
}

// TestSocketsOfANamedWorker: the sockets are read at the IP that the worker's name has. The name itself does not resolve here.
func TestSocketsOfANamedWorker(t *testing.T) {
	at := freePorts(t)
	e, _ := startEngine(t, at)
	atName := func(address string) string { return strings.Replace(address, "127.0.0.1", "engine.invalid", 1) }
	r := read(t, fleet.Worker{
		Address: at.http, Named: strings.ToUpper(atName(at.http)), KVEvents: "tcp://" + atName(at.events), KVReplay: "tcp://" + atName(at.replay),
	})
	ask(t, at, "a prompt of several blocks")
	r.exact(e, "read at its IP")
}

// TestWorkerWithoutAnAddress: nothing is read of a worker whose name does not resolve.
func TestWorkerWithoutAnAddress(t *testing.T) {
	r := read(t, fleet.Worker{Named: "engine.invalid:8000", KVEvents: "tcp://engine.invalid:8001"})
	time.Sleep(200 * time.Millisecond) // a source that is read is in the list at once
	if all := r.sources.All(); len(all) > 0 || r.log.String() != "" {
		t.Errorf("sources %+v, log:\n%s", all, r.log.String())
	}
}

// TestSocketsAreDiscovered: with kvEvents "auto" the engine reports its sockets itself. The router
// may start first.
func TestSocketsAreDiscovered(t *testing.T) {
	at := freePorts(t)
	r := read(t, fleet.Worker{Address: at.http, KVEvents: "auto"})
	testkit.Eventually(t, "the missing engine is logged", func() bool { return r.log.Contains("event sockets not found") })

	e, _ := startEngine(t, at)
	ask(t, at, "a prompt of several blocks")
	r.exact(e, "the sockets were found")
	if !r.log.Contains("event socket found") {
		t.Error("the log does not contain the socket")
	}
}

// TestDefaultSockets: an engine without a page of its sockets is read at the default port of vLLM.
func TestDefaultSockets(t *testing.T) {
	const host = "127.88.55.57"
	at := ports{http: testkit.Address(t), events: host + ":5557", replay: testkit.Address(t)}
	startEngine(t, at)
	engineAt, err := url.Parse("http://" + at.http)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(engineAt)
	ln, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	older := &httptest.Server{Listener: ln, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/kv_event_sources" {
			http.NotFound(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	})}}
	older.Start()
	t.Cleanup(older.Close)

	r := read(t, fleet.Worker{Address: ln.Addr().String(), KVEvents: "auto"})
	n := 0
	testkit.Eventually(t, "blocks are known", func() bool {
		n++
		ask(t, at, fmt.Sprintf("%d is a prompt of several blocks", n)) // events before the subscription are lost
		return r.feed.States()[0].Blocks > 0
	})
}

// TestContextLengthIsRead: a worker has the length of its engine, whether or not its events are read, and keeps its
// state and its rank.
func TestContextLengthIsRead(t *testing.T) {
	at := freePorts(t)
	startEngine(t, at)
	r := read(t, fleet.Worker{Address: at.http})
	before, _ := r.fleet.Snapshot().Rank("w0", 0)

	testkit.Eventually(t, "the length was read", func() bool { return r.fleet.Snapshot().Worker("w0").MaxModelLen == 4096 })
	after, _ := r.fleet.Snapshot().Rank("w0", 0)
	if after.ID != before.ID || after.Load != before.Load || after.Worker.State != fleet.Ready {
		t.Errorf("rank %+v became %+v", before, after)
	}
}

// TestAdaptersAreRead: a worker has the adapters that its engine lists, while they are loaded and unloaded, and keeps its
// rank. Those of an engine that is not ready are unknown: the next process may have others.
func TestAdaptersAreRead(t *testing.T) {
	at := freePorts(t)
	_, stop := startEngine(t, at)
	r := read(t, fleet.Worker{Address: at.http})
	before, _ := r.fleet.Snapshot().Rank("w0", 0)
	is := func(want fleet.Adapters) func() bool {
		return func() bool { return r.fleet.Snapshot().Worker("w0").Adapters == want }
	}

	testkit.Eventually(t, "it is known that there are none", is("\n"))
	change(t, at, "load", "poet")
	testkit.Eventually(t, "an adapter was loaded", is("\npoet\n"))
	change(t, at, "unload", "poet")
	testkit.Eventually(t, "it was unloaded", is("\n"))
	if after, _ := r.fleet.Snapshot().Rank("w0", 0); after.ID != before.ID || after.Load != before.Load {
		t.Errorf("rank %+v became %+v", before, after)
	}

	stop()
	r.fleet.SetState("w0", fleet.Down)
	testkit.Eventually(t, "the engine is gone", is(""))
}

// change has an engine load or unload an adapter.
func change(t *testing.T, at ports, how, name string) {
	t.Helper()
	resp, err := http.Post("http://"+at.http+"/v1/"+how+"_lora_adapter", "application/json",
		strings.NewReader(fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, name, t.TempDir())))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s", how, name, resp.Status)
	}
}

// TestLoadIsRead: the load of an engine is read as an agent reads it, its capacity is that of its metrics unless it is configured,
// and a new process is found by its counters.
func TestLoadIsRead(t *testing.T) {
	at := freePorts(t)
	_, stop := startEngine(t, at)
	r := read(t, fleet.Worker{Address: at.http, Engine: "sim"})
	configured := read(t, fleet.Worker{Address: at.http, Engine: "sim", Blocks: 7})
	ask(t, at, "a prompt of several blocks")

	testkit.Eventually(t, "the prompt is in the load", func() bool { return r.queries.Load() > 0 && configured.loads.Load() > 0 })
	if a, b := r.fleet.Snapshot().Worker("w0").Blocks, configured.fleet.Snapshot().Worker("w0").Blocks; a != 64 || b != 7 {
		t.Errorf("%d blocks, and %d of 7 that are configured", a, b)
	}
	stop()
	startEngine(t, at)
	testkit.Eventually(t, "the new process is found", func() bool { return r.restarts.Load() == 1 })
}

// TestLostEventConnectionIsEvidence: a worker whose event connection is lost is in doubt, so that its engine is asked.
func TestLostEventConnectionIsEvidence(t *testing.T) {
	at := freePorts(t)
	e, _ := startEngine(t, at)
	n := newNetwork(t, at.events)
	r := read(t, fleet.Worker{Address: at.http, KVEvents: "tcp://" + n.ln.Addr().String(), KVReplay: "tcp://" + at.replay})
	r.exact(e, "connected")
	_ = n.ln.Close()
	n.cut()
	testkit.Eventually(t, "the worker is in doubt", func() bool {
		rank, _ := r.fleet.Snapshot().Rank("w0", 0)
		return rank.Load.Health().View().State == fleet.HealthSuspect && len(rank.Load.Health().Wake()) == 1
	})
}

// TestWrongAddressesAreRefused: New reports them.
func TestWrongAddressesAreRefused(t *testing.T) {
	for events, want := range map[string]string{
		"tcp://host":      "worker w: kvEvents: ",
		"tcp://*:5557":    "worker w: configure event source: ",
		"bind:tcp://host": "worker w: ",
	} {
		workers := []fleet.Worker{
			{Name: "none", Ranks: 1, Address: "10.0.0.1:8000"}, {Name: "w", Ranks: 2, KVEvents: events, Address: "10.0.0.1:8001"},
		}
		_, err := sockets.New(sockets.Config{}, workers)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s…", events, err, want)
		}
	}
}

// TestCachingOff: an engine that is started again without a prefix cache counts as one without from the first sign of the new process on,
// and as one with a cache once its metrics have one.
func TestCachingOff(t *testing.T) {
	at := freePorts(t)
	e, stop := startEngine(t, at)
	r := read(t, fleet.Worker{Address: at.http, Engine: "sim", KVEvents: "tcp://" + at.events, KVReplay: "tcp://" + at.replay})
	r.exact(e, "connected")
	load := r.fleet.Snapshot().Ranks[0].Load
	testkit.Eventually(t, "its metrics are read", func() bool { return r.loads.Load() > 0 && load.Caches() })

	stop()
	_, stop = startEngineBy(t, at, func(c *enginesim.Config) { c.NoCaching = true })
	testkit.Eventually(t, "its cache is off", func() bool { return !load.Caches() && load.HealthView().CachingOff })
	stop()
	e, _ = startEngine(t, at)
	testkit.Eventually(t, "its cache is back", func() bool { return load.Caches() })
	ask(t, at, "a prompt of several blocks")
	r.exact(e, "started again")
}

// TestCachingIsNotReported: an engine whose metrics are off is another process. It answers, so it counts as one with a cache again.
func TestCachingIsNotReported(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(server.Close)
	r := read(t, fleet.Worker{Address: server.Listener.Addr().String(), Engine: "vllm"})
	rank := r.fleet.Snapshot().Ranks[0]
	testkit.Eventually(t, "the engine is asked", func() bool { return asked.Load() > 0 })
	sockets.DoubtCaching(&rank)
	if rank.Load.Caches() {
		t.Error("a new process counts before it has answered")
	}
	testkit.Eventually(t, "the engine has answered", rank.Load.Caches)
}
