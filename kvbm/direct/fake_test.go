package direct

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm"
	"github.com/stator-project/stator/kvbm/host"
	"github.com/stator-project/stator/kvbm/stream"
	"github.com/stator-project/stator/nixl/transfer"
	"github.com/stator-project/stator/nixl/wire"
	"github.com/stator-project/stator/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const token = "a token of sixteen characters or more"

// layout has blocks of 8 KiB.
var layout = block.Layout{Model: "m", Layers: 2, PageTokens: 16, Outer: 2, Inner: 64, DType: "float16", TPSize: 1}

// network connects fake helpers: the arenas by the names of agents.
type network struct {
	mu     sync.Mutex
	last   int
	agents map[string]*host.Arena
}

// fake is a helper that copies within this process. behave decides the outcome of a transfer.
type fake struct {
	net     *network
	arena   *host.Arena
	started func([]byte)
	// behave is asked before each transfer; nil is a copy.
	behave func(f *fake, t transfer.Transfer) error

	mu       sync.Mutex
	agent    string // empty while it starts
	peers    map[string]bool
	removed  []string
	died     []string
	fences   int
	restarts int
	stuck    []func() // end the transfers that were given up
	closed   bool
}

func startFake(n *network, cfg transfer.Config, behave func(f *fake, t transfer.Transfer) error, arena *host.Arena) *fake {
	f := &fake{net: n, arena: arena, started: cfg.Started, behave: behave}
	f.restart()
	return f
}

// restart has the helper run another agent.
func (f *fake) restart() {
	f.net.mu.Lock()
	f.net.last++
	name := fmt.Sprintf("agent-%d", f.net.last)
	f.mu.Lock()
	delete(f.net.agents, f.agent)
	f.net.agents[name] = f.arena
	f.agent = name
	f.peers = map[string]bool{}
	f.mu.Unlock()
	f.net.mu.Unlock()
	f.started(nil)
}

func (f *fake) Endpoint() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	text, _ := json.Marshal(&wire.Endpoint{
		Version: wire.EndpointVersion, Agent: f.agent, Layout: layout, Slots: f.arena.Slots(), Stride: host.Stride(layout.Bytes()), Base: 1 << 30,
		Metadata: []byte("m"),
	})
	return text
}

func (f *fake) AddPeer(_ context.Context, endpoint []byte) (string, error) {
	e, err := wire.ParseEndpoint(endpoint)
	if err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peers[e.Agent] = true
	return e.Agent, nil
}

func (f *fake) RemovePeer(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.peers[name] {
		return transfer.ErrNoPeer
	}
	delete(f.peers, name)
	f.removed = append(f.removed, name)
	return nil
}

// PeerDied ends the transfers that were given up.
func (f *fake) PeerDied(_ context.Context, name string) error {
	f.mu.Lock()
	f.died = append(f.died, name)
	delete(f.peers, name)
	stuck := f.stuck
	f.stuck = nil
	f.mu.Unlock()
	for _, end := range stuck {
		end()
	}
	return nil
}

func (f *fake) Fence() {
	f.mu.Lock()
	f.fences++
	f.restarts++
	stuck := f.stuck
	f.stuck = nil
	f.mu.Unlock()
	for _, end := range stuck {
		end()
	}
	f.restart()
}

func (f *fake) PID() int { return 1 }

func (f *fake) Restarts() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.restarts
}

func (f *fake) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
}

// Transfer copies blocks, or does what behave decides.
func (f *fake) Transfer(ctx context.Context, t transfer.Transfer) error {
	f.mu.Lock()
	known, closed := f.peers[t.Peer], f.closed
	f.mu.Unlock()
	switch {
	case closed:
		return transfer.ErrEnded
	case !known:
		return transfer.ErrNoPeer
	}
	if f.behave != nil {
		if err := f.behave(f, t); err != nil {
			return err
		}
	}
	return f.copy(t)
}

func (f *fake) copy(t transfer.Transfer) error {
	f.net.mu.Lock()
	from := f.net.agents[t.Peer]
	f.net.mu.Unlock()
	if from == nil {
		return fmt.Errorf("%w: the agent %s is gone", transfer.ErrBackend, t.Peer)
	}
	for i, slot := range t.Remote {
		copy(f.arena.Slot(int(t.Local[i])), from.Slot(int(slot)))
	}
	return nil
}

