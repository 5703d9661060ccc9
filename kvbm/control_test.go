package kvbm

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/disk"
	"github.com/stator-project/stator/kvbm/pool"
)

// pinning is a store on a disk with room for 16 blocks, beside host memory for 8, and a clock.
type pinning struct {
	*Store
	t    *testing.T
	disk *disk.Disk
	now  atomic.Int64
	next int
}

func newPinning(t *testing.T, write Policy) *pinning {
	p := &pinning{t: t, next: 1000}
	p.now.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixNano())
	clock := func() time.Time { return time.Unix(0, p.now.Load()) }
	var err error
	p.disk, err = disk.Open(disk.Config{
		Dir: t.TempDir(), Bytes: 16 * 8192, BlockBytes: layout.Bytes(), Space: layout.Space(), Now: clock,
		Evicted: func(e pool.Evicted, _ []byte) { p.Lost(fleet.Disk, e.Key) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.disk.Close() })
	p.Store = start(t, Config{
		Memory: newHeap(8), Now: clock, Tiers: []Tier{{Name: "disk", Tier: fleet.Disk, Backend: Disk(p.disk), Write: write}},
	})
	return p
}

// until returns a time of the clock in the future.
func (p *pinning) until(d time.Duration) time.Time { return time.Unix(0, p.now.Load()).Add(d) }

// churn puts so many other blocks through host memory and the disk that each has been filled several times.
func (p *pinning) churn() {
	p.t.Helper()
	for range 16 {
		put(p.t, p.Store, keysFrom(p.next, 4), 1)
		p.next += 4
		idle(p.t, p.Store)
	}
}

// inHost returns how many blocks host memory has.
func (p *pinning) inHost(keys []block.Key) (n int) {
	for _, key := range keys {
		if p.has(key) {
			n++
		}
	}
	return n
}

// TestPinnedBlocksAreDemoted: pinned blocks of host memory are on the disk and pinned there, even if the policy would not copy them. Host
// memory can lose them, and the disk has them until their time, whatever else is written. Then they leave as others do.
func TestPinnedBlocksAreDemoted(t *testing.T) {
	p := newPinning(t, WriteReused)
	keys := keysFrom(0, 6)
	put(t, p.Store, keys, 0)
	if n := p.Pin(t.Context(), keys, p.until(time.Hour)); n != len(keys) {
		t.Fatalf("%d of %d blocks were pinned", n, len(keys))
	}
	if n := p.disk.Match(keys); n != len(keys) {
		t.Fatalf("the disk has %d of %d pinned blocks", n, len(keys))
	}
	if n := p.disk.Stats().Slots.Pinned; n != len(keys) {
		t.Errorf("%d blocks are pinned on the disk, want %d", n, len(keys))
	}

	// An engine that takes all of host memory takes the pinned slots last.
	slots, err := p.Reserve(8)
	if err != nil {
		t.Fatal(err)
	}
	if n := p.inHost(keys); n != 0 {
		t.Errorf("%d pinned blocks are in host memory, which has no room", n)
	}
	if err := p.Drop(slots); err != nil {
		t.Fatal(err)
	}
	p.churn()
	check(t, p.Store, keys)

	p.now.Add(int64(2 * time.Hour))
	p.churn()
	p.churn()
	if n := p.Find(keys, 0, nil).Blocks; n != 0 {
		t.Errorf("after the time of their pin %d blocks are left", n)
	}
}

// TestPinsEnd: a zero time ends a pin on all tiers.
func TestPinsEnd(t *testing.T) {
	p := newPinning(t, WriteAll)
	keys := keysFrom(0, 4)
	put(t, p.Store, keys, 0)
	p.Pin(t.Context(), keys, p.until(time.Hour))
	if n := p.Pin(t.Context(), keys, time.Time{}); n != len(keys) {
		t.Errorf("%d of %d pins have ended", n, len(keys))
	}
	if host, disk := p.Stats().Slots.Pinned, p.disk.Stats().Slots.Pinned; host != 0 || disk != 0 {
		t.Errorf("%d blocks are pinned in host memory and %d on the disk", host, disk)
	}
	p.churn()
	p.churn()
	if n := p.Find(keys, 0, nil).Blocks; n != 0 {
		t.Errorf("%d blocks are left", n)
	}
}

// TestFlushOneTier: the other tier keeps its blocks.
func TestFlushOneTier(t *testing.T) {
	p := newPinning(t, WriteAll)
	keys := keysFrom(0, 4)
	put(t, p.Store, keys, 0)
	idle(t, p.Store)
	if n, err := p.Flush(fleet.Host); n[fleet.Host] != 4 || err != nil || p.inHost(keys) != 0 || p.disk.Match(keys) != 4 {
		t.Errorf("%d flushed, %v; %d in host memory, %d on the disk", n, err, p.inHost(keys), p.disk.Match(keys))
	}
	check(t, p.Store, keys)
	if n, err := p.Flush(fleet.Disk); n[fleet.Disk] != 4 || err != nil || p.inHost(keys) != 4 || p.disk.Match(keys) != 0 {
		t.Errorf("%d flushed, %v; %d in host memory, %d on the disk", n, err, p.inHost(keys), p.disk.Match(keys))
	}
	if _, err := p.Flush(fleet.External); err == nil {
		t.Error("a tier that is not there was flushed")
	}
}

// TestPinsOfEngines: engines pin as many blocks as a quarter of host memory has slots, first blocks first, until earlier pins end. A pin
// that an operator has set is not made shorter, and a longer one of the same blocks needs no more room.
func TestPinsOfEngines(t *testing.T) {
	p := newPinning(t, WriteAll)
	first, second := keysFrom(0, 3), keysFrom(10, 2)
	put(t, p.Store, first, 0)
	put(t, p.Store, second, 0)
	idle(t, p.Store)
	p.Pin(t.Context(), first[:1], p.until(24*time.Hour))

	if n := p.PinShare(t.Context(), first, 5*time.Minute); n != 2 {
		t.Errorf("%d of 3 blocks were pinned, with room for 2", n)
	}
	if n := p.PinShare(t.Context(), second, 5*time.Minute); n != 0 {
		t.Errorf("%d blocks were pinned without room", n)
	}
	if n := p.PinShare(t.Context(), first[:2], 10*time.Minute); n != 2 {
		t.Errorf("%d of 2 pins became longer", n)
	}
	p.churn()
	if n := p.disk.Match(first); n != 2 {
		t.Errorf("%d of 2 pinned blocks are left", n)
	}

	p.now.Add(int64(11 * time.Minute))
	put(t, p.Store, second, 0)
	if n := p.PinShare(t.Context(), second, 5*time.Minute); n != 2 {
		t.Errorf("%d of 2 blocks were pinned after earlier pins have ended", n)
	}
	p.churn()
	if n := p.disk.Match(first); n != 1 {
		t.Errorf("%d blocks are left of those whose pins have ended; one is pinned by an operator", n)
	}
	if s := p.Stats(); s.Pinned != 6 || s.Unpinned != 3 {
		t.Errorf("%d pinned and %d unpinned, want 6 and 3", s.Pinned, s.Unpinned)
	}
}
