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

	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/workeragent/engine/enginesim"
)

// The library's PUB socket, which plays an odd engine here, leaves its writer behind when
// it is closed.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
}

// letters is a model whose tokens are bytes.
type letters struct{}

func (letters) ContextLength() int { return 4096 }
func (letters) VocabSize() int     { return 256 }

func (letters) AppendDecode(dst []byte, ids ...uint32) []byte {
	for _, id := range ids {
		dst = append(dst, 'a'+byte(id%26))
	}
	return dst
}

func (letters) Prepare(req *openai.Request, dst *prompt.Prompt) error {
	dst.Tokens = dst.Tokens[:0]
	for _, c := range []byte(req.Prompts[0].Text) {
		dst.Tokens = append(dst.Tokens, uint32(c))
	}
	return nil
}

// startSim runs a simulated engine on the given endpoints until stop is called or the test ends.
func startSim(t *testing.T, events, replay string, change func(*enginesim.Config)) (sim *enginesim.Sim, stop func()) {
	t.Helper()
	cfg := enginesim.Config{
		ModelName: "tiny", Model: letters{}, Vocabulary: letters{}, Events: events, Replay: replay,
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
	until(t, "the simulated engine is ready", func() bool {
		resp, err := http.Get("http://" + sim.Addr() + "/health")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
	return sim, stop
}

// ask makes the engine compute a prompt, which makes at least one event where it is new.
func ask(t *testing.T, sim *enginesim.Sim, text string) {
	t.Helper()
	cachedTokens(t, sim, text)
}

// cachedTokens asks, and returns how much of the prompt the engine had cached.
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

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// listener is the apply side: it wants every number from 0 on, and says so.
type listener struct {
	*kvsource.Source
	t *testing.T

	mu       sync.Mutex
	next     uint64
	accepted []uint64
	stored   int // blocks
	restarts int
	gaps     int
	unknown  int
	ranks    map[int]bool
	giveUp   time.Time       // gaps are taken from here on
	block    <-chan struct{} // apply waits for it
}

func (l *listener) apply(seq uint64, b *kvevent.Batch) (resume uint64, gap bool) {
	l.mu.Lock()
	block := l.block
	l.mu.Unlock()
	if block != nil {
		<-block
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq < l.next {
		if seq == l.next-1 { // what it asked for to see that the engine is the same
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
	l.unknown += b.Unknown
	l.ranks[b.Rank] = true
	for _, e := range b.Events {
		l.stored += len(e.Blocks)
	}
	return 0, false
}

func (l *listener) read(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

func (l *listener) reached(next uint64) func() bool {
	return func() (ok bool) {
		l.read(func() { ok = l.next == next })
		return ok
	}
}

// listen runs a source until the test ends.
func listen(t *testing.T, events, replay string, change func(*kvsource.Config, *listener)) *listener {
	t.Helper()
	cfg := kvsource.Config{Endpoint: events, Replay: replay, RetryMin: 5 * time.Millisecond, RetryMax: 20 * time.Millisecond, Timeout: 2 * time.Second, Probe: 50 * time.Millisecond}
	l := &listener{t: t, ranks: map[int]bool{}}
	if change != nil {
		change(&cfg, l)
	}
	var err error
	if l.Source, err = kvsource.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx, l.apply) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run source: %v", err)
		}
	})
	return l
}

// forwarder is a network that can be cut.
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

// cut breaks every connection there is.
func (f *forwarder) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		c.Close()
	}
	f.conns = nil
}
