package kvindex

import (
	"unsafe"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// walk finds the nodes of a prompt's blocks, one after the other, and works ahead of the one it
// is asked for. The chain of hashes takes 4 ns a block, each after the one before; a node that
// lies in memory takes 100 to 150 ns, but any number at a time. So 48 blocks ahead the chain is
// hashed and the nodes' first cache lines are asked for; 16 to 32 ahead they are read, and where
// a node is not in its first line the next two are asked for. Both are done block by block in
// turns, so that the processor has something to do while the chain's multiplications go on.
type walk struct {
	nodes  *nodes
	blocks []blockhash.Block
	now    uint8

	last  blockhash.Sequence
	more  [2 * prefetches]uintptr
	turns [walkAhead / prefetches]turn
}

// turn is what is known of the blocks of one turn. A node's set is nil where it was not in its
// first line.
type turn struct {
	keys  [prefetches]uint64
	lines [prefetches]*line
	sets  [prefetches]*set
}

const (
	walkAhead = 4 * prefetches
	lineBytes = lineSlots * unsafe.Sizeof(slot{})
)

func (w *walk) begin() {
	for at := 0; at < walkAhead-prefetches; at += prefetches {
		w.turn(at)
	}
}

// next returns the holders of block i, nil where there are none.
func (w *walk) next(i int) *set {
	if i%prefetches == 0 {
		w.turn(i + walkAhead - prefetches)
	}
	t := &w.turns[uint(i)/prefetches%uint(len(w.turns))]
	if s := t.sets[uint(i)%prefetches]; s != nil {
		return s
	}
	return w.nodes.lookup(t.keys[uint(i)%prefetches], w.now)
}

// turn hashes the blocks from at on, and reads those that were hashed two turns ago.
func (w *walk) turn(at int) {
	hashed, read := &w.turns[uint(at)/prefetches%uint(len(w.turns))], &w.turns[uint(at)/prefetches%uint(len(w.turns))^2]
	var hash []blockhash.Block
	if at < len(w.blocks) {
		hash = w.blocks[at:min(at+prefetches, len(w.blocks))]
	}
	last := w.last
	reads := min(len(w.blocks)-at+2*prefetches, prefetches)
	if at < 2*prefetches {
		reads = 0
	}
	missed := 0
	for j := range prefetches {
		if j < len(hash) {
			if last = blockhash.Next(last, hash[j]); at+j == 0 {
				last = blockhash.Sequence(hash[j])
			}
			hashed.keys[j] = key(last)
			hashed.lines[j] = w.nodes.line(hashed.keys[j])
		}
		if j < reads {
			s, found := read.lines[j].find(read.keys[j])
			if read.sets[j] = nil; found {
				read.sets[j] = s.use(read.keys[j], w.now)
			} else {
				next := uintptr(unsafe.Pointer(read.lines[j])) + lineBytes
				w.more[missed&(2*prefetches-1)], w.more[(missed+1)&(2*prefetches-1)] = next, next+lineBytes
				missed += 2
			}
		}
	}
	w.last = last
	if len(hash) > 0 {
		prefetch((*[prefetches]uintptr)(unsafe.Pointer(&hashed.lines)))
	}
	for i := 0; i < missed; i += prefetches {
		prefetch((*[prefetches]uintptr)(w.more[i:]))
	}
}
