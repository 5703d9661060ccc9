package kvindex

import "sync/atomic"

// budget counts bytes against the bound.
type budget struct {
	max  int64
	used atomic.Int64
}

// reserve takes n bytes, or none and returns false.
func (b *budget) reserve(n int64) bool {
	if b.used.Add(n) <= b.max {
		return true
	}
	b.used.Add(-n)
	return false
}

func (b *budget) release(n int64) { b.used.Add(-n) }

// pressed says whether blocks should be forgotten to make room.
func (b *budget) pressed() bool { return b.used.Load() > b.max-b.max/8 }

// ages is a coarse clock that advances with the blocks stored, so that "least recently" has
// a meaning without time: about 64 ticks to a full index. A node has 8 bits of it, so one that
// is four full indexes old looks young again; under pressure none is.
type ages struct {
	stored  atomic.Uint64
	granule uint64
}

func (a *ages) now() uint8    { return uint8(a.stored.Load() / a.granule) }
func (a *ages) advance(n int) { a.stored.Add(uint64(n)) }
