package kvindex

import (
	"math/bits"
	"unsafe"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prefetch"
)

// engineTable maps one rank's engine hashes to content. The rank's lock guards it.
//
// It is an open-addressing hash table in 16 segments, so that growing copies only a part of it. A removal
// shifts later entries back, so there are no dead entries, however much comes and goes.
type engineTable struct{ segments [16]segment }

// segment is one part of an engineTable. A search probes along marks, of which 64 are a cache line, so it
// reads two lines even in a nearly full segment. The low half of a mark has the tiers, 0 in an empty slot.
// The high half has four bits of the hash, so that few entries are compared in vain. In a sliding-window
// table the whole mark has groups: see wide.
type segment struct {
	entries []entry
	marks   []uint8
	n       int   // entries in use
	wide    uint8 // 0xff if a whole mark has groups, else 0
}

// entry is an engine's hash and the content that it stands for.
type entry struct {
	hash uint64
	seq  blockhash.Sequence
}

const (
	entryBytes = 17   // with its mark
	marked     = 0xf0 // the bits of a mark that come from the hash

	// engineFull is the fill at which a segment grows. 0.88 would save 1.3 bytes a block, and cost half as
	// much time again.
	engineFull = 0.82
	// minSegment is the smallest number of slots.
	minSegment = 8
)

// engineNew is a segment's fill after a resize. It differs by segment, so that the segments of a table do
// not all grow at the same time.
func engineNew(number int) float64 { return 0.68 + 0.08*float64(number)/16 }

// spread mixes the bits of an engine's hash, because some engines count instead of hashing.
func spread(hash uint64) uint64 {
	hash *= 0x9e3779b97f4a7c15
	return (hash ^ hash>>32) * 0xd6e8feb86659fd93
}

// segment returns the segment of a hash: the first 4 bits of its spread.
func (t *engineTable) segment(hash uint64) (s *segment, number int) {
	number = int(spread(hash) >> 60)
	return &t.segments[number], number
}

// home returns the first slot of a search for a hash, and the bits of the hash that its mark keeps. The latter are low bits, of which the
// home and the segment depend little.
func (s *segment) home(hash uint64) (i int, bits4 uint8) {
	spread := spread(hash)
	hi, _ := bits.Mul64(spread<<4, uint64(len(s.entries)))
	return int(hi), uint8(spread) & marked &^ s.wide
}

// tiers returns the tiers or groups of a slot; 0 for an empty one.
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
		i++
		if i == len(s.marks) {
			i = 0
		}
	}
	return i, false
}

// get returns the content and tiers of hash; tiers is 0 if it is unknown.
func (t *engineTable) get(hash uint64) (seq blockhash.Sequence, tiers uint8) {
	s, _ := t.segment(hash)
	if i, found := s.find(hash); found {
		return s.entries[i].seq, s.tiers(i)
	}
	return 0, 0
}

// prefetch loads the first cache lines of the first 16 hashes, of which there is at least one. Entries and
// marks of a hash are in different lines, and the memory latency of all of them overlaps.
func (t *engineTable) prefetch(hashes []uint64) {
	var entries, marks [prefetch.Most]uintptr
	n := min(len(hashes), prefetch.Most)
	for j := range n {
		if s, _ := t.segment(hashes[j]); len(s.entries) > 0 {
			i, _ := s.home(hashes[j])
			entries[j], marks[j] = uintptr(unsafe.Pointer(&s.entries[i])), uintptr(unsafe.Pointer(&s.marks[i]))
		}
	}
	prefetch.Lines(&marks, n)
	prefetch.Lines(&entries, n)
}

// addTiers adds tiers to hash, which stands for seq, and returns its content and tiers before. If it stood for
// another content nothing changes. ok is false if there is no room.
func (t *engineTable) addTiers(hash uint64, seq blockhash.Sequence, tiers uint8, b *budget) (was blockhash.Sequence, had uint8, ok bool) {
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

// setTiers writes the content and the tiers of hash, which are not 0. False means that there is no room.
func (t *engineTable) setTiers(hash uint64, seq blockhash.Sequence, tiers uint8, b *budget) bool {
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
		if !s.resize(max(minSegment, int(float64(s.n+1)/engineNew(number))+1), b) {
			return false
		}
		i, _ = s.find(e.hash)
	}
	_, want := s.home(e.hash)
	s.entries[i], s.marks[i] = e, want|tiers
	s.n++
	return true
}

// remove removes hash, and frees memory when the segment has become sparse.
func (t *engineTable) remove(hash uint64, b *budget) {
	s, number := t.segment(hash)
	i, found := s.find(hash)
	if !found {
		return
	}
	s.removeAt(i)
	if len(s.entries) > minSegment && float64(s.n) < minFull*float64(len(s.entries)) {
		s.resize(max(minSegment, int(float64(s.n)/engineNew(number))+1), b)
	}
}

// removeAt empties slot i, and moves entries back that a search would not find behind the hole.
func (s *segment) removeAt(i int) {
	s.n--
	size := len(s.entries)
	for j := i; ; {
		j++
		if j == size {
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

// resize copies the entries into new memory of size slots. False means that there is no room for both.
func (s *segment) resize(size int, b *budget) bool {
	if !b.reserve(int64(size) * entryBytes) {
		return false
	}
	old := *s
	*s = segment{entries: make([]entry, size), marks: make([]uint8, size), n: old.n, wide: old.wide}

	// Homes are ordered by hash, whatever the size. So the copy walks both tables once, in order.
	for i, mark := range old.marks {
		if mark == 0 {
			continue
		}
		at, _ := s.home(old.entries[i].hash)
		for s.marks[at] != 0 {
			at++
			if at == size {
				at = 0
			}
		}
		s.entries[at], s.marks[at] = old.entries[i], mark
	}
	b.release(int64(len(old.entries)) * entryBytes)
	return true
}

// grow makes room for n more entries at once, as far as the budget allows. A few entries grow the table by
// themselves.
func (t *engineTable) grow(n int, b *budget) {
	for i := range t.segments {
		s := &t.segments[i]
		size := int(float64(s.n+n/len(t.segments))/engineNew(i)) + 1
		if size > len(s.entries) && n >= 1<<12 {
			s.resize(size, b)
		}
	}
}

// drop frees the memory of an empty segment.
func (s *segment) drop(b *budget) {
	b.release(int64(len(s.entries)) * entryBytes)
	*s = segment{wide: s.wide}
}
