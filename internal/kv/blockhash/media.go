package blockhash

import (
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/zeebo/xxh3"
)

// MediaHash is the 64-bit hash that Dynamo knows a piece of media by: the first 16 hexadecimal
// digits of the engine's identifier. False means that it does not begin with them.
func MediaHash(identifier string) (uint64, bool) {
	if len(identifier) < 16 {
		return 0, false
	}
	h, err := strconv.ParseUint(identifier[:16], 16, 64)
	return h, err == nil
}

// HashMedia is the block hash of tokens with the media that reach into the block, as Dynamo's
// routers have it: the media's hashes stand behind the tokens, sorted. Without media it is
// [Hash].
func HashMedia(tokens []uint32, media []uint64, seed uint64) Block {
	if len(media) == 0 {
		return Hash(tokens, seed)
	}
	raw := make([]byte, 0, 4*len(tokens)+8*len(media))
	for _, t := range tokens {
		raw = binary.LittleEndian.AppendUint32(raw, t)
	}
	sorted := append(make([]uint64, 0, 4), media...)
	slices.Sort(sorted)
	for _, m := range sorted {
		raw = binary.LittleEndian.AppendUint64(raw, m)
	}
	return Block(xxh3.HashSeed(raw, seed))
}

// MediaToken is Dynamo's other way, SGLang's: each placeholder token of a piece of media is
// replaced by this token, and the block hashed without media.
func MediaToken(media uint64) uint32 { return 1_000_000 + uint32(media&(1<<30-1)) }
