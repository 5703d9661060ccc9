package kvindex

import (
	"math/bits"
	"unsafe"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// engineTable maps one rank's engine hashes to content. The rank's lock guards it. It is cut
// into segments so that growing copies a part of it, and it deletes by shifting back, so it
// holds no dead entries.
type engineTable struct{ segments [16]segment }

// segment probes along marks, of which 64 are a cache line: it may be nearly full and a search
// still reads two lines. A mark has the tiers in its low half, 0 in an empty slot, and in its
// high half four bits of the hash, so that few entries are looked at in vain.
type segment struct {
	entries []entry
	marks   []uint8
	n       int
	wide    uint8 // 0xff where all of a mark is tiers
}

type entry struct {
	hash uint64
	seq  blockhash.Sequence
}

const (
	entryBytes = 17
	marked     = 0xf0 // of a mark, the bits of the hash

	engineFull = 0.82 // when a segment grows; at 0.88 it is 1.3 bytes a block less, and half as much again of the time
)

// engineNew is a segment's fill after a resize; not all of a table grow at the same time.
func engineNew(number int) float64 { return 0.68 + 0.08*float64(number)/16 }

// spread makes the bits of an engine's hash even: some engines count.
func spread(hash uint64) uint64 {
	hash *= 0x9e3779b97f4a7c15
	return (hash ^ hash>>32) * 0xd6e8feb86659fd93
}

func (t *engineTable) segment(hash uint64) (s *segment, number int) {
	number = int(spread(hash) >> 60)
	return &t.segments[number], number
}

// home is where to look for a hash first, and bits of it that its home and segment say little of.
func (s *segment) home(hash uint64) (i int, bits4 uint8) {
	spread := spread(hash)
	hi, _ := bits.Mul64(spread<<4, uint64(len(s.entries)))
	return int(hi), uint8(spread) & marked &^ s.wide
}

// tiers of a mark, 0 in an empty slot.
func (s *segment) tiers(i int) uint8 { return s.marks[i] & (^uint8(marked) | s.wide) }

// find returns the position of hash, or of the empty slot that ends its run.
func (s *segment) find(hash uint64) (i int, found bool) {
	if len(s.entries) == 0 {
		return 0, false
	}
	i, want := s.home(hash)
	for s.marks[i] != 0 {
		if s.marks[i]&marked&^s.wide == want && s.entries[i].hash == hash {
			return i, true
		}
		if i++; i == len(s.marks) {
			i = 0
		}
	}
	return i, false
}

// get returns the content and tiers of hash; tiers is 0 where it is unknown.
func (t *engineTable) get(hash uint64) (seq blockhash.Sequence, tiers uint8) {
	s, _ := t.segment(hash)
	if i, found := s.find(hash); found {
		return s.entries[i].seq, s.tiers(i)
	}
	return 0, 0
}

// fetch asks for the first cache lines of the first 16 hashes, of which there is at least one.
func (t *engineTable) fetch(hashes []uint64) {
	var entries, marks [prefetches]uintptr
	n := min(len(hashes), prefetches)
	for j := range n {
		if s, _ := t.segment(hashes[j]); len(s.entries) > 0 {
			i, _ := s.home(hashes[j])
			entries[j], marks[j] = uintptr(unsafe.Pointer(&s.entries[i])), uintptr(unsafe.Pointer(&s.marks[i]))
		}
	}
	prefetch(&marks, n)
	prefetch(&entries, n)
}

// add adds tiers to hash, which stands for seq, and returns what it was before. Where it stood
// for something else nothing changes; ok is false where there is no room.
func (t *engineTable) add(hash uint64, seq blockhash.Sequence, tiers uint8, b *budget) (was blockhash.Sequence, had uint8, ok bool) {
	s, number := t.segment(hash)
	i, found := s.find(hash)
	if !found {
		return 0, 0, t.insert(s, number, i, entry{hash, seq}, tiers, b)
	}
	was, had = s.entries[i].seq, s.tiers(i)
	if was == seq {
		s.marks[i] |= tiers
	}
	return was, had, true
}

// set writes hash's content and tiers, which are not 0; false means that there is no room.
func (t *engineTable) set(hash uint64, seq blockhash.Sequence, tiers uint8, b *budget) bool {
	s, number := t.segment(hash)
	i, found := s.find(hash)
	if !found {
		return t.insert(s, number, i, entry{hash, seq}, tiers, b)
	}
	_, want := s.home(hash)
	s.entries[i].seq, s.marks[i] = seq, want|tiers
	return true
}

// insert adds an entry that find did not find; i is the slot that ends its run.
func (t *engineTable) insert(s *segment, number, i int, e entry, tiers uint8, b *budget) bool {
	if float64(s.n+1) > engineFull*float64(len(s.entries)) {
		if !s.resize(max(8, int(float64(s.n+1)/engineNew(number))+1), b) {
			return false
		}
		i, _ = s.find(e.hash)
	}
	_, want := s.home(e.hash)
	s.entries[i], s.marks[i] = e, want|tiers
	s.n++
	return true
}

// remove forgets hash and gives memory back when the segment has become sparse.
func (t *engineTable) remove(hash uint64, b *budget) {
	s, number := t.segment(hash)
	i, found := s.find(hash)
	if !found {
		return
	}
	s.removeAt(i)
	if len(s.entries) > 8 && float64(s.n) < minFull*float64(len(s.entries)) {
		s.resize(max(8, int(float64(s.n)/engineNew(number))+1), b)
	}
}

// removeAt empties slot i and moves back what probed past it.
func (s *segment) removeAt(i int) {
	s.n--
	size := len(s.entries)
	for j := i; ; {
		if j++; j == size {
			j = 0
		}
		if s.marks[j] == 0 {
			break
		}
		// The entry at j may move to i unless its home lies cyclically within (i, j].
		home, _ := s.home(s.entries[j].hash)
		fromHome, fromHole := j-home, j-i
		if fromHome < 0 {
			fromHome += size
		}
		if fromHole < 0 {
			fromHole += size
		}
		if fromHome >= fromHole {
			s.entries[i], s.marks[i] = s.entries[j], s.marks[j]
			i = j
		}
	}
	s.entries[i], s.marks[i] = entry{}, 0
}

func (s *segment) resize(size int, b *budget) bool {
	if !b.reserve(int64(size) * entryBytes) {
		return false
	}
	old := *s
	*s = segment{entries: make([]entry, size), marks: make([]uint8, size), n: old.n, wide: old.wide}
	// Homes are in the order of hashes, whatever the size: so both tables are gone through once,
	// from one end to the other.
	for i, mark := range old.marks {
		if mark == 0 {
			continue
		}
		at, _ := s.home(old.entries[i].hash)
		for s.marks[at] != 0 {
			if at++; at == size {
				at = 0
			}
		}
		s.entries[at], s.marks[at] = old.entries[i], mark
	}
	b.release(int64(len(old.entries)) * entryBytes)
	return true
}

// grow makes room for n more entries at once, as far as the budget has it.
func (t *engineTable) grow(n int, b *budget) {
	for i := range t.segments {
		s := &t.segments[i]
		if size := int(float64(s.n+n/len(t.segments))/engineNew(i)) + 1; size > len(s.entries) && n >= 1<<12 {
			s.resize(size, b)
		}
	}
}

func (s *segment) drop(b *budget) {
	b.release(int64(len(s.entries)) * entryBytes)
	*s = segment{wide: s.wide}
}
