package blockhash

import (
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/zeebo/xxh3"
)

// MediaHash is the 64-bit hash of an image, audio or video by its identifier at the engine.
//
// For an identifier that is a hexadecimal digest of 256 bits it is the first 16 digits, as in Dynamo.
// Dynamo ignores media with other identifiers, so that two pictures under one prompt share blocks. Here
// such a medium gets the xxh3 of its identifier, and two pictures never share blocks.
func MediaHash(identifier string) uint64 {
	if len(identifier) == 64 && isHex(identifier) {
		h, _ := strconv.ParseUint(identifier[:16], 16, 64)
		return h
	}
	return xxh3.HashString(identifier)
}

func isHex(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
			return false
		}
	}
	return true
}

// HashMedia is the block hash of tokens with the media that reach into the block, as in Dynamo's routers:
// the media's hashes follow the tokens, sorted. Without media it is [Hash].
func HashMedia(tokens []uint32, media []uint64, seed uint64) Block {
	if len(media) == 0 {
		return Hash(tokens, seed)
	}

	raw := appendTokens(make([]byte, 0, 4*len(tokens)+8*len(media)), tokens)
	sorted := append(make([]uint64, 0, 4), media...)
	slices.Sort(sorted)
	for _, m := range sorted {
		raw = binary.LittleEndian.AppendUint64(raw, m)
	}
	return Block(xxh3.HashSeed(raw, seed))
}

// MediaToken is the token that replaces each placeholder token of a medium in SGLang, and in Dynamo for
// SGLang. Such a block is then hashed without media.
func MediaToken(media uint64) uint32 { return 1_000_000 + uint32(media&(1<<30-1)) }
