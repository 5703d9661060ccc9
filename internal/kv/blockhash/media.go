package blockhash

import (
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/zeebo/xxh3"
)

// MediaHash is the 64-bit hash that Dynamo knows a piece of media by: the first 16 digits of the
// engine's identifier, where that is a hexadecimal digest of 256 bits. Dynamo takes no other for
// media, and its newest routers only those of their own making, which end in 48 zeroes; a block of
// any other is to them as if it had none. Here it has the xxh3 of its name, which nobody computes
// by mistake: two pictures under one prompt are two contents.
func MediaHash(identifier string) uint64 {
	if len(identifier) == 64 && isHex(identifier) {
		h, _ := strconv.ParseUint(identifier[:16], 16, 64)
		return h
	}
	return xxh3.HashString(identifier)
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
			return false
		}
	}
	return true
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
