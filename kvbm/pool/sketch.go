package pool

import (
	"encoding/binary"

	"github.com/stator-project/stator/internal/kv/block"
)

// Sketch estimates how often keys were seen of late, in four bits for each key and row. It is the count-min sketch of TinyLFU:
// Einziger, Friedman and Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM Transactions on Storage 13(4), 2017.
// Counters are halved after ten samples for each key of its capacity, so that old popularity fades.
type Sketch struct {
	rows    [sketchRows][]uint64 // 16 counters in each number
	samples int                  // since the last halving, without the halved counts
	limit   int
}

const (
	sketchRows       = 4
	countersPerWord  = 16
	highestCount     = 15
	samplesPerKey    = 10
	maxSketchKeys    = 1 << 28
	lowBitsOfCounter = 0x7777777777777777 // what remains of each counter after all were shifted by one
)

// NewSketch returns a sketch for a number of keys, which is rounded up to a power of two from 16 to 2^28. It needs two bytes for
// each.
func NewSketch(keys int) *Sketch {
	size := countersPerWord
	for size < keys && size < maxSketchKeys {
		size *= 2
	}

	s := &Sketch{limit: samplesPerKey * size}
	for r := range s.rows {
		s.rows[r] = make([]uint64, size/countersPerWord)
	}
	return s
}

// Add counts one use of a key. Only the lowest of its counters grow, which keeps collisions from adding up.
func (s *Sketch) Add(key block.Key) {
	lowest := s.Seen(key)
	if lowest < highestCount {
		for r := range s.rows {
			word, shift := s.at(r, &key)
			if *word>>shift&highestCount == uint64(lowest) {
				*word += 1 << shift
			}
		}
	}

	s.samples++
	if s.samples >= s.limit {
		s.halve()
	}
}

// Seen estimates how often a key was added of late: from 0 to 15, and never less than the truth up to there.
func (s *Sketch) Seen(key block.Key) int {
	lowest := uint64(highestCount)
	for r := range s.rows {
		word, shift := s.at(r, &key)
		lowest = min(lowest, *word>>shift&highestCount)
	}
	return int(lowest)
}

// at returns the position of a key's counter in a row. Both halves of the key are hashes.
func (s *Sketch) at(row int, key *block.Key) (word *uint64, shift uint) {
	hash := binary.LittleEndian.Uint64(key[:8]) + uint64(row)*(binary.LittleEndian.Uint64(key[8:])|1)
	hash ^= hash >> 32
	counters := s.rows[row]
	return &counters[hash/countersPerWord&uint64(len(counters)-1)], uint(hash % countersPerWord * 4)
}

func (s *Sketch) halve() {
	for _, row := range s.rows {
		for i := range row {
			row[i] = row[i] >> 1 & lowBitsOfCounter
		}
	}
	s.samples /= 2
}
