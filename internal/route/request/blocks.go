package request

import (
	"slices"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// Cut is the complete blocks of a prompt, of one size. An engine's cache is searched by blocks of the engine's size: the hashes of larger
// blocks do not follow from the hashes of their parts.
type Cut struct {
	Each   int // the number of the model's blocks in a block
	Blocks []blockhash.Block
	Chain  []blockhash.Sequence // the sequence hashes of Blocks
}

// Cut divides the prompt into blocks of each size that the model's engines have, and names them. It is a step apart from reading, because
// a request that is refused for want of ranks needs no blocks.
func (q *Prepared) Cut() {
	if q.prepared != nil {
		salt := ""
		if q.Parsed != nil {
			salt = q.Parsed.CacheSalt
		}
		seed := q.Model.Seed(salt, q.prepared.Media)
		q.Blocks = q.prepared.AppendBlocks(q.Blocks[:0], q.Model.BlockSize, seed)
		for i, size := range q.Model.CoarseSizes {
			c := q.coarse(i)
			c.Blocks = q.prepared.AppendBlocks(c.Blocks[:0], size, seed)
		}
	}

	q.Chain = blockhash.Chain(q.Chain[:0], q.Blocks)
	for i := range q.Coarse {
		q.Coarse[i].Chain = blockhash.Chain(q.Coarse[i].Chain[:0], q.Coarse[i].Blocks)
	}
}

// coarse returns the cut of the model's coarse size of that index, with the memory of an earlier one.
func (q *Prepared) coarse(i int) *Cut {
	if i == len(q.Coarse) {
		q.Coarse = slices.Grow(q.Coarse, 1)[:i+1]
	}
	q.Coarse[i].Each = q.Model.CoarseSizes[i] / q.Model.BlockSize
	return &q.Coarse[i]
}

// ChainOn returns the sequence hashes of the prompt's blocks as a worker's engine has them, and the number of the model's blocks in one.
func (q *Prepared) ChainOn(w *fleet.Worker) (chain []blockhash.Sequence, each int) {
	each = q.Model.BlocksIn(w)
	for i := range q.Coarse {
		if q.Coarse[i].Each == each {
			return q.Coarse[i].Chain, each
		}
	}
	return q.Chain, 1
}

// Kept is the blocks of a prompt, for a later decision about it. The zero value has none.
type Kept struct {
	size   int // BlockSize of the model
	blocks []blockhash.Block
	// coarse has the blocks of each of sizes, which are the model's CoarseSizes. It is empty if there were no blocks to keep.
	sizes  []int
	coarse [][]blockhash.Block
}

// Len returns the number of the prompt's blocks, of the model's size.
func (k *Kept) Len() int { return len(k.blocks) }

// Chain returns the sequence hashes of the prompt's blocks, of the model's size.
func (k *Kept) Chain() []blockhash.Sequence { return blockhash.Chain(nil, k.blocks) }

// KeepBlocks returns a copy of the prompt's blocks.
func (q *Prepared) KeepBlocks() Kept {
	k := Kept{size: q.Model.BlockSize, blocks: slices.Clone(q.Blocks), sizes: q.Model.CoarseSizes}
	for i := range q.Coarse {
		k.coarse = append(k.coarse, slices.Clone(q.Coarse[i].Blocks))
	}
	return k
}

// Size returns the bytes of the blocks' buffers.
func (q *Prepared) Size() int {
	n := cap(q.Blocks) + cap(q.Chain)
	for _, c := range q.Coarse[:cap(q.Coarse)] {
		n += cap(c.Blocks) + cap(c.Chain)
	}
	return 8 * n
}

// UseBlocks takes over kept blocks, if the model still has blocks of their sizes.
func (q *Prepared) UseBlocks(k *Kept) {
	if k.size != q.Model.BlockSize || !slices.Equal(k.sizes, q.Model.CoarseSizes) {
		return
	}
	q.Blocks = append(q.Blocks, k.blocks...)
	for i, blocks := range k.coarse {
		c := q.coarse(i)
		c.Blocks = append(c.Blocks[:0], blocks...)
	}
}
