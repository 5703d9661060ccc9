package node

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm"
	"github.com/stator-project/stator/kvbm/session"
	"github.com/stator-project/stator/test/testkit"
)

// runWithDisk returns a node with 16 blocks of host memory and 64 on a disk, which runs until the end of the test.
func runWithDisk(t *testing.T, diskDir string) *Node {
	t.Helper()
	n, err := New(Config{
		Model: "m", Socket: filepath.Join(t.TempDir(), "kv.sock"), HostBytes: 16 * 4096, DiskDir: diskDir, DiskBytes: 64 * 8192,
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		if err := n.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		all.Wait()
		if _, err := n.Pin(context.Background(), Blocks{Hashes: []uint64{1}}, time.Minute); !errors.Is(err, ErrClosed) {
			t.Errorf("pin after the end: %v", err)
		}
	})
	// It exists before it is listened on, and has its mode afterwards.
	testkit.Eventually(t, "the socket is there", func() bool {
		info, err := os.Stat(n.cfg.Socket)
		return err == nil && info.Mode().Perm() == 0o600
	})
	return n
}

// putHashes connects an engine, which writes the blocks of hashes.
func putHashes(t *testing.T, n *Node, hashes []uint64) {
	t.Helper()
	c, err := session.Dial(t.Context(), n.cfg.Socket, session.User{Name: "engine-1", Layout: small})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	slots, err := c.Reserve(t.Context(), len(hashes))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Commit(t.Context(), slots, keysOf(hashes), 0); err != nil {
		t.Fatal(err)
	}
}

// keysOf returns the keys of hashes as a simulated engine makes them.
func keysOf(hashes []uint64) (keys []block.Key) {
	space := small.Space()
	for _, h := range hashes {
		keys = append(keys, space.Key(binary.LittleEndian.AppendUint64(nil, h)))
	}
	return keys
}

// TestControl pins, prefetches and flushes the blocks of an engine, by keys and by hashes, and reads the status.
func TestControl(t *testing.T) {
	n := runWithDisk(t, t.TempDir())
	if s := n.Status(); s.State != Waiting || s.Model != "m" || len(s.Engines) != 0 {
		t.Errorf("before the first engine: %+v", s)
	}
	if _, err := n.Flush(t.Context(), ""); !errors.Is(err, ErrClosed) {
		t.Errorf("flush before the first engine: %v", err)
	}

	hashes := []uint64{7, 8, 1 << 63, 10}
	putHashes(t, n, hashes)
	if pinned, err := n.Pin(t.Context(), Blocks{Keys: keysOf(hashes[:2]), Hashes: append(hashes[2:], 99)}, time.Hour); pinned != 4 || err != nil {
		t.Errorf("%d blocks were pinned, want 4: %v", pinned, err)
	}
	// A writer of the disk may still have copied the same block.
	testkit.Eventually(t, "no block is in use", func() bool { return n.Status().Store.Slots.Active == 0 })
	s := n.Status()
	if s.State != Serving || s.Layout != small || s.HostBytes != 16*4096 || s.Store.Slots.Inactive != 4 || s.Store.Slots.Pinned != 4 {
		t.Errorf("%+v", s)
	}
	if len(s.Tiers) != 1 || s.Tiers[0].Health != Healthy || s.Tiers[0].Blocks != 4 || s.Tiers[0].Pinned != 4 || s.Tiers[0].Room != 64*8192/(2*4096) {
		t.Errorf("tiers %+v", s.Tiers)
	}
	if len(s.Engines) != 1 || s.Engines[0].Name != "engine-1" || s.Engines[0].PID != os.Getpid() {
		t.Errorf("engines %+v", s.Engines)
	}

	if left, err := n.Flush(t.Context(), "host"); left[fleet.Host] != 4 || err != nil {
		t.Errorf("%v left, want 4: %v", left, err)
	}
	if there, err := n.Prefetch(t.Context(), Blocks{Hashes: hashes}); there != 4 || err != nil {
		t.Errorf("%d were prefetched, want 4: %v", there, err)
	}
	if left, err := n.Flush(t.Context(), ""); left[fleet.Host] != 4 || left[fleet.Disk] != 4 || err != nil || n.Status().Tiers[0].Blocks != 0 {
		t.Errorf("%v left, want 4 each: %v; on the disk %+v", left, err, n.Status().Tiers)
	}
}

// TestControlIsBounded: calls that are too large, and one beside another, are refused.
func TestControlIsBounded(t *testing.T) {
	n := runWithDisk(t, "")
	putHashes(t, n, []uint64{1})
	one := Blocks{Hashes: []uint64{1}}
	for name, call := range map[string]func() error{
		"a long pin":     func() error { _, err := n.Pin(t.Context(), one, MaxPin+1); return err },
		"a negative pin": func() error { _, err := n.Pin(t.Context(), one, -1); return err },
		"no blocks":      func() error { _, err := n.Pin(t.Context(), Blocks{}, time.Hour); return err },
		"too many blocks": func() error {
			_, err := n.Prefetch(t.Context(), Blocks{Hashes: make([]uint64, MaxBlocks+1)})
			return err
		},
	} {
		if err := call(); !errors.Is(err, ErrBounds) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, tier := range []string{"external", "disk", "tape"} {
		if _, err := n.Flush(t.Context(), tier); !errors.Is(err, kvbm.ErrNoFlush) {
			t.Errorf("flush of %s: %v", tier, err)
		}
	}

	err := n.control(t.Context(), func(ctx context.Context, _ *kvbm.Store) error {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("the call has no deadline")
		}
		_, err := n.Pin(ctx, one, time.Hour)
		return err
	})
	if !errors.Is(err, ErrBusy) {
		t.Errorf("a call beside another: %v", err)
	}
}

// TestStatusOfAStoreThatCannotOpen has the reason.
func TestStatusOfAStoreThatCannotOpen(t *testing.T) {
	r := start(t, "a", "", nil, func(c *Config) { c.HostBytes = 5000 }) // less than a block
	testkit.Eventually(t, "the reason is there", func() bool {
		if c, err := session.Dial(t.Context(), r.socket, session.User{Name: "engine-1", Layout: layout}); err == nil {
			_ = c.Close()
			t.Error("an engine was accepted")
		}
		s := r.node.Status()
		return s.State == Failed && strings.Contains(s.Reason, "raise it")
	})
}
