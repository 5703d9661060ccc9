package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/session"
	"github.com/stator-project/stator/test/testkit"
)

// small is a layout of blocks of 4 KiB.
var small = block.Layout{Model: "m", Layers: 2, PageTokens: 16, Outer: 2, Inner: 32, DType: "bfloat16", TPSize: 1, Hashing: "sha256"}

func keysFrom(first, n int) (keys []block.Key) {
	space := small.Space()
	for i := range n {
		keys = append(keys, space.Key(binary.LittleEndian.AppendUint64(nil, uint64(first+i))))
	}
	return keys
}

func contentOf(key block.Key) []byte { return bytes.Repeat(key[:], small.Bytes()/len(key)) }

// run runs a node until stop.
func run(t *testing.T, change func(c *Config)) (socket string, metrics *prometheus.Registry, stop func()) {
	t.Helper()
	metrics = prometheus.NewRegistry()
	cfg := Config{
		Model: "m", Socket: filepath.Join(t.TempDir(), "kv.sock"), HostBytes: 8 * 4096, Node: "node", Log: slog.New(slog.DiscardHandler),
		Metrics: metrics,
	}
	if change != nil {
		change(&cfg)
	}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := n.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return cfg.Socket, metrics, stop
}

// dial connects as soon as the node listens.
func dial(t *testing.T, socket string) *session.Client {
	t.Helper()
	var c *session.Client
	testkit.Eventually(t, "an engine is connected", func() (ok bool) {
		var err error
		c, err = session.Dial(t.Context(), socket, session.User{Name: "engine", Layout: small})
		return err == nil
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// value returns the sum of a metric of a tier; any for none.
func value(t *testing.T, metrics *prometheus.Registry, name, tier string) (sum float64) {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			matches := tier == ""
			for _, l := range m.GetLabel() {
				matches = matches || l.GetName() == "tier" && l.GetValue() == tier
			}
			if matches {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// TestBlocksOutliveTheNode: blocks that leave host memory are on the disk, also for the next process.
func TestBlocksOutliveTheNode(t *testing.T) {
	dir := t.TempDir()
	onDisk := func(c *Config) {
		c.DiskDir = dir
		c.DiskBytes = 1 << 20
	}
	socket, metrics, stop := run(t, onDisk)
	c := dial(t, socket)
	keys := keysFrom(0, 24)
	for i := 0; i < len(keys); i += 4 {
		slots, err := c.Reserve(t.Context(), 4)
		if err != nil || len(slots) != 4 {
			t.Fatal(slots, err)
		}
		for k, slot := range slots {
			copy(c.Slot(slot), contentOf(keys[i+k]))
		}
		if err := c.Commit(t.Context(), slots, keys[i:i+4], 0); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "they are on the disk", func() bool { return value(t, metrics, "stator_kvstore_blocks", "disk") == float64(i+4) })
	}
	if n := value(t, metrics, "stator_kvstore_blocks", "host"); n != 8 {
		t.Errorf("%g blocks are in host memory, want 8", n)
	}
	stop()

	socket, metrics, _ = run(t, onDisk)
	c = dial(t, socket)
	l, err := c.Fetch(t.Context(), keys[:8])
	if err != nil || len(l.Slots) != 8 {
		t.Fatal(l, err)
	}
	for k, slot := range l.Slots {
		if !bytes.Equal(c.Slot(slot), contentOf(keys[k])) {
			t.Errorf("block %d has other bytes", k)
		}
	}
	if n := value(t, metrics, "stator_kvstore_loaded_blocks_total", "disk"); n != 8 {
		t.Errorf("%g blocks were loaded", n)
	}
	if n := value(t, metrics, "stator_kvstore_tier_healthy", "disk"); n != 1 {
		t.Error("the disk is not healthy")
	}
}

// TestEnginesGetTheReason: an engine whose blocks the node cannot store gets the reason, and the node goes on.
func TestEnginesGetTheReason(t *testing.T) {
	socket, metrics, _ := run(t, func(c *Config) { c.HostBytes = 4095 })
	for range 2 {
		var err error
		testkit.Eventually(t, "the node answers", func() bool {
			_, err = session.Dial(t.Context(), socket, session.User{Name: "engine", Layout: small})
			return err != nil && !strings.Contains(err.Error(), "connect to")
		})
		if !strings.Contains(err.Error(), "kv.hostBytes is 4095") {
			t.Error(err)
		}
	}
	// A session is counted after its engine has the answer.
	testkit.Eventually(t, "two refused sessions are counted", func() bool {
		return value(t, metrics, "stator_kvstore_sessions_refused_total", "") == 2
	})
}

func TestNoSize(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("a node without host memory was made")
	}
}
