package bus_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/test/testkit"
)

// partsOf returns the parts that a member of the bus receives, as text.
func partsOf(t *testing.T, b *bus.Bus) func() string {
	t.Helper()
	var p bus.Parts
	running(t, func(ctx context.Context) error {
		b.WatchParts(ctx, &p)
		return nil
	})
	return func() string {
		var all []string
		for _, kind := range bus.PartKinds {
			if names, _ := p.Names(kind, time.Now()); len(names) > 0 {
				all = append(all, fmt.Sprint(kind, names))
			}
		}
		return strings.Join(all, " ")
	}
}

// hold publishes a part of a process.
func hold(t *testing.T, b *bus.Bus, kind bus.PartKind, node string) (stop func()) {
	return running(t, func(ctx context.Context) error { return b.HoldPart(ctx, kind, node) })
}

// TestParts: parts are there while they publish. One that ends is gone at once, and one that dies after a lifetime.
func TestParts(t *testing.T) {
	server := testkit.Server(t)
	b := testkit.JoinBus(t, bus.Config{Embedded: server})
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	got := partsOf(t, b)
	await := func(want string) {
		t.Helper()
		want = strings.ReplaceAll(want, "HOST", host)
		testkit.Eventually(t, want, func() bool { return got() == want })
	}

	hold(t, b, bus.PartRouter, "")
	stop := hold(t, b, bus.PartPlanner, "")
	other := testkit.JoinBus(t, bus.Config{Embedded: server})
	die := hold(t, other, bus.PartRouter, "")
	hold(t, b, bus.PartStore, "gpu-1")
	hold(t, other, bus.PartStore, "gpu-2")
	await("router[HOST HOST] planner[HOST] kv_store[gpu-1 gpu-2]")
	stop()
	await("router[HOST HOST] kv_store[gpu-1 gpu-2]")
	other.Close() // so that it publishes no end
	die()
	await("router[HOST] kv_store[gpu-1]")
}

// TestPartsAreSettled: a watch knows all parts only after a lifetime. No part expires while the server is away.
func TestPartsAreSettled(t *testing.T) {
	port := testkit.Port(t)
	e := embed(t, port)
	b := connect(t, e.URL())
	var p bus.Parts
	if _, settled := p.Names(bus.PartRouter, time.Now()); settled {
		t.Error("parts are settled without a watch")
	}
	running(t, func(ctx context.Context) error {
		b.WatchParts(ctx, &p)
		return nil
	})
	hold(t, b, bus.PartRouter, "")
	state := func() (parts int, settled bool) {
		names, settled := p.Names(bus.PartRouter, time.Now())
		return len(names), settled
	}
	testkit.Eventually(t, "the part is there, and the watch is settled", func() bool {
		n, settled := state()
		return n == 1 && settled
	})

	e.Close()
	time.Sleep(2 * testkit.LeaseTTL)
	if n, _ := state(); n != 1 {
		t.Error("the part has expired while the bus is away")
	}
	e = embed(t, port)
	defer e.Close()
	time.Sleep(3 * testkit.LeaseTTL / 2)
	if n, _ := state(); n != 1 {
		t.Error("the part has expired after the return of the bus")
	}
}

// TestHostileParts: messages that no part sends are counted and change nothing, and the number of parts is bounded.
func TestHostileParts(t *testing.T) {
	server := embed(t, -1)
	defer server.Close()
	metrics := prometheus.NewRegistry()
	got := partsOf(t, testkit.JoinBus(t, bus.Config{URL: server.URL(), Metrics: metrics, LeaseTTL: time.Minute}))
	nc, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	publish := func(subject string, m *busv1.Here) {
		data, err := proto.Marshal(m)
		if err == nil {
			err = nc.Publish("stator.v1.test.here."+subject, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	// The watch begins at some moment, so a valid message is sent until it arrives.
	testkit.Eventually(t, "a part", func() bool {
		publish("router", &busv1.Here{Id: "1", Name: "a"})
		return got() == "router[a]"
	})
	bad := map[string]*busv1.Here{
		"engine": {Id: "1", Name: "a"}, "router": {Id: "2"}, "planner": {Name: "a"}, "control_plane": {Id: "1", Name: strings.Repeat("x", 300)},
		"kv_store.n": {Id: "3", Name: "another"}, "kv_store.m": {Id: "3", Name: "m\n"},
	}
	for subject, m := range bad {
		publish(subject, m)
	}
	refused := func() int { return int(countOf(t, metrics, "stator_bus_unreadable_messages_total", "here")) }
	testkit.Eventually(t, "all are refused", func() bool { return refused() == len(bad) })
	const most = 1024
	for i := range most + 10 {
		publish("planner", &busv1.Here{Id: fmt.Sprint("p", i), Name: "p"})
	}
	testkit.Eventually(t, "those above the bound are refused", func() bool { return refused() == len(bad)+10 })
	if text := got(); !strings.HasPrefix(text, "router[a] planner[") || strings.Count(text, "p") != most+len("p") {
		t.Errorf("the parts are %.80s", text)
	}
}
