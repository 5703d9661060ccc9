package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/pool"
)

var testSpace = (&block.Layout{
	Model: "m", Layers: 1, PageTokens: 1, Outer: 1, Inner: 1, DType: "int8", TPSize: 1, Hashing: "h",
}).Space()

func key(n int) block.Key { return testSpace.Key(binary.LittleEndian.AppendUint32(nil, uint32(n))) }

// content returns the bytes of a block, which its key and a version determine. All sectors of 512 bytes are different.
func content(k block.Key, version, size int) []byte {
	const sector = 512
	b := make([]byte, 0, size+sector)
	x := binary.LittleEndian.Uint64(k[:]) + uint64(version)*0x9E3779B97F4A7C15
	for len(b) < sector {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	for n := uint64(1); len(b) < size; n++ {
		b = append(b, b[:sector]...)
		binary.LittleEndian.PutUint64(b[len(b)-8:], x+n)
	}
	return b[:size]
}

const testBlock = 5000 // two pages

// config returns the configuration of a tier with room for a number of blocks.
func config(dir string, slots int) Config {
	return Config{Dir: dir, Bytes: int64(slots) * (headerBytes + 2*pageBytes), BlockBytes: testBlock, Space: testSpace, Workers: 2, Queue: 4}
}

func open(t testing.TB, cfg Config) *Disk {
	t.Helper()
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func store(t testing.TB, d *Disk, n int) {
	t.Helper()
	if err := d.Store(t.Context(), key(n), content(key(n), 0, testBlock), 0); err != nil {
		t.Fatalf("store block %d: %v", n, err)
	}
}

// load returns the error of Load, and fails if that returns wrong bytes.
func load(t testing.TB, d *Disk, n int) error {
	t.Helper()
	dst := make([]byte, testBlock)
	err := d.Load(context.Background(), key(n), dst)
	if err == nil && !bytes.Equal(dst, content(key(n), 0, testBlock)) {
		t.Fatalf("block %d has wrong bytes", n)
	}
	return err
}

func TestStoreAndLoad(t *testing.T) {
	defer goleak.VerifyNone(t)
	d := open(t, config(t.TempDir(), 4))
	for n := range 3 {
		store(t, d, n)
	}
	short := []byte("a short block")
	if err := d.Store(t.Context(), key(9), short, 0); err != nil {
		t.Fatal(err)
	}

	for n := range 3 {
		if err := load(t, d, n); err != nil {
			t.Errorf("block %d: %v", n, err)
		}
	}
	got := make([]byte, len(short))
	if err := d.Load(t.Context(), key(9), got); err != nil || !bytes.Equal(got, short) {
		t.Errorf("%q, %v", got, err)
	}
	if n := d.Match([]block.Key{key(1), key(0), key(7), key(2)}); n != 2 {
		t.Errorf("%d keys match, want 2", n)
	}
	if s := d.Stats(); s.Stores != 4 || s.Loads != 4 || s.Slots.Inactive != 4 {
		t.Errorf("%+v", s)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	d := open(t, config(t.TempDir(), 4))
	store(t, d, 1)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"an empty block", d.Store(t.Context(), key(2), nil, 0), ErrSize},
		{"a large block", d.Store(t.Context(), key(2), make([]byte, testBlock+1), 0), ErrSize},
		{"an unknown block", d.Load(t.Context(), key(2), make([]byte, testBlock)), ErrNotFound},
		{"another length", d.Load(t.Context(), key(1), make([]byte, testBlock-1)), ErrSize},
		{"a context that ended: load", d.Load(ended, key(1), make([]byte, testBlock)), context.Canceled},
		{"a context that ended: store", d.Store(ended, key(2), make([]byte, testBlock), 0), context.Canceled},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, c.err, c.want)
		}
	}

	d.Close()
	if err := d.Store(t.Context(), key(2), make([]byte, 1), 0); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := load(t, d, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := d.Flush(); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if d.Remove(key(1)) || d.Pin(key(1), time.Time{}) || !errors.Is(d.Close(), ErrClosed) {
		t.Error("a closed tier does something")
	}
}

