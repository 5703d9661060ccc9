package recency

import (
	"math/bits"
	"sync"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// samples is the number of blocks that a stack holds of a full cache, at most.
const samples = 512

// places is the number of uses that a stack records before its blocks get new numbers.
const places = 3 * samples

// Stack is the blocks of one rank by their last use. The zero value is empty and ready.
type Stack struct {
	mu     sync.Mutex
	mask   uint64                        // guarded by mu; a block is in the sample if its hash has none of these bits
	each   int                           // guarded by mu; how many blocks one of the sample stands for
	placed map[blockhash.Sequence]uint32 // guarded by mu; the place of each block's last use
	blocks []blockhash.Sequence          // guarded by mu; by place; 0 if the block was used again since
	// above is a Fenwick tree over the places. It counts the places with a block.
	above [places + 1]int32 // guarded by mu
}

// Touch records that a prompt uses the blocks of a chain, on a rank of capacity blocks. An engine frees the blocks of a
// prompt from its end, so the first block of the chain is the one used last. Capacity must be positive. A stack whose
// capacity changes by so much that the sample changes begins again.
func (s *Stack) Touch(chain []blockhash.Sequence, capacity int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scale(capacity)
	for i := len(chain) - 1; i >= 0; i-- {
		if s.samples(chain[i]) {
			s.raise(chain[i])
		}
	}
}

// Kept returns how many of the first have blocks of a chain a rank of capacity blocks will still hold after the prompts
// that have touched the stack. It returns have if the stack knows none of them to be beyond the capacity.
func (s *Stack) Kept(chain []blockhash.Sequence, have, capacity int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scale(capacity)
	kept := 0 // blocks that are certainly kept
	for i, block := range chain[:have] {
		if !s.samples(block) {
			continue
		}
		place, known := s.placed[block]
		if !known {
			continue
		}
		over := s.distance(place) - capacity
		if over >= 0 {
			// The blocks between two of the sample were used together with the later one, each after the next.
			return max(kept, i-over)
		}
		kept = i + 1
	}
	return have
}

// scale sets the share of the blocks that are in the sample.
func (s *Stack) scale(capacity int) {
	shift := bits.Len(uint(max(0, capacity-1) / samples))
	if s.placed != nil && s.mask == 1<<shift-1 {
		return
	}
	s.mask = 1<<shift - 1
	s.each = 1 << shift
	s.placed = map[blockhash.Sequence]uint32{}
	s.blocks = s.blocks[:0]
	clear(s.above[:])
}

func (s *Stack) samples(block blockhash.Sequence) bool { return uint64(block)&s.mask == 0 }

// raise puts a block on top of the stack.
func (s *Stack) raise(block blockhash.Sequence) {
	if len(s.blocks) == places {
		s.renumber()
	}
	if old, known := s.placed[block]; known {
		s.blocks[old] = 0
		s.addAbove(old, -1)
	}
	s.placed[block] = uint32(len(s.blocks))
	s.addAbove(uint32(len(s.blocks)), 1)
	s.blocks = append(s.blocks, block)
}

// distance is the number of blocks that were used after the one at a place.
func (s *Stack) distance(place uint32) int {
	upTo := 0
	for i := int(place) + 1; i > 0; i -= i & -i {
		upTo += int(s.above[i])
	}
	return (len(s.placed) - upTo) * s.each
}

func (s *Stack) addAbove(place uint32, n int32) {
	for i := int(place) + 1; i <= places; i += i & -i {
		s.above[i] += n
	}
}

// renumber gives the blocks that were used last the first places, in their order. It forgets those beyond twice the
// sample of a full cache: no engine holds them any more.
func (s *Stack) renumber() {
	drop := len(s.placed) - 2*samples
	kept := s.blocks[:0]
	for _, block := range s.blocks {
		switch {
		case block == 0:
		case drop > 0:
			drop--
			delete(s.placed, block)
		default:
			s.placed[block] = uint32(len(kept))
			kept = append(kept, block)
		}
	}

	s.blocks = kept
	clear(s.above[:])
	for place := range kept {
		s.addAbove(uint32(place), 1)
	}
}
