package bus_test

import (
	"log/slog"
	"strconv"
	"sync"
	"testing"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/listen"
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

// TestPeersNeedCertificates: servers for each other prove by certificates of one CA that they belong together. One with the certificate of
// another CA is refused, and one that has renewed its certificate is not.
func TestPeersNeedCertificates(t *testing.T) {
	ours, other := testkit.NewAuthority(t), testkit.NewAuthority(t)
	start := func(of *testkit.Authority, name string, known ...string) *bus.Embedded {
		cert, key := of.Issue(name, "127.0.0.1")
		doors := listen.Doors{CertFile: cert, KeyFile: key, ClientCAFile: of.CA()}
		secure, err := doors.ForPeers("0.0.0.0", slog.New(slog.DiscardHandler)) // beyond loopback, as far as the doors know
		if err != nil {
			t.Fatal(err)
		}
		e, err := bus.EmbedPeers(bus.PeersConfig{Host: "127.0.0.1", Port: -1, Peers: known, TLS: secure})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		return e
	}

	first := start(ours, "first")
	stranger := start(other, "stranger", first.PeersAddress())
	second := start(ours, "second", first.PeersAddress())
	testkit.Eventually(t, "the first two know each other", func() bool { return first.Peers() > 0 && second.Peers() > 0 })
	if stranger.Peers() != 0 {
		t.Error("a stranger is connected")
	}

	ours.Issue("first", "127.0.0.1")
	third := start(ours, "third", first.PeersAddress())
	testkit.Eventually(t, "a third is admitted after a certificate was renewed", func() bool { return third.Peers() > 0 })
}
