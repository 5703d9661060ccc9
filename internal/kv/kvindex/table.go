package kvindex

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// table is the nodes of a shard. Its size is a multiple of lineSlots and never changes; a shard that grows
// or shrinks gets another table.
type table struct{ slots []slot }

// slot is a node, or empty.
type slot struct {
	// word has the key without its first 8 bits, which chose the shard, and below them the node's position in
	// its chunk. 0 is an empty slot. It changes only while run is nil.
	word atomic.Uint64
	run  atomic.Pointer[holderRun]
}

// The layout of a table: slots in a cache line, bytes of a slot, and the bits of a word that have the
// position.
const (
	lineSlots = 4
	slotBytes = int64(unsafe.Sizeof(slot{}))
	posBits   = 8
)

// word is the word of a slot.
func word(key uint64, pos uint8) uint64 { return key<<posBits | uint64(pos) }

// where returns the run and the position of the node of key. False means that the slot is of another key, or
// has become so meanwhile.
func (s *slot) where(key uint64) (r *holderRun, pos uint8, ok bool) {
	w := s.word.Load()
	r = s.run.Load()
	return r, uint8(w), r != nil && w>>posBits == key<<posBits>>posBits && s.word.Load() == w
}

// Tables are rebuilt when they are fuller than maxFull or emptier than minFull, to a fill between. So 16
// bytes a slot are 21 to 26 bytes a node. In a table that is about to grow, the node stored last is in its
// first cache line nearly four times in five at 0.78, and less than every second time at 0.85.
const (
	maxFull = 0.78
	minFull = 0.50
)

// newFull is the fill after a rebuild. It differs by shard: equally full shards would all grow at the same
// time.
func newFull(i int) float64 { return 0.62 + 0.08*float64(i%16)/16 }

// newSize is the size of a rebuilt table of nodes.
func newSize(live, shard int) int {
	size := int(float64(live)/newFull(shard)) + 1
	return (max(2*lineSlots, size) + lineSlots - 1) / lineSlots * lineSlots
}

// smallTable is the size below which tables shrink later, because little is gained.
const smallTable = 1024

// sparse reports whether a table should shrink.
func sparse(live, size int) bool {
	if size < 2*smallTable {
		return size > 8 && float64(live) < minFull/2*float64(size)
	}
	return float64(live) < minFull*float64(size)
}

// key is a sequence hash as tables use it.
func key(seq blockhash.Sequence) uint64 {
	if uint64(seq)<<posBits == 0 {
		return uint64(seq) | 1 // 0 marks an empty slot; sharing is no likelier than any collision
	}
	return uint64(seq)
}

// home returns the first slot of a search for a key: the first of a cache line.
func (t *table) home(key uint64) int { return t.homeOf(key << posBits) }

// homeOf is home for a key that has lost the bits that chose the shard, as in a word.
func (t *table) homeOf(rest uint64) int {
	hi, _ := bits.Mul64(rest, uint64(len(t.slots)))
	return int(hi) &^ (lineSlots - 1)
}

// at returns the slot of key, or the empty slot that ends its row. The shard is locked.
func (t *table) at(key uint64) (s *slot, found bool) {
	tag := key << posBits >> posBits
	for i := t.home(key); ; {
		s = &t.slots[i]
		switch w := s.word.Load(); {
		case w>>posBits == tag:
			return s, true
		case w == 0:
			return s, false
		}
		i++
		if i == len(t.slots) {
			i = 0
		}
	}
}

// search is at for readers, which hold no lock: forward, then back. See nodes.
func (t *table) search(key uint64) (r *holderRun, pos uint8) {
	home := t.home(key)
	end := home
	for t.slots[end].word.Load() != 0 {
		if r, pos, ok := t.slots[end].where(key); ok {
			return r, pos
		}
		end++
		if end == len(t.slots) {
			end = 0
		}
		if end == home {
			break
		}
	}

	for end != home {
		end--
		if end < 0 {
			end = len(t.slots) - 1
		}
		if r, pos, ok := t.slots[end].where(key); ok {
			return r, pos
		}
	}
	return nil, 0
}

// fill copies the slots in use into an empty table that no reader has seen. So it needs no atomic stores,
// whose barriers would be two thirds of its time. Homes are ordered by key, whatever the size, so it walks
// both tables once, in order.
func (t *table) fill(from []slot) {
	to := unsafe.Slice((*plainSlot)(unsafe.Pointer(&t.slots[0])), len(t.slots))
	for i := range from {
		w := from[i].word.Load()
		if w == 0 {
			continue
		}
		at := t.homeOf(w >> posBits << posBits)
		for to[at].word != 0 {
			at++
			if at == len(to) {
				at = 0
			}
		}
		to[at] = plainSlot{w, from[i].run.Load()}
	}
}

// plainSlot has the memory layout of a slot, without atomic operations.
type plainSlot struct {
	word uint64
	run  *holderRun
}

// remove empties a slot and closes the gap. The last node behind it that may lie there moves into it, and
// then the gap that this leaves is closed in the same way. The shard is locked.
//
// Readers rely on the order of stores: run is nil while word changes, and the copy in the gap is complete before
// the original slot is emptied.
func (t *table) remove(at *slot) {
	size := len(t.slots)
	hole := int((uintptr(unsafe.Pointer(at)) - uintptr(unsafe.Pointer(&t.slots[0]))) / unsafe.Sizeof(*at))
	for {
		last := -1
		for i, far := hole+1, 1; ; i, far = i+1, far+1 {
			if i == size {
				i = 0
			}
			w := t.slots[i].word.Load()
			if w == 0 {
				break
			}
			fromHome := i - t.homeOf(w>>posBits<<posBits)
			if fromHome < 0 {
				fromHome += size
			}
			if fromHome >= far {
				last = i
			}
		}

		gap := &t.slots[hole]
		gap.run.Store(nil)
		if last < 0 {
			gap.word.Store(0)
			return
		}
		gap.word.Store(t.slots[last].word.Load())
		gap.run.Store(t.slots[last].run.Load())
		hole = last
	}
}
