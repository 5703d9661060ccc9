package bus_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/test/testkit"
)

// seenStores collects the stores that a watch receives.
type seenStores struct {
	mu    sync.Mutex
	nodes map[string][]bus.KVStore
}

func (s *seenStores) apply(x bus.KVStores) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(x.Stores) == 0 {
		delete(s.nodes, x.Node)
		return
	}
	s.nodes[x.Node] = x.Stores
}

func (s *seenStores) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(s.nodes)
}

// watchStores returns the stores that a member of the bus receives.
func watchStores(t *testing.T, b *bus.Bus) *seenStores {
	t.Helper()
	seen := &seenStores{nodes: map[string][]bus.KVStore{}}
	running(t, func(ctx context.Context) error { return b.WatchKVStores(ctx, seen.apply) })
	return seen
}

// storeOf returns the list of a node with one store.
func storeOf(node, address string) bus.KVStores {
	return bus.KVStores{Node: node, Stores: []bus.KVStore{{Model: "m", Address: address}}}
}

// waitFor waits until stores are as wanted.
func (s *seenStores) waitFor(t *testing.T, want string) {
	t.Helper()
	testkit.Eventually(t, "the stores are "+want, func() bool { return s.String() == want })
}

// TestKVStores: a watch receives the stores of nodes and their changes. If an agent stops, its stores are removed at once. If it
// does not publish any more, they are removed after a lifetime.
func TestKVStores(t *testing.T) {
	server := testkit.Server(t)
	b := testkit.JoinBus(t, bus.Config{Embedded: server})
	seen := watchStores(t, b)
	// For this watch no store ends because its agent does not publish.
	patient := watchStores(t, testkit.JoinBus(t, bus.Config{Embedded: server, LeaseTTL: time.Hour}))

	var mu sync.Mutex
	mine := bus.KVStores{Node: "a"}
	changed := make(chan struct{}, 1)
	set := func(s bus.KVStores) {
		mu.Lock()
		defer mu.Unlock()
		mine = s
		changed <- struct{}{}
	}
	stop := running(t, func(ctx context.Context) error {
		return b.HoldKVStores(ctx, func() bus.KVStores { mu.Lock(); defer mu.Unlock(); return mine }, changed)
	})
	set(storeOf("a", "10.0.0.1:7600"))
	seen.waitFor(t, "map[a:[{m 10.0.0.1:7600}]]")
	set(storeOf("a", "node-a.example:7600"))
	seen.waitFor(t, "map[a:[{m node-a.example:7600}]]")
	set(bus.KVStores{Node: "a"})
	seen.waitFor(t, "map[]")
	set(storeOf("a", "10.0.0.1:7600"))

	// The other agent's connection ends, so it can remove nothing.
	other := testkit.JoinBus(t, bus.Config{Embedded: server})
	die := running(t, func(ctx context.Context) error {
		return other.HoldKVStores(ctx, func() bus.KVStores { return storeOf("", "[fd00::1]:7600") }, nil)
	})
	seen.waitFor(t, "map[:[{m [fd00::1]:7600}] a:[{m 10.0.0.1:7600}]]")
	time.Sleep(3 * testkit.LeaseTTL / 2)
	seen.waitFor(t, "map[:[{m [fd00::1]:7600}] a:[{m 10.0.0.1:7600}]]") // both were published again
	other.Close()
	die()
	seen.waitFor(t, "map[a:[{m 10.0.0.1:7600}]]")

	patient.waitFor(t, "map[:[{m [fd00::1]:7600}] a:[{m 10.0.0.1:7600}]]")
	stop()
	patient.waitFor(t, "map[:[{m [fd00::1]:7600}]]")
	seen.waitFor(t, "map[]")
}

// TestKVStoresOutliveTheBus: while the server is away all stores stay. A server that comes back empty has them again.
func TestKVStoresOutliveTheBus(t *testing.T) {
	port := testkit.Port(t)
	e := embed(t, port)
	seen := watchStores(t, connect(t, e.URL()))
	holder := connect(t, e.URL())
	running(t, func(ctx context.Context) error {
		return holder.HoldKVStores(ctx, func() bus.KVStores { return storeOf("a", "10.0.0.1:7600") }, nil)
	})
	const want = "map[a:[{m 10.0.0.1:7600}]]"
	seen.waitFor(t, want)

	e.Close()
	time.Sleep(2 * testkit.LeaseTTL)
	if got := seen.String(); got != want {
		t.Errorf("the loss of the bus leaves %s", got)
	}
	e = embed(t, port)
	defer e.Close()
	late := watchStores(t, connect(t, e.URL()))
	late.waitFor(t, want)
	time.Sleep(3 * testkit.LeaseTTL / 2)
	seen.waitFor(t, want)
}

// TestHostileKVStores: messages that no agent sends are counted and change nothing, and the number of nodes is bounded.
func TestHostileKVStores(t *testing.T) {
	server := embed(t, -1)
	defer server.Close()
	metrics := prometheus.NewRegistry()
	seen := watchStores(t, testkit.JoinBus(t, bus.Config{URL: server.URL(), Metrics: metrics, LeaseTTL: time.Minute}))
	nc, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	store := func(model, address string) *busv1.KVStore { return &busv1.KVStore{Model: model, Address: address} }
	send := func(node string, m *busv1.KVStores) {
		t.Helper()
		data, err := proto.Marshal(m)
		if err == nil {
			err = nc.Publish("stator.v1.test.kvstore."+node, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	good := &busv1.KVStores{Node: "a", Stores: []*busv1.KVStore{store("m", "10.0.0.1:1")}}
	testkit.Eventually(t, "the watch has begun", func() bool {
		send("a", good)
		return seen.String() == "map[a:[{m 10.0.0.1:1}]]"
	})

	tooMany := &busv1.KVStores{Node: "b"}
	for i := range 257 {
		tooMany.Stores = append(tooMany.Stores, store(fmt.Sprint(i), "10.0.0.1:1"))
	}
	bad := []*busv1.KVStores{
		good, tooMany, {Node: "B"}, {Node: "b", Stores: []*busv1.KVStore{store("", "10.0.0.1:1")}},
		{Node: "b", Stores: []*busv1.KVStore{store("m", "10.0.0.1:1"), store("m", "10.0.0.2:1")}},
	}
	long := string(make([]byte, 300)) + ":1"
	for _, address := range []string{"", "10.0.0.1", "10.0.0.1:0", ":7600", "0.0.0.0:7600", "[::]:7600", "224.0.0.1:7600", "[fe80::1%x]:7600",
		"a b:1", "name:70000", long} {
		bad = append(bad, &busv1.KVStores{Node: "b", Stores: []*busv1.KVStore{store("m", address)}})
	}
	for _, m := range bad {
		send("b", m)
	}
	if err := nc.Publish("stator.v1.test.kvstore.b", []byte(`{"node": "b"}`)); err != nil {
		t.Fatal(err)
	}
	refused := func() int { return int(countOf(t, metrics, "stator_bus_unreadable_messages_total", "kv_stores")) }
	testkit.Eventually(t, "all are refused", func() bool { return refused() == len(bad)+1 })

	seen.waitFor(t, "map[a:[{m 10.0.0.1:1}]]")
	for i := range 4200 {
		send(fmt.Sprintf("n%d", i), &busv1.KVStores{Node: fmt.Sprintf("n%d", i), Stores: good.Stores})
	}
	testkit.Eventually(t, "those above the bound are refused", func() bool { return refused() > len(bad)+1 })
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if n := len(seen.nodes); n > 4096 {
		t.Errorf("there are %d nodes", n)
	}
}
