package workeragent

import (
	"cmp"
	"slices"
)

// past holds the newest batches of one rank as they were published, for routers that missed some. The encoded
// bytes can be sent by a replay as they are, and take a tenth of the memory that the decoded events would.
//
// Invariant: batches are sorted by number, and bytes is the sum of their sizes, at most maxBytes.
type past struct {
	maxBatches, maxBytes int

	batches []pastBatch
	bytes   int
}

// pastBatch is one batch as it was published.
type pastBatch struct {
	seq  uint64
	data []byte
}

// pastBatchCost is the memory that a batch needs beside its bytes: its place in the list, and the allocator's rounding.
const pastBatchCost = 64

func (b *pastBatch) size() int { return cap(b.data) + pastBatchCost }

// addBatch appends a batch and drops the oldest ones beyond the bounds.
func (p *past) addBatch(seq uint64, data []byte) {
	b := pastBatch{seq, data}
	p.batches = append(p.batches, b)
	p.bytes += b.size()

	drop := 0
	for len(p.batches)-drop > p.maxBatches || p.bytes > p.maxBytes {
		p.bytes -= p.batches[drop].size()
		drop++
	}
	if drop > 0 {
		clear(p.batches[:drop]) // so that their bytes can be freed
		p.batches = p.batches[drop:]
	}
}

// clear drops all batches.
func (p *past) clear() {
	p.batches = nil
	p.bytes = 0
}

// has reports whether the batch of that number is remembered.
func (p *past) has(seq uint64) bool {
	_, found := p.find(seq)
	return found
}

// from returns the batches from number seq on: at least one if there is one, and otherwise as many as have room
// bytes together.
func (p *past) from(seq uint64, room int) [][]byte {
	var page [][]byte
	i, _ := p.find(seq)
	for _, b := range p.batches[i:] {
		room -= len(b.data)
		if room < 0 && len(page) > 0 {
			break
		}
		page = append(page, b.data)
	}
	return page
}

// find returns the position of the first batch with that number or a higher one.
func (p *past) find(seq uint64) (i int, found bool) {
	return slices.BinarySearchFunc(p.batches, seq, func(b pastBatch, seq uint64) int { return cmp.Compare(b.seq, seq) })
}
