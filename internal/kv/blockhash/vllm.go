package blockhash

import (
	"crypto/sha256"
	"encoding/binary"
)

// Algorithm is how vLLM makes bytes of a block before it takes their SHA-256
// (--prefix-caching-hash-algo). The others it has, xxhash and xxhash_cbor, begin with a random
// number in every process unless PYTHONHASHSEED is set, and are not made here.
type Algorithm uint8

// The algorithms.
const (
	SHA256     Algorithm = iota // Python's pickle, protocol 5; vLLM's default
	SHA256CBOR                  // canonical CBOR: the same in any language
)

// DefaultSeed is what vLLM's chains begin with where PYTHONHASHSEED is not set.
const DefaultSeed = "vllm-none-hash"

// Digest is vLLM's hash of a chain of blocks. Events carry all of it, or its short form.
type Digest [sha256.Size]byte

// Short is the last 8 bytes, big endian: what events carry unless they are told otherwise.
func (d Digest) Short() uint64 { return binary.BigEndian.Uint64(d[len(d)-8:]) }

// VLLM makes vLLM's own block hashes, so that what its events say can be verified, and read
// where they do not say the tokens. A prompt that grows goes on from its last block's digest.
// It has a buffer, and so belongs to one goroutine at a time.
type VLLM struct {
	algorithm Algorithm
	root      Digest
	raw       []byte
	memo      []string // the texts pickled so far that may come again, and nothing for what is no text
}

// NewVLLM returns a hasher. seed is PYTHONHASHSEED as the engines have it, or [DefaultSeed].
func NewVLLM(algorithm Algorithm, seed string) *VLLM {
	v := &VLLM{algorithm: algorithm}
	if algorithm == SHA256CBOR {
		v.cborText(seed)
	} else {
		v.pickleHead()
		v.pickleText(seed)
		v.pickleEnd()
	}
	v.root = sha256.Sum256(v.raw)
	return v
}

// Root is what stands for the parent of a prompt's first block.
func (v *VLLM) Root() Digest { return v.root }

// Next is the digest of the chain parent followed by a block of tokens and its keys. Blocks of
// more than 8,192 tokens are hashed otherwise by vLLM, because pickle cuts what is longer than
// 64 KiB into frames; none are known.
func (v *VLLM) Next(parent Digest, tokens []uint32, keys []Key) Digest {
	v.raw = v.raw[:0]
	if v.algorithm == SHA256CBOR {
		v.cborBlock(parent, tokens, keys)
	} else {
		v.pickleBlock(parent, tokens, keys)
	}
	return sha256.Sum256(v.raw)
}

// Append appends the digests of every complete block of size tokens to dst. keys are those of
// each block, in order; blocks beyond them have none.
func (v *VLLM) Append(dst []Digest, parent Digest, tokens []uint32, size int, keys [][]Key) []Digest {
	for ; size > 0 && len(tokens) >= size; tokens = tokens[size:] {
		var own []Key
		if len(keys) > 0 {
			own, keys = keys[0], keys[1:]
		}
		parent = v.Next(parent, tokens[:size], own)
		dst = append(dst, parent)
	}
	return dst
}

// Key is one thing beside the tokens that sets a block apart from others with the same tokens.
// The order of a block's keys is vLLM's: LoRA, media, salt, embeddings.
type Key struct{ parts []part }

type part struct {
	kind   partKind
	text   string
	number uint32
}

type partKind uint8

const (
	partText partKind = iota
	partNumber
	partBytes
)

// LoRA is the key of every block of a request with an adapter. Events publish the name alone,
// so these hashes cannot be made from events.
func LoRA(name, path string) Key {
	return Key{[]part{{text: "lora"}, {text: name}, {text: path}}}
}

// Media is the key of a block that a piece of media reaches into: its identifier, and the token
// it begins at, counted from the block's first; before the block where it began earlier.
func Media(identifier string, offset int32) Key {
	return Key{[]part{{text: "mm"}, {text: identifier}, {kind: partNumber, number: uint32(offset)}}}
}

// Salt is the cache salt, a key of a prompt's first block only.
func Salt(salt string) Key { return Key{[]part{{text: "cache_salt"}, {text: salt}}} }

// Embeddings is the key of a block of prompt embeddings: the digest of its part of them.
func Embeddings(digest []byte) Key {
	return Key{[]part{{text: "prompt_embeds"}, {kind: partBytes, text: string(digest)}}}
}
