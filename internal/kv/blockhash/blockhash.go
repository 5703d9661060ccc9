// Package blockhash turns token ids into block hashes and sequence hashes.
//
// A block is a fixed number of tokens; only complete blocks are hashed. A block hash covers the tokens of
// one block. A sequence hash covers all blocks from the root up to it, so equal sequence hashes mean equal
// prefixes. Both are byte-compatible with NVIDIA Dynamo's (xxh3-64, seed 1337), so that Dynamo's workers
// and tools use the same names. Engines name blocks by hashes of other kinds, which package kvevent reads.
//
// All functions are pure and safe for concurrent use.
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

// seed is the seed without adapter and salt. It is Dynamo's: lib/kv-router/src/protocols.rs, XXH3_SEED.
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

// Hash is the block hash of tokens. They are hashed as little-endian 32-bit numbers: on a little-endian
// machine in place, without a copy.
func Hash(tokens []uint32, seed uint64) Block {
	if littleEndian && len(tokens) > 0 {
		raw := unsafe.Slice((*byte)(unsafe.Pointer(&tokens[0])), 4*len(tokens))
		return Block(xxh3.HashSeed(raw, seed))
	}
	return hashCopied(tokens, seed)
}

// hashCopied is Hash on a machine of any byte order.
func hashCopied(tokens []uint32, seed uint64) Block {
	return Block(xxh3.HashSeed(appendTokens(make([]byte, 0, 4*len(tokens)), tokens), seed))
}

func appendTokens(dst []byte, tokens []uint32) []byte {
	for _, t := range tokens {
		dst = binary.LittleEndian.AppendUint32(dst, t)
	}
	return dst
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

// Next is the sequence hash of the chain parent followed by block b: xxh3 of both, little endian, with
// the seed. It is written out for these 16 bytes and this seed, because a chain can only be hashed one
// block after the other. Through the library a block took 7.5 ns, of which the multiplications are 4.
func Next(parent Sequence, b Block) Sequence {
	lo, hi := uint64(parent)^flipParent, uint64(b)^flipBlock
	high, low := bits.Mul64(lo, hi)
	sum := 16 + bits.ReverseBytes64(lo) + hi + (high ^ low)
	sum = (sum ^ sum>>37) * 0x165667919E3779F9
	return Sequence(sum ^ sum>>32)
}

// flipParent and flipBlock are words of xxh3's secret, from byte 24 and from byte 40, combined with the
// seed as xxh3 does for inputs of 9 to 16 bytes.
const (
	flipParent = 0x6782737bea423ef2
	flipBlock  = 0xaf56bc3b09964d01
)

var littleEndian = func() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}()
