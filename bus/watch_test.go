package bus

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/test/busproxy"
)

// TestWatchEndsWithoutItsConnection: the data connection is back before the control connection. The watches that are replaced then end, too:
// messages that arrive for them would be kept, and nothing would read them.
func TestWatchEndsWithoutItsConnection(t *testing.T) {
	e, err := Embed(EmbedConfig{Host: "127.0.0.1", Port: -1, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	proxy, err := busproxy.New(strings.TrimPrefix(e.URL(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	b, err := Connect(t.Context(), Config{URL: proxy.URL(), Cluster: "test", LeaseTTL: time.Second, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.WatchWorkers(ctx, func(Lease) {}, nil) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	// The connection has a subscription for replies, and one for each watch.
	const subscriptions = 2
	until(t, "a watch", func() bool { return b.control.nc.NumSubscriptions() == subscriptions })
	for range 3 {
		proxy.Refuse(true)
		until(t, "the connections are lost", func() bool { return !b.control.nc.IsConnected() && !b.data.nc.IsConnected() })
		b.reconnected()
		proxy.Refuse(false)
		until(t, "the connections are back", b.Connected)
	}
	until(t, "one watch again", func() bool { return b.control.nc.NumSubscriptions() == subscriptions })
}

// until waits until ok returns true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
