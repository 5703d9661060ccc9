package bus_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/test/testkit"
)

// addSpent adds a token of a tenant to the sums on a bus. It tries again as long as others write.
func addSpent(ctx context.Context, b *bus.Bus, tenant string) error {
	for {
		err := b.UpdateSpent(ctx, func(there bus.Spent) (bus.Spent, bool) {
			next := bus.Spent{Tokens: maps.Clone(there.Tokens)}
			if next.Tokens == nil {
				next.Tokens = map[string][2]int64{}
			}
			n := next.Tokens[tenant]
			next.Tokens[tenant] = [2]int64{n[0] + 1, n[1] + 1}
			return next, true
		}, func(bus.Spent) {})
		if !errors.Is(err, jetstream.ErrKeyExists) {
			return err
		}
	}
}

// spentOn returns the sums on a bus.
func spentOn(t *testing.T, b *bus.Bus) (sums bus.Spent) {
	t.Helper()
	err := b.UpdateSpent(t.Context(), func(there bus.Spent) (bus.Spent, bool) {
		sums = there
		return bus.Spent{}, false
	}, func(bus.Spent) { t.Error("sums were written") })
	if err != nil {
		t.Fatal(err)
	}
	return sums
}

// TestSpent: no addition of several routers at once is lost. Bytes that are no sums count as none and are replaced, and so is an entry that
// was deleted.
func TestSpent(t *testing.T) {
	server := embed(t, -1)
	defer server.Close()
	metrics := prometheus.NewRegistry()
	first := testkit.JoinBus(t, bus.Config{Embedded: server, Metrics: metrics})
	if got := spentOn(t, first); len(got.Tokens) != 0 {
		t.Errorf("a new bus has %v", got)
	}

	const each = 30
	var all sync.WaitGroup
	for range 4 {
		b := testkit.JoinBus(t, bus.Config{Embedded: server})
		all.Go(func() {
			for range each {
				if err := addSpent(t.Context(), b, "red"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := spentOn(t, first).Tokens["red"]; got != [2]int64{4 * each, 4 * each} {
		t.Errorf("the sums are %v, want %d", got, 4*each)
	}

	client, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for what, overwrite := range map[string]*nats.Msg{
		"bytes":    {Data: []byte("no sums")},
		"JSON":     {Data: []byte(`{"day": 1}`)},
		"deletion": {Header: nats.Header{"KV-Operation": {"DEL"}}},
	} {
		overwrite.Subject = "$KV.stator-test-budgets.spent"
		if _, err := client.RequestMsg(overwrite, time.Second); err != nil {
			t.Fatal(err)
		}
		if got := spentOn(t, first); len(got.Tokens) != 0 {
			t.Errorf("%s: %v", what, got)
		}
		if err := addSpent(t.Context(), first, "red"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := spentOn(t, first).Tokens["red"]; got != [2]int64{1, 1} {
			t.Errorf("%s: the sums are then %v", what, got)
		}
	}
	if n := countOf(t, metrics, "stator_bus_unreadable_messages_total", "spent"); n < 2 {
		t.Errorf("%g unreadable sums are counted", n)
	}
}

// TestSpentWithoutAServer: while the server is away an update fails at once, and merges nothing. It works again when the server is back,
// which has lost its memory.
func TestSpentWithoutAServer(t *testing.T) {
	port := testkit.Port(t)
	server := embed(t, port)
	b := connect(t, server.URL())
	if err := addSpent(t.Context(), b, "red"); err != nil {
		t.Fatal(err)
	}
	server.Close()
	testkit.Eventually(t, "the bus is away", func() bool { return !b.Connected() })
	err := b.UpdateSpent(t.Context(), func(bus.Spent) (bus.Spent, bool) {
		t.Error("sums of a server that is away")
		return bus.Spent{}, false
	}, nil)
	if err == nil {
		t.Error("no error")
	}

	server = embed(t, port)
	defer server.Close()
	testkit.Eventually(t, "the bus is back", b.Connected)
	if err := addSpent(t.Context(), b, "red"); err != nil {
		t.Error(err)
	}
	if got := spentOn(t, b).Tokens["red"]; got != [2]int64{1, 1} {
		t.Errorf("the sums are %v", got)
	}
}
