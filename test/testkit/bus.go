package testkit

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stator-project/stator/bus"
)

// LeaseTTL is the lease time of buses made here: the shortest that NATS supports.
const LeaseTTL = time.Second

// Server runs a NATS server in this process until the test ends.
func Server(t testing.TB) *bus.Embedded {
	t.Helper()

	server, err := bus.Embed(bus.EmbedConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

// Bus returns a connection to a NATS server that runs in this process for the test alone.
func Bus(t testing.TB) *bus.Bus {
	t.Helper()

	return JoinBus(t, bus.Config{Embedded: Server(t)})
}

// JoinBus connects to the bus that cfg names. Cluster, lease time, name and log are the test's own
// where cfg leaves them empty.
func JoinBus(t testing.TB, cfg bus.Config) *bus.Bus {
	t.Helper()

	if cfg.Cluster == "" {
		cfg.Cluster = "test"
	}
	if cfg.LeaseTTL == 0 {
		cfg.LeaseTTL = LeaseTTL
	}
	if cfg.Name == "" {
		cfg.Name = t.Name()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}

	b, err := bus.Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}
