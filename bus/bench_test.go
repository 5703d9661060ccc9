package bus_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/test/testkit"
)

// BenchmarkSnapshot: what does it take to pull a rank's snapshot through a NATS server on this
// machine? 30 MB is a dump of 2 million blocks.
//
//	go test -run - -bench Snapshot ./bus
func BenchmarkSnapshot(b *testing.B) {
	for _, size := range []int{64 << 10, 30 << 20} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			e, err := bus.Embed(bus.EmbedConfig{Host: "127.0.0.1", Port: -1, Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			join := func() *bus.Bus {
				c, err := bus.Connect(b.Context(), bus.Config{URL: e.URL(), Cluster: "test", LeaseTTL: testkit.LeaseTTL, Log: slog.New(slog.DiscardHandler)})
				if err != nil {
					b.Fatal(err)
				}
				return c
			}
			from, to := join(), join()
			defer from.Close()
			defer to.Close()
			s := &feed.Snapshot{ID: 1, Dump: make([]byte, size)}
			ctx, stop := context.WithCancel(b.Context())
			var all sync.WaitGroup
			defer all.Wait()
			defer stop()
			all.Go(func() {
				_ = from.ServeSnapshots(ctx, "w", 5, func(int, uint64) *feed.Snapshot { return s })
			})
			pull := func() error {
				_, err := to.Snapshot(b.Context(), "w", 5, 0, func(context.Context, int) error { return nil })
				return err
			}
			for pull() != nil { // until it is served
				if b.Context().Err() != nil {
					b.Fatal(b.Context().Err())
				}
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if err := pull(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
