package peers

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm"
	"github.com/stator-project/stator/kvbm/stream"
	"github.com/stator-project/stator/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const token = "a token of sixteen characters or more"

// layout has blocks of 64 KiB.
var layout = block.Layout{Model: "m", Layers: 4, PageTokens: 16, Outer: 2, Inner: 256, DType: "float16", TPSize: 1}

// heap is host memory of a test.
type heap [][]byte

func newHeap(slots int) heap {
	h := make(heap, slots)
	for i := range h {
		h[i] = make([]byte, layout.Bytes())
	}
	return h
}

func (h heap) Slots() int        { return len(h) }
func (h heap) Slot(i int) []byte { return h[i] }

// content returns the bytes that the block of a key has.
func content(key block.Key) []byte { return bytes.Repeat(key[:], layout.Bytes()/len(key)) }

// newStore returns a store with room for so many blocks.
func newStore(t *testing.T, slots int, tiers ...kvbm.Tier) (*kvbm.Store, heap) {
	t.Helper()
	memory := newHeap(slots)
	s, err := kvbm.New(kvbm.Config{Layout: layout, Memory: memory, Tiers: tiers})
	if err != nil {
		t.Fatal(err)
	}
	return s, memory
}

// put commits blocks as an engine does.
func put(t *testing.T, s *kvbm.Store, memory heap, keys []block.Key) {
	t.Helper()
	slots, err := s.Reserve(len(keys))
	if err != nil {
		t.Fatal(err)
	}
	for k, i := range slots {
		copy(memory[i], content(keys[k]))
	}
	if err := s.Commit(slots, keys, 0); err != nil {
		t.Fatal(err)
	}
}

// serve serves a store at an address until stop is called, or the test ends.
func serve(t *testing.T, s *kvbm.Store, node string) (address string, stop func()) {
	t.Helper()
	source := NewSource(s)
	server, err := stream.NewServer(stream.ServerConfig{Token: token, Node: node, Layout: layout, Source: source, Summary: source.Summary})
	if err != nil {
		t.Fatal(err)
	}
	return serveWith(t, server)
}

// serveWith runs a server until stop is called, or the test ends.
func serveWith(t *testing.T, server *stream.Server) (address string, stop func()) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { _ = server.Serve(ctx, ln) })
	stop = func() {
		cancel()
		run.Wait()
	}
	t.Cleanup(stop)
	return ln.Addr().String(), stop
}

