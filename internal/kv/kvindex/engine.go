package kvindex

import (
	"math/bits"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// engineTable maps one rank's engine hashes to content. The rank's lock guards it. It is cut
// into segments so that growing copies a part of it, and it deletes by shifting back, so it
// holds no dead entries.
type engineTable struct{ segments [16]segment }

type segment struct {
	entries []entry
	tiers   []uint8 // 0 is an empty slot
	n       int
}

type entry struct {
	hash uint64
	seq  blockhash.Sequence
}

const entryBytes = 17

// spread makes the bits of an engine's hash even: some engines count.
func spread(hash uint64) uint64 {
	hash *= 0x9e3779b97f4a7c15
	return (hash ^ hash>>32) * 0xd6e8feb86659fd93
}

func (t *engineTable) segment(hash uint64) (s *segment, number int) {
	number = int(spread(hash) >> 60)
	return &t.segments[number], number
}

func (s *segment) home(hash uint64) int {
	hi, _ := bits.Mul64(spread(hash)<<4, uint64(len(s.entries)))
	return int(hi)
}

// find returns the position of hash, or of the empty slot that ends its run.
func (s *segment) find(hash uint64) (i int, found bool) {
	if len(s.entries) == 0 {
		return 0, false
	}
	for i = s.home(hash); s.tiers[i] != 0; {
		if s.entries[i].hash == hash {
			return i, true
		}
		if i++; i == len(s.entries) {
			i = 0
		}
	}
	return i, false
}

// get returns the content and tiers of hash; tiers is 0 where it is unknown.
func (t *engineTable) get(hash uint64) (seq blockhash.Sequence, tiers uint8) {
	s, _ := t.segment(hash)
	if i, found := s.find(hash); found {
		return s.entries[i].seq, s.tiers[i]
	}
	return 0, 0
}

// set writes hash's content and tiers, which are not 0; false means that there is no room.
func (t *engineTable) set(hash uint64, seq blockhash.Sequence, tiers uint8, b *budget) bool {
	s, number := t.segment(hash)
	i, found := s.find(hash)
	if !found {
		if float64(s.n+1) > maxFull*float64(len(s.entries)) {
			if !s.resize(max(8, int(float64(s.n+1)/newFull(number))+1), b) {
				return false
			}
			i, _ = s.find(hash)
		}
		s.n++
	}
	s.entries[i], s.tiers[i] = entry{hash, seq}, tiers
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
		s.resize(max(8, int(float64(s.n)/newFull(number))+1), b)
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
		if s.tiers[j] == 0 {
			break
		}
		// The entry at j may move to i unless its home lies cyclically within (i, j].
		if home := s.home(s.entries[j].hash); (j-home+size)%size >= (j-i+size)%size {
			s.entries[i], s.tiers[i] = s.entries[j], s.tiers[j]
			i = j
		}
	}
	s.entries[i], s.tiers[i] = entry{}, 0
}

func (s *segment) resize(size int, b *budget) bool {
	if !b.reserve(int64(size) * entryBytes) {
		return false
	}
	old := *s
	*s = segment{entries: make([]entry, size), tiers: make([]uint8, size), n: old.n}
	for i, tiers := range old.tiers {
		if tiers != 0 {
			at, _ := s.find(old.entries[i].hash)
			s.entries[at], s.tiers[at] = old.entries[i], tiers
		}
	}
	b.release(int64(len(old.entries)) * entryBytes)
	return true
}

// grow makes room for n more entries at once, as far as the budget has it.
func (t *engineTable) grow(n int, b *budget) {
	for i := range t.segments {
		s := &t.segments[i]
		if size := int(float64(s.n+n/len(t.segments))/newFull(i)) + 1; size > len(s.entries) && n >= 1<<12 {
			s.resize(size, b)
		}
	}
}

func (s *segment) drop(b *budget) {
	b.release(int64(len(s.entries)) * entryBytes)
	*s = segment{}
}
