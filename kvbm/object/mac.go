package object

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"

	"github.com/stator-project/stator/internal/kv/block"
)

// macLabel begins the info from which the key of a pack is derived.
const macLabel = "stator kv objects 2 "

// indexNumber is the number of the index's own tag, beside the numbers of the entries' tags.
const indexNumber = maxEntries

// macs derives the MACs of packs.
type macs struct{ secret []byte }

// newMACs returns the MACs of a secret and a space. Without a secret the tags find damage alone, because everyone can make them.
func newMACs(secret string, space block.Space) (macs, error) {
	of, err := hkdf.Extract(sha256.New, []byte(secret), space[:])
	return macs{of}, err
}

// pack returns the MAC of the pack with a name, which no other pack has. So a tag holds for one block of one pack alone.
func (m macs) pack(name string) block.MAC {
	key, err := hkdf.Expand(sha256.New, m.secret, macLabel+name, block.MACKeyBytes)
	if err != nil {
		panic(fmt.Sprintf("object: no key of %d bytes: %v", block.MACKeyBytes, err)) // the length is a hash's length
	}
	return block.NewMAC([block.MACKeyBytes]byte(key))
}
