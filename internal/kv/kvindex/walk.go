package kvindex

import (
	"math/bits"
	"unsafe"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prefetch"
)

// walk finds the nodes of a prompt's blocks. It reads the first node of each row of set bits in a run, and the last one. If both lie
// at their positions, so do all between: a sequence hash names all blocks before it, and a position in a chunk names one content. If
// the last one does not, the prompt leaves the chunk between them, and the walk bisects to find the place. So the result is exact,
// although most nodes are not read.
//
// A prompt of 6,250 blocks then needs about 200 reads instead of 6,250. Reading each block cost 9 to 14 ns in the
// caches and 30 to 60 ns out of them, however well memory was prefetched. 4 of these are the chain of hashes, the
// only remaining cost per block.
type walk struct {
	nodes  *nodes
	blocks []blockhash.Block
	now    uint8

	hashed int                           // blocks whose sequence hashes are made
	last   blockhash.Sequence            // the sequence hash of block hashed-1
	chain  [walkAhead]blockhash.Sequence // a ring, by the number of the block
}

// walkAhead is a power of two, and leaves room for two chunks beyond the present one.
const walkAhead = 4 * chunkBlocks

// next returns the holders of block i, and how many blocks from i on have the same holders, within one chunk.
// It returns nil and 0 if block i has no holders. It marks the chunk as used now.
func (w *walk) next(i int) (holders *set, n int) {
	w.hash(i + 3*chunkBlocks)
	r, pos := w.nodes.find(w.key(i))
	if r == nil {
		return nil, 0
	}
	if r.chunk.used() != w.now {
		r.chunk.setAge(w.now)
	}
	n = min(bits.TrailingZeros64(^(r.bits.Load() >> pos)), len(w.blocks)-i)
	w.prefetchAhead(i + n)
	if n > 1 && !w.isAt(i+n-1, r, pos+uint8(n-1)) {
		n = w.bisect(i, n, r, pos)
	}
	return r.set, max(n, 1)
}

// bisect returns the number of the n blocks from i on that are in the run. The first is, the last is not.
func (w *walk) bisect(i, n int, r *holderRun, pos uint8) int {
	in, out := 0, n-1
	for out-in > 1 {
		if middle := (in + out) / 2; w.isAt(i+middle, r, pos+uint8(middle)) {
			in = middle
		} else {
			out = middle
		}
	}
	return in + 1
}

// isAt reports whether block i's node is in a run, at a position.
func (w *walk) isAt(i int, r *holderRun, pos uint8) bool {
	have, p := w.nodes.find(w.key(i))
	return have == r && p == pos
}

// key is the key of block i, whose sequence hash has been made.
func (w *walk) key(i int) uint64 { return key(w.chain[i%walkAhead]) }

// hash makes the sequence hashes of the blocks before end.
func (w *walk) hash(end int) {
	end = min(end, len(w.blocks))
	for i := w.hashed; i < end; i++ {
		w.last = blockhash.Next(w.last, w.blocks[i])
		if i == 0 {
			w.last = blockhash.Sequence(w.blocks[0])
		}
		w.chain[i%walkAhead] = w.last
	}
	w.hashed = max(w.hashed, end)
}

// prefetchAhead loads the lines that the walk will read if the chunk that begins at block i is full, and the
// one after it too: the first and the last node of each. A walk reads these two nodes of a full chunk and none
// between.
func (w *walk) prefetchAhead(i int) {
	var lines [prefetch.Most]uintptr
	n := 0
	for _, j := range [...]int{i, i + chunkBlocks - 1, i + chunkBlocks, i + 2*chunkBlocks - 1} {
		if j < w.hashed {
			lines[n] = uintptr(unsafe.Pointer(w.nodes.line(w.key(j))))
			n++
		}
	}
	if n == 0 {
		return
	}

	// The first of them was prefetched a chunk ago, if that was full. Then its run can be prefetched now.
	if at, found := w.nodes.line(w.key(i)).find(w.key(i)); found {
		lines[n] = uintptr(unsafe.Pointer(at.run.Load()))
		n++
	}
	prefetch.Lines(&lines, n)
}