// follow runs peers until the test ends.
func follow(t *testing.T, change func(*Config), addresses ...string) *Peers {
	t.Helper()
	cfg := Config{Addresses: addresses, Token: token, Node: "fetcher", Layout: layout, Every: 10 * time.Millisecond}
	if change != nil {
		change(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { p.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		run.Wait()
	})
	return p
}

// relay passes connections on to an address. Where left is 0, no byte comes from there any more: a connection freezes, or ends if cut
// is set.
type relay struct {
	left atomic.Int64
	cut  atomic.Bool
}

// start returns the relay's address. It ends with the test.
func (r *relay) start(t *testing.T, to string) string {
	t.Helper()
	r.left.Store(1 << 40)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			run.Go(func() { r.pass(ctx, in, to) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = ln.Close()
		run.Wait()
	})
	return ln.Addr().String()
}

func (r *relay) pass(ctx context.Context, in net.Conn, to string) {
	defer func() { _ = in.Close() }()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	stop := context.AfterFunc(ctx, func() {
		_ = in.Close()
		_ = out.Close()
	})
	defer stop()

	var up sync.WaitGroup
	defer up.Wait()
	up.Go(func() {
		_, _ = io.Copy(out, in)
		_ = out.Close()
	})
	b := make([]byte, 16<<10)
	for {
		n, err := out.Read(b)
		if err != nil {
			_ = in.Close()
			return
		}
		if r.left.Add(int64(-n)) < 0 {
			if !r.cut.Load() {
				continue // these bytes are lost, as are all that follow
			}
			_ = in.Close()
			return
		}
		if _, err := in.Write(b[:n]); err != nil {
			return
		}
	}
}

func slots(n int) (dst [][]byte) {
	for range n {
		dst = append(dst, make([]byte, layout.Bytes()))
	}
	return dst
}

// has waits until peers have so many of the first blocks.
func has(t *testing.T, p *Peers, keys []block.Key, n int) {
	t.Helper()
	testkit.Eventually(t, "peers have the blocks", func() bool { return p.Match(keys) == n })
}

// checkLoad loads blocks, and returns how many came. Those have the right bytes.
func checkLoad(t *testing.T, p *Peers, timeout time.Duration, keys []block.Key) (came int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	dst := slots(len(keys))
	for i, err := range p.Load(ctx, keys, dst) {
		if err != nil {
			continue
		}
		came++
		if !bytes.Equal(dst[i], content(keys[i])) {
			t.Errorf("block %d has other bytes", i)
		}
	}
	return came
}

// TestStoreLoadsFromPeer: a store finds and fetches what another one has in host memory, and has it then itself.
func TestStoreLoadsFromPeer(t *testing.T) {
	keys := someKeys(0, 100)
	a, memory := newStore(t, 128)
	put(t, a, memory, keys)
	address, _ := serve(t, a, "a")
	p := follow(t, nil, address)
	b, memory := newStore(t, 128, kvbm.Tier{Name: "peer", Backend: p, Write: kvbm.WriteNever})
	has(t, p, keys, 100)

	if f := b.Find(keys, 0, nil); f.Blocks != 100 || f.On[1] != 100 {
		t.Errorf("found %+v", f)
	}
	l := b.Fetch(t.Context(), keys)
	defer l.Release()
	for k, i := range l.Slots {
		if !bytes.Equal(memory[i], content(keys[k])) {
			t.Errorf("block %d has other bytes", k)
		}
	}
	st := b.Stats()
	if len(l.Slots) != 100 || st.Tier("peer").Loaded != 100 {
		t.Errorf("%d blocks came; %+v", len(l.Slots), st)
	}
	testkit.Eventually(t, "the peer's blocks are released", func() bool { return a.Stats().Slots.Active == 0 })

	// Blocks that are written later are found too.
	more := someKeys(1000, 5)
	slots, _ := a.Reserve(5)
	if err := a.Commit(slots, more, 0); err != nil {
		t.Fatal(err)
	}
	has(t, p, more, 5)
	if s := p.Stats(); s != (Stats{Peers: 1, Reachable: 1, Blocks: 105}) {
		t.Errorf("%+v", s)
	}
}

// TestMostOfThePrefix: blocks come from the peer that has most of them, and the blocks that it has no more from the other one.
func TestMostOfThePrefix(t *testing.T) {
	keys := someKeys(0, 40)
	a, memoryA := newStore(t, 64)
	put(t, a, memoryA, keys)
	b, memoryB := newStore(t, 64)
	put(t, b, memoryB, keys[:30])
	addressA, _ := serve(t, a, "a")
	addressB, _ := serve(t, b, "b")
	p := follow(t, func(c *Config) { c.Every = time.Hour }, addressB, addressA)
	has(t, p, keys, 40)
	testkit.Eventually(t, "both have answered", func() bool { return p.Stats().Reachable == 2 })
	if n := checkLoad(t, p, 10*time.Second, keys); n != 40 || p.Stats().Missing != 0 {
		t.Errorf("%d blocks came; %+v", n, p.Stats())
	}
	testkit.Eventually(t, "the second peer's blocks are released", func() bool { return b.Stats().Slots.Active == 0 })

	// The first one loses all, which no summary reports for an hour.
	if _, err := a.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := checkLoad(t, p, 10*time.Second, keys); n != 30 || p.Stats().Missing != 40 || p.Match(keys) != 30 {
		t.Errorf("%d blocks came, %d are there; %+v", n, p.Match(keys), p.Stats())
	}
	if n := checkLoad(t, p, 10*time.Second, keys); n != 30 || p.Stats().Missing != 40 {
		t.Errorf("a block that is missing was asked for again: %d came, %+v", n, p.Stats())
	}
}

// TestPeerFailsInTransfer: a peer ends or freezes in the middle of a transfer. The rest comes from another peer before the deadline. The
// one that failed is not used then.
func TestPeerFailsInTransfer(t *testing.T) {
	for name, cut := range map[string]bool{"ends": true, "freezes": false} {
		t.Run(name, func(t *testing.T) {
			keys := someKeys(0, 40)
			a, memoryA := newStore(t, 64)
			put(t, a, memoryA, keys)
			b, memoryB := newStore(t, 64)
			put(t, b, memoryB, keys)
			addressA, _ := serve(t, a, "a")
			addressB, _ := serve(t, b, "b")
			var r relay
			p := follow(t, func(c *Config) { c.Every = time.Hour }, r.start(t, addressA), addressB)
			testkit.Eventually(t, "both have answered", func() bool { return p.Stats().Reachable == 2 })

			r.cut.Store(cut)
			r.left.Store(20 * int64(layout.Bytes()))
			if n := checkLoad(t, p, 8*time.Second, keys); n != 40 {
				t.Errorf("%d blocks came; %+v", n, p.Stats())
			}
			if s := p.Stats(); s.Failed != 1 || s.Reachable != 1 {
				t.Errorf("the peer is still used: %+v", s)
			}
		})
	}
}

// TestPeerIsGone: after its end a peer has nothing. When it is back, its blocks are found again.
func TestPeerIsGone(t *testing.T) {
	keys := someKeys(0, 20)
	a, memory := newStore(t, 64)
	put(t, a, memory, keys)
	address, stop := serve(t, a, "a")
	var log bytes.Buffer
	var mu sync.Mutex
	var r relay
	p := follow(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(locked{&mu, &log}, nil)) }, r.start(t, address))
	has(t, p, keys, 20)

	r.cut.Store(true)
	r.left.Store(5 * int64(layout.Bytes()))
	if n := checkLoad(t, p, 5*time.Second, keys); n > 5 {
		t.Errorf("%d blocks came", n)
	}
	logged := func(text string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Count(log.String(), text) == 1
		}
	}
	testkit.Eventually(t, "the failure is logged once", logged("no blocks are fetched from a peer"))
	if n := checkLoad(t, p, 5*time.Second, keys); n != 0 || p.Stats().Reachable != 0 {
		t.Errorf("%d blocks came; %+v", n, p.Stats())
	}

	r.left.Store(1 << 40)
	has(t, p, keys, 20)
	if n := checkLoad(t, p, 5*time.Second, keys); n != 20 {
		t.Errorf("%d blocks came after the peer was back", n)
	}
	testkit.Eventually(t, "the return is logged once", logged("from the peer again"))
	stop()
	has(t, p, keys, 0)
}