// lateWrites gives a transfer up for a reason, and writes to its slots until the child is fenced, or the peer is dead.
func (f *fake) lateWrites(t transfer.Transfer, because error) error {
	safe, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(safe)
		for {
			for _, slot := range t.Local {
				clear(f.arena.Slot(int(slot)))
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stuck = append(f.stuck, func() { close(stop); <-safe })
	return &transfer.Failure{Err: because, Slots: t.Local, Safe: safe}
}

// node is a store with its copies by NIXL.
type node struct {
	*Direct
	arena   *host.Arena
	store   *kvbm.Store
	helper  *fake // nil before it runs
	address string
}

// newNode returns a node that runs until the test ends.
func newNode(t *testing.T, n *network, slots int, change func(c *Config), behave func(f *fake, t transfer.Transfer) error) *node {
	t.Helper()
	arena, err := host.New(host.Config{Slots: slots, SlotBytes: layout.Bytes(), NoHugePages: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = arena.Close() })
	x := &node{arena: arena}
	x.store, err = kvbm.New(kvbm.Config{Layout: layout, Memory: arena})
	if err != nil {
		t.Fatal(err)
	}

	file := filepath.Join(t.TempDir(), "libnixl_capi.so")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{}, 16)
	cfg := Config{
		Program: file, Library: file, Layout: layout, Arena: arena,
		start: func(_ context.Context, cfg transfer.Config) (helper, error) {
			x.helper = startFake(n, cfg, behave, arena)
			started <- struct{}{}
			return x.helper, nil
		},
	}
	if change != nil {
		change(&cfg)
	}
	x.Direct = New(cfg)
	x.run(t, func(ctx context.Context) { x.Run(ctx) })
	testkit.Eventually(t, "the helper runs, or has failed", func() bool {
		_, _, err := x.running()
		return err == nil || !errors.Is(err, errStarting)
	})
	return x
}

// run runs a function until the test ends.
func (x *node) run(t *testing.T, do func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { do(ctx) })
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
}

// serve serves the node to others. Without calls it is one of a release that has none.
func (x *node) serve(t *testing.T, calls bool) {
	t.Helper()
	cfg := stream.ServerConfig{Token: token, Node: "server", Layout: layout, Source: source{x.store}}
	if calls {
		cfg.Calls = x.Serve(x.store)
	}
	server, err := stream.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x.address = ln.Addr().String()
	x.run(t, func(ctx context.Context) { _ = server.Serve(ctx, ln) })
}

// source sends the blocks of a store by the stream.
type source struct{ *kvbm.Store }

func (s source) Acquire(keys []block.Key) (blocks []stream.Block, release func()) {
	data, release := s.Store.Acquire(keys)
	for _, d := range data {
		blocks = append(blocks, stream.Block{Data: d, Sum: block.Sum(d)})
	}
	return blocks, release
}

// peer returns this node's peer for another node, until the test ends.
func (x *node) peer(t *testing.T, other *node) *Peer {
	t.Helper()
	client, err := stream.NewClient(stream.ClientConfig{
		Token: token, Node: "client", Layout: layout,
		Dial: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", other.address)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	p := x.Peer("peer", client)
	t.Cleanup(func() {
		p.Close()
		client.Close()
	})
	return p
}

func someKeys(n int) (keys []block.Key) {
	for i := range n {
		keys = append(keys, layout.Space().Key([]byte{byte(i), byte(i >> 8)}))
	}
	return keys
}

func content(key block.Key) []byte { return bytes.Repeat(key[:], layout.Bytes()/len(key)) }

// put commits blocks as an engine does.
func (x *node) put(t *testing.T, keys []block.Key) {
	t.Helper()
	slots, err := x.store.Reserve(len(keys))
	if err != nil {
		t.Fatal(err)
	}
	for k, i := range slots {
		copy(x.arena.Slot(i), content(keys[k]))
	}
	if err := x.store.Commit(slots, keys, 0); err != nil {
		t.Fatal(err)
	}
}

// slots returns the first n slots of the arena, empty.
func (x *node) slots(n int) (dst [][]byte) {
	for i := range n {
		clear(x.arena.Slot(i))
		dst = append(dst, x.arena.Slot(i))
	}
	return dst
}

// fetchAll fetches blocks, which all have to come with the right bytes.
func (x *node) fetchAll(t *testing.T, p *Peer, keys []block.Key) {
	t.Helper()
	dst := x.slots(len(keys))
	check(t, keys, dst, p.Fetch(t.Context(), keys, dst))
}

// check checks that all blocks have come.
func check(t *testing.T, keys []block.Key, dst [][]byte, results []stream.Result) {
	t.Helper()
	for i, r := range results {
		if r.Err != nil || !bytes.Equal(dst[i], content(keys[i])) {
			t.Fatalf("block %d: %+v", i, r)
		}
	}
}

// logged is a logger whose text a test reads.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logged) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.text.Bytes(), []byte(part))
}
