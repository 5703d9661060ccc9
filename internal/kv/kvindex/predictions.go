package kvindex

import (
	"math/bits"
	"unsafe"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// predictions are the blocks that one rank is expected to hold until a time, because a request was sent there. Each has
// a bit in its node's set, beside the bits of the tiers. The records here take the bits back when their time is over.
// The rank's lock guards them.
//
// One call of Predict makes one prediction, which has a part for each chunk. Exactly one part owns a predicted
// block: the part of the prediction that lasts longest. To prolong a block is to move a bit from the old part to
// the new one. When a prediction ends, the blocks that its parts still own end. So a block needs no record but
// its hash, which finds the node.
//
//	event                                   owner of the block
//	Predict, and no part owns it            the new part
//	Predict, and the owner ends earlier     the new part
//	Predict, and the owner ends later       unchanged
//	the owner's prediction ends             none; the bit is cleared
//	Withdraw, and the owner ends by then    none; the bit is cleared
//	the engine reports the block, removed   none; the bit is cleared with the device's
//
// Invariant: a node has the rank's predicted bit exactly if one part owns it.
type predictions struct {
	n       int          // predicted blocks
	size    int          // blocks in all parts, owned or not
	heap    []prediction // a min-heap by the time of their ends
	byChunk map[*chunk]*predictionPart
	spare   [spareClasses]spare
}

// prediction is the blocks that one call predicted.
type prediction struct {
	at    int64 // when it ends, in unix nanoseconds
	parts *predictionPart
}

// predictionPart is the part of a prediction that lies in one chunk.
type predictionPart struct {
	chunk   *chunk
	at      int64                // the prediction's end
	owned   uint64               // a bit for each position in the chunk
	seqs    []blockhash.Sequence // from position start on; undefined at positions without a bit in owned
	start   uint8
	next    *predictionPart // the next part of the prediction, or the next spare one
	sibling *predictionPart // the next part that owns blocks of the same chunk
}

// spare is unused parts of one capacity. A rank at its limit reuses them, and allocates nothing.
type spare struct {
	first *predictionPart
	n     int
}

const (
	spareClasses  = 5 // parts have room for 4, 8, 16, 32 or 64 blocks
	sparePerClass = 16
	partBytes     = int64(unsafe.Sizeof(predictionPart{})) + 64 // with its entries in the map and in the heap
)

// bytes is the size of the part in the budget.
func (p *predictionPart) bytes() int64 { return partBytes + 8*int64(cap(p.seqs)) }

// after is the position behind the part's last.
func (p *predictionPart) after() int { return int(p.start) + len(p.seqs) }

// class is the class of spare parts that have room for some blocks.
func class(blocks int) int { return max(0, bits.Len(uint(blocks-1))-2) }

// allocate returns a part with room for some blocks, at most 64; nil if the budget has none.
func (p *predictions) allocate(blocks int, b *budget) *predictionPart {
	c := class(blocks)
	if s := &p.spare[c]; s.n > 0 {
		t := s.first
		s.first, s.n = t.next, s.n-1
		t.next = nil
		return t
	}
	t := &predictionPart{}
	if !b.reserve(t.bytes() + 8*4<<c) {
		return nil
	}
	t.seqs = make([]blockhash.Sequence, 0, 4<<c)
	return t
}

// recycle takes back a part that owns nothing.
func (p *predictions) recycle(t *predictionPart, b *budget) {
	p.size -= len(t.seqs)
	s := &p.spare[class(cap(t.seqs))]
	if s.n == sparePerClass {
		b.release(t.bytes())
		return
	}
	*t = predictionPart{seqs: t.seqs[:0], next: s.first}
	s.first, s.n = t, s.n+1
}

// dropSpare frees all spare parts.
func (p *predictions) dropSpare(b *budget) {
	for c := range p.spare {
		for t := p.spare[c].first; t != nil; t = t.next {
			b.release(t.bytes())
		}
		p.spare[c] = spare{}
	}
}

// owner returns the part that owns a position of a chunk, nil if none does.
func (p *predictions) owner(at *chunk, bit uint64) *predictionPart {
	t := p.byChunk[at]
	for t != nil && t.owned&bit == 0 {
		t = t.sibling
	}
	return t
}

// ownBlock makes a part the owner of a block that none owns.
func (p *predictions) ownBlock(t *predictionPart, bit uint64) {
	p.n++
	if t.owned == 0 {
		if p.byChunk == nil {
			p.byChunk = map[*chunk]*predictionPart{}
		}
		t.sibling = p.byChunk[t.chunk]
		p.byChunk[t.chunk] = t
	}
	t.owned |= bit
}

// disown takes blocks from the part that owns them.
func (p *predictions) disown(t *predictionPart, owned uint64) {
	p.n -= bits.OnesCount64(owned)
	t.owned &^= owned
	if t.owned != 0 {
		return
	}

	// A part that owns nothing leaves the list of its chunk.
	first := p.byChunk[t.chunk]
	switch {
	case first != t:
		for ; first.sibling != t; first = first.sibling {
		}
		first.sibling = t.sibling
	case t.sibling != nil:
		p.byChunk[t.chunk] = t.sibling
	default:
		delete(p.byChunk, t.chunk)
	}
	t.sibling = nil
}

// push adds a prediction to the heap.
func (p *predictions) push(b prediction) {
	p.heap = append(p.heap, b)
	for i := len(p.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if p.heap[up].at <= p.heap[i].at {
			return
		}
		p.heap[up], p.heap[i] = p.heap[i], p.heap[up]
		i = up
	}
}

// popFirst takes the prediction that ends first off the heap.
func (p *predictions) popFirst() prediction {
	first, last := p.heap[0], len(p.heap)-1
	p.heap[0], p.heap[last] = p.heap[last], prediction{}
	p.heap = p.heap[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return first
		}
		if down+1 < last && p.heap[down+1].at < p.heap[down].at {
			down++
		}
		if p.heap[i].at <= p.heap[down].at {
			return first
		}
		p.heap[i], p.heap[down] = p.heap[down], p.heap[i]
		i = down
	}
}
