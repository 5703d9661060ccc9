package kvindex

import "sync/atomic"

// budget counts the index's bytes against its bound. Invariant: used is the sum of all bytes that are reserved and not released, and never
// above max after reserve has returned.
type budget struct {
	max  int64
	used atomic.Int64
}

// reserve adds n bytes. If they would exceed the bound it adds none and returns false.
func (b *budget) reserve(n int64) bool {
	if b.used.Add(n) <= b.max {
		return true
	}
	b.used.Add(-n)
	return false
}

// release gives back n bytes that were reserved.
func (b *budget) release(n int64) { b.used.Add(-n) }

// pressed reports whether blocks should be evicted to make room: above seven eighths of the bound.
func (b *budget) pressed() bool { return b.used.Load() > usable(b.max) }

// ages is a coarse clock that advances with the blocks that are stored, because the package reads no time.
// About 64 ticks pass while as many blocks are stored as the index has room for. Chunks keep 8 bits of it.
// So one that is four full indexes old would look young again; eviction does not let it get that old.
type ages struct {
	stored  atomic.Uint64 // blocks
	granule uint64        // blocks to a tick
}

// now is the present tick. advance counts blocks that are stored.
func (a *ages) now() uint8 { return uint8(a.stored.Load() / a.granule) }

// advance counts n stored blocks.
func (a *ages) advance(n int) { a.stored.Add(uint64(n)) }