// locked is a writer for several goroutines.
type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// TestRefused: a peer with another layout or token has nothing, and the log has the reason. This node itself is no peer.
func TestRefused(t *testing.T) {
	a, memory := newStore(t, 8)
	keys := someKeys(0, 4)
	put(t, a, memory, keys)
	address, _ := serve(t, a, "a")
	for want, change := range map[string]func(*Config){
		"pageTokens is 16 here and 32 there": func(c *Config) { c.Layout.PageTokens = 32 },
		"give both nodes the same token":     func(c *Config) { c.Token = "another token with enough characters" },
	} {
		var log bytes.Buffer
		var mu sync.Mutex
		p := follow(t, func(c *Config) {
			change(c)
			c.Log = slog.New(slog.NewTextHandler(locked{&mu, &log}, nil))
		}, address)
		testkit.Eventually(t, "the log has "+want, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(log.String(), want)
		})
		if p.Match(keys) != 0 || p.Has(keys[0]) || p.Stats().Reachable != 0 {
			t.Errorf("a peer that refuses has blocks: %+v", p.Stats())
		}
		if errs := p.Load(t.Context(), keys[:1], slots(1)); !errors.Is(errs[0], ErrNowhere) {
			t.Error(errs)
		}
	}

	p := follow(t, func(c *Config) { c.Node = "a" }, address)
	testkit.Eventually(t, "the node has found itself", func() bool { return p.Stats().Peers == 0 })
	if p.Match(keys) != 0 {
		t.Error("a node is its own peer")
	}
}

// TestTooManyPeers refuses more peers than there may be, and a write.
func TestTooManyPeers(t *testing.T) {
	if _, err := New(Config{Addresses: make([]string, Most+1), Token: token, Node: "a", Layout: layout}); err == nil {
		t.Error("there is no bound")
	}
	if _, err := New(Config{Addresses: []string{"a:1"}, Token: "short", Node: "a", Layout: layout}); err == nil {
		t.Error("a short token is accepted")
	}
	p, err := New(Config{Token: token, Node: "a", Layout: layout})
	if err != nil || p.Store(t.Context(), block.Key{}, nil, 0) == nil {
		t.Error("a peer was written to")
	}
}

// TestAbsentIsBounded: blocks that a peer did not send are remembered up to a bound.
func TestAbsentIsBounded(t *testing.T) {
	x := newPeer("a", nil, &counts{})
	for _, key := range someKeys(0, 3*mostAbsent) {
		x.lacks(key)
	}
	if n := len(x.absent); n == 0 || n > mostAbsent {
		t.Errorf("%d blocks are remembered", n)
	}
}

// otherWay counts its calls, and passes them on to the client.
type otherWay struct {
	*stream.Client
	fetches, closed atomic.Int64
}

func (o *otherWay) Fetch(ctx context.Context, keys []block.Key, dst [][]byte) []stream.Result {
	o.fetches.Add(1)
	return o.Client.Fetch(ctx, keys, dst)
}

func (o *otherWay) Close() { o.closed.Add(1) }

// TestAnotherWay: blocks of a peer are fetched by what Config.Direct returns for it, until the peer is not used any more.
func TestAnotherWay(t *testing.T) {
	store, memory := newStore(t, 16)
	keys := []block.Key{{1}, {2}, {3}}
	put(t, store, memory, keys)
	address, _ := serve(t, store, "server")
	way := &otherWay{}
	t.Cleanup(func() { // after the clean-up of follow
		if way.closed.Load() != 1 {
			t.Errorf("closed %d times", way.closed.Load())
		}
	})
	p := follow(t, func(c *Config) {
		c.Direct = func(at string, client *stream.Client) Direct {
			if at != address {
				t.Errorf("a peer at %s", at)
			}
			way.Client = client
			return way
		}
	}, address)
	testkit.Eventually(t, "the peer has the blocks", func() bool { return p.Match(keys) == 3 })
	dst := newHeap(3)
	for i, err := range p.Load(t.Context(), keys, dst) {
		if err != nil || !bytes.Equal(dst[i], content(keys[i])) {
			t.Errorf("block %d: %v", i, err)
		}
	}
	if n := way.fetches.Load(); n != 1 {
		t.Errorf("%d fetches", n)
	}
}
