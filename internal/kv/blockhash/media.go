package blockhash

import (
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