func TestInvalidConfigs(t *testing.T) {
	for name, change := range map[string]func(c *Config){
		"no blocks":         func(c *Config) { c.BlockBytes = 0 },
		"a huge block":      func(c *Config) { c.BlockBytes = maxBlockBytes + 1 },
		"no room":           func(c *Config) { c.Bytes = headerBytes },
		"too many slots":    func(c *Config) { c.Bytes = 1 << 62 },
		"too many workers":  func(c *Config) { c.Workers = maxWorkers + 1 },
		"a negative queue":  func(c *Config) { c.Queue = -1 },
		"a file as folder":  func(c *Config) { c.Dir = "disk_test.go" },
		"more than is free": func(c *Config) { c.Bytes = 1 << 52; c.BlockBytes = maxBlockBytes },
	} {
		c := config(t.TempDir(), 4)
		change(&c)
		if _, err := Open(c); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

// TestRestart opens a folder again: the blocks are there, in the order of their use, with priorities and pins.
func TestRestart(t *testing.T) {
	cfg := config(t.TempDir(), 4)
	d := open(t, cfg)
	if err := d.Store(t.Context(), key(0), content(key(0), 0, testBlock), 7); err != nil {
		t.Fatal(err)
	}
	for n := 1; n < 4; n++ {
		store(t, d, n)
	}
	d.Pin(key(1), time.Now().Add(time.Hour))
	d.Remove(key(3))
	d.Close()

	d = open(t, cfg)
	if s := d.Stats(); s.Restored != 3 || s.LogDamaged {
		t.Errorf("%+v", s)
	}
	if got := slices.Collect(d.Keys()); len(got) != 3 || slices.Contains(got, key(3)) {
		t.Errorf("%v", got)
	}
	for n := range 3 {
		if err := load(t, d, n); err != nil {
			t.Errorf("block %d: %v", n, err)
		}
	}
	for n := 4; n < 8; n++ { // one free slot, then block 2 leaves, then the new ones: 0 has a priority and 1 a pin
		store(t, d, n)
	}
	for n, want := range []bool{true, true, false, false, false, false, true, true} {
		if d.Has(key(n)) != want {
			t.Errorf("block %d is there: %v", n, !want)
		}
	}
}

// TestHeaders: the header of a block is read once after the tier was opened. A process that has written or read a block knows its checksum,
// and finds other bytes out without the header.
func TestHeaders(t *testing.T) {
	cfg := config(t.TempDir(), 4)
	flip := func(slot int, at int64) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(cfg.Dir, blocksName), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		at += int64(slot) * (headerBytes + 2*pageBytes)
		var b [1]byte
		if _, err := f.ReadAt(b[:], at); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 1
		if _, err := f.WriteAt(b[:], at); err != nil {
			t.Fatal(err)
		}
	}
	slotOf := func(d *Disk, n int) int {
		i, ok := d.pool.Find(key(n))
		if !ok {
			t.Fatalf("block %d is not there", n)
		}
		return i
	}

	d := open(t, cfg)
	for n := range 4 {
		store(t, d, n)
	}
	flip(slotOf(d, 0), atSum)
	if err := load(t, d, 0); err != nil {
		t.Errorf("a damaged header of a block that was written: %v", err)
	}
	flip(slotOf(d, 1), headerBytes+testBlock-1)
	if err := load(t, d, 1); !errors.Is(err, ErrTorn) {
		t.Errorf("damaged bytes of a block that was written: %v", err)
	}
	d.Close()

	d = open(t, cfg)
	if err := load(t, d, 0); !errors.Is(err, ErrTorn) {
		t.Errorf("a damaged header after a restart: %v", err)
	}
	if err := load(t, d, 2); err != nil {
		t.Fatal(err)
	}
	flip(slotOf(d, 2), atSum)
	if err := load(t, d, 2); err != nil {
		t.Errorf("a damaged header of a block that was read: %v", err)
	}
	flip(slotOf(d, 2), headerBytes)
	if err := load(t, d, 2); !errors.Is(err, ErrTorn) {
		t.Errorf("damaged bytes of a block that was read: %v", err)
	}
}

// TestOtherSizes keeps the blocks when the tier grows or shrinks, and drops them when the size or the space of blocks changes.
func TestOtherSizes(t *testing.T) {
	for name, c := range map[string]struct {
		change func(c *Config)
		want   int
	}{
		"larger":        {func(c *Config) { c.Bytes *= 2 }, 4},
		"smaller":       {func(c *Config) { c.Bytes /= 2 }, 2},
		"another block": {func(c *Config) { c.BlockBytes-- }, 0},
		"another space": {func(c *Config) { c.Space[0]++ }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t.TempDir(), 4)
			d := open(t, cfg)
			for n := range 4 {
				store(t, d, n)
			}
			d.Close()

			c.change(&cfg)
			d = open(t, cfg)
			if got := d.Stats().Restored; got != c.want {
				t.Errorf("%d blocks are there, want %d", got, c.want)
			}
			for n := range 4 {
				if err := load(t, d, n); err != nil && !errors.Is(err, ErrNotFound) {
					t.Error(err)
				}
			}
		})
	}
}

