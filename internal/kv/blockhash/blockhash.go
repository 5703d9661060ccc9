// Package blockhash turns token ids into block hashes and sequence hashes.
//
// A block is a fixed number of tokens; only complete blocks are hashed. A block hash
// covers the tokens of one block; a sequence hash covers the whole chain up to it. Both
// are byte-compatible with NVIDIA Dynamo's (xxh3-64, seed 1337), so that its workers and
// tools name the same blocks as we do. Engines have hashes of their own; of those vLLM's are
// made here ([VLLM]), to verify what it says. It knows nothing of events or of who holds what.
//
// All functions are pure and safe for concurrent use; types with a buffer say so.
package blockhash

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// Block is the hash of one block's tokens alone.
type Block uint64

// Sequence is the hash of a chain of blocks. The first block's sequence hash is its block hash.
type Sequence uint64

// seed is Dynamo's: lib/kv-router/src/protocols.rs, XXH3_SEED.
const seed = 1337

// Seed returns the seed of block hashes under a LoRA adapter and a cache salt; both may be
// empty. Prompts under different adapters or salts share no blocks.
func Seed(lora, salt string) uint64 {
	s := uint64(seed)
	if lora != "" {
		s += xxh3.HashStringSeed(lora, 0)
	}
	if salt != "" {
		s += xxh3.HashStringSeed(salt, 1)
	}
	return s
}

// Append hashes every complete block of size tokens and appends the hashes to dst. The
// tokens of an incomplete last block are not hashed.
func Append(dst []Block, tokens []uint32, size int, seed uint64) []Block {
	for len(tokens) >= size {
		dst = append(dst, Hash(tokens[:size], seed))
		tokens = tokens[size:]
	}
	return dst
}

// Hash is the block hash of tokens, read as little-endian 32-bit numbers.
func Hash(tokens []uint32, seed uint64) Block {
	if littleEndian && len(tokens) > 0 {
		raw := unsafe.Slice((*byte)(unsafe.Pointer(&tokens[0])), 4*len(tokens))
		return Block(xxh3.HashSeed(raw, seed))
	}
	raw := make([]byte, 0, 4*len(tokens))
	for _, t := range tokens {
		raw = binary.LittleEndian.AppendUint32(raw, t)
	}
	return Block(xxh3.HashSeed(raw, seed))
}

// Chain appends the sequence hashes of blocks to dst.
func Chain(dst []Sequence, blocks []Block) []Sequence {
	var parent Sequence
	for i, b := range blocks {
		if i == 0 {
			parent = Sequence(b)
		} else {
			parent = Next(parent, b)
		}
		dst = append(dst, parent)
	}
	return dst
}

// Next is the sequence hash of the chain parent followed by block b: xxh3 of both, little
// endian, with the seed. It is written out for these 16 bytes and this seed, because a chain
// can only be hashed one block after the other: through the library a block took 7.5 ns, of
// which 4 are the multiplications that nobody can avoid.
func Next(parent Sequence, b Block) Sequence {
	lo, hi := uint64(parent)^flipParent, uint64(b)^flipBlock
	high, low := bits.Mul64(lo, hi)
	sum := 16 + bits.ReverseBytes64(lo) + hi + (high ^ low)
	sum = (sum ^ sum>>37) * 0x165667919E3779F9
	return Sequence(sum ^ sum>>32)
}

// Words of xxh3's secret, from byte 24 and from byte 40, with the seed worked in.
const (
	flipParent = 0x6782737bea423ef2
	flipBlock  = 0xaf56bc3b09964d01
)

var littleEndian = func() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}()
