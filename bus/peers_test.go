package bus_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/route/peers"
	"github.com/stator-project/stator/test/testkit"
)

// TestPeersWithoutAServer: processes that embed servers for each other have one bus, for bookings and ends of requests. A process that
// stops is gone, and one that comes later is found through any other.
func TestPeersWithoutAServer(t *testing.T) {
	start := func(known ...string) (*bus.Embedded, *bus.Bus) {
		e, err := bus.EmbedPeers(bus.PeersConfig{Host: "127.0.0.1", Port: -1, Peers: known})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		return e, testkit.JoinBus(t, bus.Config{Embedded: e})
	}
	first, a := start()
	second, b := start(first.PeersAddress())
	third, c := start()
	if err := third.SetPeers([]string{second.PeersAddress()}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "each server knows the others", func() bool {
		return first.Peers() > 0 && second.Peers() > 0 && third.Peers() > 0
	})

	var mu sync.Mutex
	seen := map[string]bool{}
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		seen[what] = true
	}
	for i, joined := range []*bus.Bus{a, b, c} {
		name := "replica" + strconv.Itoa(i)
		go func() {
			_ = joined.SubscribeBookings(t.Context(), func(u *peers.Update) { note(name + " has " + u.Replica) })
		}()
		go func() {
			_ = joined.SubscribeEnds(t.Context(), name, func(e *bus.RequestEnd) { note(name + " ends " + e.Booking) })
		}()
	}

	testkit.Eventually(t, "every replica has the bookings of every other one, and its own ends alone", func() bool {
		for i, joined := range []*bus.Bus{a, b, c} {
			if err := joined.PublishBookings(&peers.Update{Replica: "replica" + strconv.Itoa(i)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.PublishEnds("replica0", []bus.RequestEnd{{Booking: "x"}}); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		return len(seen) == 10
	})
	mu.Lock()
	defer mu.Unlock()
	if !seen["replica0 ends x"] {
		t.Errorf("%v", seen)
	}

	all := first.Peers()
	c.Close()
	third.Close()
	testkit.Eventually(t, "a process that stops is gone", func() bool { return first.Peers() < all })
}
