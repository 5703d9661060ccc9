package node

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/peers"
	"github.com/stator-project/stator/kvbm/session"
	"github.com/stator-project/stator/test/testkit"
)

const testToken = "a token of sixteen characters or more"

// layout has blocks of 64 KiB.
var layout = block.Layout{Model: "m", Layers: 4, PageTokens: 16, Outer: 2, Inner: 256, DType: "float16", TPSize: 1}

// someKeys returns the keys of n blocks, and content the bytes that the block of a key has.
func someKeys(n int) (keys []block.Key) {
	space := layout.Space()
	for i := range n {
		keys = append(keys, space.Key([]byte{byte(i), byte(i >> 8)}))
	}
	return keys
}

func content(key block.Key) []byte { return bytes.Repeat(key[:], layout.Bytes()/len(key)) }

// cluster passes the addresses of nodes on to the others, as the bus does.
type cluster struct {
	mu     sync.Mutex
	nodes  map[string]*Node
	served map[string]string
}

// set notes the address of a node, and gives all nodes the addresses of the others.
func (c *cluster) set(name, address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served[name] = address
	if address == "" {
		delete(c.served, name)
	}
	for to, n := range c.nodes {
		var others []peers.Found
		for from, address := range c.served {
			if from != to {
				others = append(others, peers.Found{Node: from, Address: address})
			}
		}
		n.Found(others)
	}
}

// running is a node that serves engines until stop is called.
type running struct {
	node    *Node
	socket  string
	metrics *prometheus.Registry
	stop    func()
}

