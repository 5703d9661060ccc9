package kvsource_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stator-project/stator/enginesim"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/test/testkit"
)

// TestMain ignores a goroutine of the library's PUB socket, which these tests use as an engine: Close
// does not end it.
func TestMain(m *testing.M) {
	testkit.Main(m, goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
}

// startSim runs a simulated engine on the given endpoints until stop is called or the test ends.
func startSim(t *testing.T, events, replay string, change func(*enginesim.Config)) (sim *enginesim.Sim, stop func()) {
	t.Helper()
	cfg := enginesim.Config{
		ModelName: "tiny", Model: testkit.ByteModel{}, Vocabulary: testkit.ByteModel{}, Events: events, Replay: replay,
		Engine: engine.Config{Blocks: 64, BlockSize: 4, Timing: perfmodel.Fixed{}},
	}
	if change != nil {
		change(&cfg)
	}
	sim, err := enginesim.New(cfg)
	if err == nil {
		err = sim.Listen()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sim.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run simulated engine: %v", err)
		}
	})
	t.Cleanup(stop)
	testkit.Eventually(t, "the simulated engine is ready", func() bool {
		resp, err := http.Get("http://" + sim.Addr() + "/health")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
	return sim, stop
}

// ask sends a prompt to the engine. A new prompt causes at least one event.
func ask(t *testing.T, sim *enginesim.Sim, text string) {
	t.Helper()
	cachedTokens(t, sim, text)
}

// cachedTokens sends a prompt and returns how many of its tokens the engine had cached.
func cachedTokens(t *testing.T, sim *enginesim.Sim, text string) int {
	t.Helper()
	body := fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":1}`, text)
	resp, err := http.Post("http://"+sim.Addr()+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%d %v", resp.StatusCode, err)
	}
	return answer.Usage.Details.Cached
}

// consumer accepts every number from 0 on, in order, and records what the source reports.
type consumer struct {
	*kvsource.Source
	t *testing.T
	// ups receives the reports of connections; nil drops them.
	ups chan bool

	mu       sync.Mutex
	next     uint64
	accepted []uint64
	seconds  []float64 // the engine's clock in each of them
	stored   int       // blocks
	restarts int
	gaps     int
	unknown  int
	ranks    map[int]bool
	reported int             // restarts that the source reported
	caughtUp []uint64        // the numbers that the source reported
	giveUp   time.Time       // gaps are accepted from then on
	block    <-chan struct{} // Batch waits for it
}

func (l *consumer) Restarted() { l.read(func() { l.reported++ }) }

func (l *consumer) CaughtUp(next uint64) (resume uint64, gap bool) {
	l.read(func() { l.caughtUp = append(l.caughtUp, next) })
	return 0, false
}

func (l *consumer) Connected(up bool) {
	if l.ups != nil {
		l.ups <- up
	}
}

func (l *consumer) Batch(seq uint64, b *kvevent.Batch) (resume uint64, gap bool) {
	l.mu.Lock()
	block := l.block
	l.mu.Unlock()
	if block != nil {
		<-block
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq < l.next {
		if seq == l.next-1 { // the replay begins at the last message, to identify the engine
			return 0, false
		}
		l.restarts++
		l.next = 0
	}
	if seq > l.next && (l.giveUp.IsZero() || time.Now().Before(l.giveUp)) {
		l.gaps++
		return l.next, true
	}
	l.next = seq + 1
	l.accepted = append(l.accepted, seq)
	l.seconds = append(l.seconds, b.Seconds)
	l.unknown += b.Unknown
	l.ranks[b.Rank] = true
	for _, e := range b.Events {
		l.stored += len(e.Blocks)
	}
	return 0, false
}

func (l *consumer) read(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

func (l *consumer) reached(next uint64) func() bool {
	return func() (ok bool) {
		l.read(func() { ok = l.next == next })
		return ok
	}
}

// listen runs a source until the test ends.
func listen(t *testing.T, events, replay string, change func(*kvsource.Config, *consumer)) *consumer {
	t.Helper()
	cfg := kvsource.Config{Endpoint: events, Replay: replay, RetryMin: 5 * time.Millisecond, RetryMax: 20 * time.Millisecond, Timeout: 2 * time.Second, Probe: 50 * time.Millisecond}
	l := &consumer{t: t, ranks: map[int]bool{}}
	if change != nil {
		change(&cfg, l)
	}
	var err error
	if l.Source, err = kvsource.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run source: %v", err)
		}
	})
	return l
}

// forwarder is a network connection that a test can break.
type forwarder struct {
	l     net.Listener
	to    string
	mu    sync.Mutex
	conns []net.Conn
	wg    sync.WaitGroup
}

func forward(t *testing.T, endpoint string) *forwarder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarder{l: l, to: strings.TrimPrefix(endpoint, "tcp://")}
	f.wg.Go(f.accept)
	t.Cleanup(func() { l.Close(); f.cut(); f.wg.Wait() })
	return f
}

func (f *forwarder) endpoint() string { return "tcp://" + f.l.Addr().String() }

func (f *forwarder) accept() {
	for {
		in, err := f.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", f.to)
		if err != nil {
			in.Close()
			continue
		}
		f.mu.Lock()
		f.conns = append(f.conns, in, out)
		f.mu.Unlock()
		f.wg.Go(func() { _, _ = io.Copy(in, out); in.Close() })
		f.wg.Go(func() { _, _ = io.Copy(out, in); out.Close() })
	}
}

// cut breaks all open connections.
func (f *forwarder) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		c.Close()
	}
	f.conns = nil
}