func TestFlush(t *testing.T) {
	cfg := config(t.TempDir(), 4)
	d := open(t, cfg)
	for n := range 4 {
		store(t, d, n)
	}
	if _, err := d.Flush(); err != nil {
		t.Fatal(err)
	}
	store(t, d, 9)
	d.Close()

	d = open(t, cfg)
	if got := slices.Collect(d.Keys()); len(got) != 1 || got[0] != key(9) {
		t.Errorf("after a flush and a restart: %v", got)
	}
}

// TestPinnedBlocksAreDemoted hands a pinned block over with its bytes, and drops others.
func TestPinnedBlocksAreDemoted(t *testing.T) {
	type call struct {
		pool.Evicted
		data []byte
	}
	var calls []call
	cfg := config(t.TempDir(), 1)
	cfg.Evicted = func(e pool.Evicted, data []byte) { calls = append(calls, call{e, slices.Clone(data)}) }
	d := open(t, cfg)
	until := time.Now().Add(time.Hour)

	store(t, d, 1)
	d.Pin(key(1), until)
	store(t, d, 2)
	store(t, d, 3)
	if len(calls) != 2 {
		t.Fatalf("%d blocks were evicted, want 2", len(calls))
	}
	if c := calls[0]; c.Key != key(1) || !c.Until.Equal(until) || !bytes.Equal(c.data, content(key(1), 0, testBlock)) {
		t.Errorf("the pinned block: %+v with %d bytes", c.Evicted, len(c.data))
	}
	if c := calls[1]; c.Key != key(2) || c.data != nil {
		t.Errorf("the block without a pin: %+v with %d bytes", c.Evicted, len(c.data))
	}
}

// TestPinnedBlocksStay has no function for evicted blocks.
func TestPinnedBlocksStay(t *testing.T) {
	now := time.Now()
	cfg := config(t.TempDir(), 1)
	cfg.Now = func() time.Time { return now }
	d := open(t, cfg)
	store(t, d, 1)
	d.Pin(key(1), now.Add(time.Hour))

	data := content(key(2), 0, testBlock)
	if err := d.Store(t.Context(), key(2), data, 0); !errors.Is(err, pool.ErrFull) {
		t.Errorf("before the end of the pin: %v", err)
	}
	now = now.Add(time.Hour)
	if err := d.Store(t.Context(), key(2), data, 0); err != nil {
		t.Errorf("at the end of the pin: %v", err)
	}
}

// TestLogIsRewritten removes and stores blocks until the log was written again several times.
func TestLogIsRewritten(t *testing.T) {
	cfg := config(t.TempDir(), 4)
	d := open(t, cfg)
	for n := range 4 {
		store(t, d, n)
	}
	for i := uint8(0); d.Stats().Rewrites < 3; i++ {
		if !d.Pin(key(1), time.Now().Add(time.Duration(i)*time.Hour)) {
			t.Fatal("block 1 is not there")
		}
		if s := d.Stats(); s.LogBytes > d.log.most || s.LogErrors+s.LogLost > 0 {
			t.Fatalf("%+v", s)
		}
	}
	d.Close()

	info, err := os.Stat(filepath.Join(cfg.Dir, indexName))
	if err != nil || info.Size() != d.log.most {
		t.Errorf("the log has %d bytes, want %d: %v", info.Size(), d.log.most, err)
	}
	d = open(t, cfg)
	for n := range 4 {
		if err := load(t, d, n); err != nil {
			t.Errorf("block %d: %v", n, err)
		}
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	d := open(t, config(t.TempDir(), 4))
	data, n := content(key(0), 0, testBlock), 0
	keys := make([]block.Key, 1000)
	for n := range keys {
		keys[n] = key(n)
	}

	ctx := t.Context()
	allocs := testing.AllocsPerRun(len(keys)-10, func() {
		n++
		if err := errors.Join(d.Store(ctx, keys[n], data, 0), d.Load(ctx, keys[n], data)); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 0 {
		t.Errorf("%v allocations for a Store and a Load", allocs)
	}
}