// start runs a node with a part of a list of nodes, until the test ends.
func start(t *testing.T, name, address string, peers []string, change func(*Config)) *running {
	t.Helper()
	r := &running{socket: filepath.Join(t.TempDir(), "kv.sock"), metrics: prometheus.NewRegistry()}
	cfg := Config{
		Model: "m", Socket: r.socket, HostBytes: 256 * int64(layout.Bytes()), Node: name, Peers: peers, PeerListen: address,
		PeerToken: testToken, Log: slog.New(slog.DiscardHandler), Metrics: r.metrics,
	}
	if change != nil {
		change(&cfg)
	}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.node = n
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	stopped := false
	r.stop = func() {
		cancel()
		if stopped {
			return
		}
		stopped = true
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(r.stop)
	return r
}

// engine begins a session, which ends with the test.
func (r *running) engine(t *testing.T) *session.Client {
	t.Helper()
	var c *session.Client
	testkit.Eventually(t, "the engine reaches its node", func() (ok bool) {
		var err error
		c, err = session.Dial(t.Context(), r.socket, session.User{Name: "engine", Layout: layout})
		return err == nil
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// put writes blocks as an engine does.
func put(t *testing.T, c *session.Client, keys []block.Key) {
	t.Helper()
	slots, err := c.Reserve(t.Context(), len(keys))
	if err != nil || len(slots) != len(keys) {
		t.Fatalf("%d slots: %v", len(slots), err)
	}
	for k, i := range slots {
		copy(c.Slot(i), content(keys[k]))
	}
	if err := c.Commit(t.Context(), slots, keys, 0); err != nil {
		t.Fatal(err)
	}
}

// found waits until a node finds so many blocks.
func found(t *testing.T, c *session.Client, keys []block.Key, want int) {
	t.Helper()
	testkit.Eventually(t, "the node finds the blocks", func() bool {
		blocks, _, _, err := c.Find(t.Context(), keys, 0)
		return err == nil && blocks == want
	})
}

// fetch fetches blocks, and returns how many came. Those have the right bytes.
func fetch(t *testing.T, c *session.Client, keys []block.Key) int {
	t.Helper()
	l, err := c.Fetch(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	for k, i := range l.Slots {
		if !bytes.Equal(c.Slot(i), content(keys[k])) {
			t.Errorf("block %d has other bytes", k)
		}
	}
	if err := l.Release(time.Millisecond); err != nil {
		t.Fatal(err)
	}
	return len(l.Slots)
}

// TestTwoNodes: the engine of one node writes blocks, and the engine of another one finds and loads them with the same bytes, and has
// them when the first node is gone. All nodes have one list of addresses.
func TestTwoNodes(t *testing.T) {
	list := []string{testkit.Address(t), testkit.Address(t)}
	a := start(t, "node", list[0], list, nil)
	b := start(t, "node", list[1], list, nil)
	keys := someKeys(100)
	engineA, engineB := a.engine(t), b.engine(t)
	put(t, engineA, keys[:64])
	put(t, engineA, keys[64:])

	found(t, engineB, keys, 100)
	if n := fetch(t, engineB, keys[:60]); n != 60 {
		t.Errorf("%d blocks came", n)
	}
	for name, want := range map[string]float64{
		"stator_kvstore_loaded_blocks_total peer": 60, "stator_kvstore_blocks peer": 100, "stator_kvstore_tier_healthy peer": 1,
		"stator_kvstore_peers reachable": 1, "stator_kvstore_peers unreachable": 0,
	} {
		if got := sample(t, b.metrics, name); got != want {
			t.Errorf("%s is %g and should be %g", name, got, want)
		}
	}

	_ = engineA.Close()
	a.stop()
	found(t, engineB, keys, 60)
	if n := fetch(t, engineB, keys); n != 60 {
		t.Errorf("%d blocks came after the end of the first node", n)
	}
}

// TestNodesFindEachOther: nodes without a list of addresses load blocks from the nodes that they are given, before and after the first
// engine, and lose them when the other node has ended.
func TestNodesFindEachOther(t *testing.T) {
	c := &cluster{nodes: map[string]*Node{}, served: map[string]string{}}
	served := make(chan [2]string, 9)
	join := func(name string) *running {
		r := start(t, name, "127.0.0.1:0", nil, func(cfg *Config) { cfg.Served = func(address string) { served <- [2]string{name, address} } })
		c.mu.Lock()
		defer c.mu.Unlock()
		c.nodes[name] = r.node
		return r
	}
	a, b, late := join("a"), join("b"), join("late")
	keys := someKeys(50)
	engineA, engineB := a.engine(t), b.engine(t)
	put(t, engineA, keys)
	for range 2 {
		is := <-served
		c.set(is[0], is[1])
	}
	found(t, engineB, keys, 50)
	if n := fetch(t, engineB, keys[:20]); n != 20 {
		t.Errorf("%d blocks came", n)
	}
	found(t, late.engine(t), keys, 50) // its tier opens when the others are known
	if is := <-served; is[0] != "late" {
		t.Errorf("%s serves twice", is[0])
	}

	s := b.node.Status()
	if len(s.Peers) != 1 || s.Peers[0].Node != "a" || s.Peers[0].State != peers.Usable || s.Tiers[0].Tier != "peer" || s.Store.Tier("peer").Loaded != 20 {
		t.Errorf("%+v", s)
	}
	_ = engineA.Close()
	a.stop()
	is := <-served
	if is != [2]string{"a", ""} {
		t.Errorf("%v was announced after the end of a", is)
	}
	c.set("a", "")
	if s := b.node.Status(); len(s.Peers) != 0 || s.Tiers[0].Blocks != 0 || s.Tiers[0].Health != Healthy {
		t.Errorf("%+v", s)
	}
}

// TestAnnouncedAddress: others are given the configured address, or the listener's address with its real port; if the listener is on all
// addresses, the host is the node's.
func TestAnnouncedAddress(t *testing.T) {
	for _, c := range []struct{ listen, configured, want string }{
		{"127.0.0.1:0", "", "127.0.0.1:PORT"},
		{":0", "", "127.0.0.9:PORT"},
		{"0.0.0.0:0", "", "127.0.0.9:PORT"},
		{"127.0.0.1:0", "node-a.example:7600", "node-a.example:7600"},
	} {
		served := make(chan string, 9)
		r := start(t, "a", c.listen, nil, func(cfg *Config) {
			cfg.Host = "127.0.0.9"
			cfg.PeerAddress = c.configured
			cfg.Served = func(address string) { served <- address }
		})
		r.engine(t)
		got := <-served
		_, port, _ := net.SplitHostPort(got)
		if got != strings.Replace(c.want, "PORT", port, 1) || port == "0" || r.node.Status().PeerAddress != got {
			t.Errorf("%+v: %s is announced", c, got)
		}
	}
}

// TestNodesWithoutTheSameToken: a node finds nothing at another one whose token is not its own.
func TestNodesWithoutTheSameToken(t *testing.T) {
	list := []string{testkit.Address(t), testkit.Address(t)}
	a := start(t, "a", list[0], list, nil)
	b := start(t, "b", list[1], list, func(c *Config) { c.PeerToken = "another token of many characters" })
	keys := someKeys(10)
	engineA, engineB := a.engine(t), b.engine(t)
	put(t, engineA, keys)
	testkit.Eventually(t, "the other node is refused", func() bool {
		return sample(t, a.metrics, "stator_kvstore_peer_connections_refused_total") > 0
	})
	found(t, engineB, keys, 0)
	if n := sample(t, b.metrics, "stator_kvstore_peers reachable"); n != 0 {
		t.Errorf("%g nodes are reachable", n)
	}
}

// TestPeerAddressInUse: engines get the error of a node that cannot listen, until it can.
func TestPeerAddressInUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	a := start(t, "a", ln.Addr().String(), nil, nil)
	testkit.Eventually(t, "the engine gets the error", func() bool {
		_, err := session.Dial(t.Context(), a.socket, session.User{Name: "engine", Layout: layout})
		return err != nil && strings.Contains(err.Error(), "address already in use")
	})
	_ = ln.Close()
	put(t, a.engine(t), someKeys(1))
}

// sample returns the figure with a name and, after a space, the value of a label beside the model's.
func sample(t *testing.T, r *prometheus.Registry, want string) float64 {
	t.Helper()
	name, label, _ := strings.Cut(want, " ")
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			is := label == ""
			for _, l := range m.GetLabel() {
				is = is || l.GetValue() == label
			}
			if f.GetName() == name && is {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return -1
}
