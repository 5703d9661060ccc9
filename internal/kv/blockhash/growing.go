package blockhash

// Growing hashes a prompt that grows: however its tokens are cut into pieces, the hashes are
// those of the whole, and no token is hashed twice. It belongs to one goroutine at a time.
type Growing struct {
	size      int
	seed      uint64
	blocks    []Block
	sequences []Sequence
	rest      []uint32 // of the block that is not complete
}

// NewGrowing returns an empty prompt of blocks of size tokens, at least 1, under [Seed].
func NewGrowing(size int, seed uint64) *Growing {
	return &Growing{size: max(size, 1), seed: seed}
}

// Append adds tokens at the end. They are only read during the call.
func (g *Growing) Append(tokens []uint32) {
	if len(g.rest) > 0 {
		n := min(len(tokens), g.size-len(g.rest))
		g.rest, tokens = append(g.rest, tokens[:n]...), tokens[n:]
		if len(g.rest) < g.size {
			return
		}
		g.add(Hash(g.rest, g.seed))
		g.rest = g.rest[:0]
	}
	for ; len(tokens) >= g.size; tokens = tokens[g.size:] {
		g.add(Hash(tokens[:g.size], g.seed))
	}
	g.rest = append(g.rest, tokens...)
}

func (g *Growing) add(b Block) {
	next := Sequence(b)
	if n := len(g.sequences); n > 0 {
		next = Next(g.sequences[n-1], b)
	}
	g.blocks, g.sequences = append(g.blocks, b), append(g.sequences, next)
}

// Blocks are the hashes of the complete blocks, good until the next Append.
func (g *Growing) Blocks() []Block { return g.blocks }

// Sequences are the hashes of the chains up to each complete block, good until the next Append.
func (g *Growing) Sequences() []Sequence { return g.sequences }
