package block

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
)

// TagBytes is the size of a tag, and MACKeyBytes the size of a key of a [MAC].
const (
	TagBytes    = 16
	MACKeyBytes = 32
)

// Tag authenticates the bytes of a block, or of a list of blocks.
type Tag [TagBytes]byte

// MAC makes and checks the tags of one list of blocks, by GMAC: AES-GCM without a plaintext. On processors with AES it costs a tenth of a
// nanosecond for a byte. Without the key, tags of other bytes cannot be made.
type MAC struct{ aead cipher.AEAD }

// NewMAC returns the MAC of a key, which must be of one list alone: two contents with one number and one key would give the key away.
func NewMAC(key [MACKeyBytes]byte) MAC {
	keyed, err := aes.NewCipher(key[:])
	if err != nil {
		panic("block: AES does not take a key of 32 bytes: " + err.Error())
	}
	aead, err := cipher.NewGCM(keyed)
	if err != nil {
		panic("block: AES has no GCM: " + err.Error())
	}
	return MAC{aead}
}

// Tag returns the tag of the bytes with a number in the list.
func (m MAC) Tag(number uint32, data []byte) (t Tag) {
	var nonce [12]byte
	binary.LittleEndian.PutUint32(nonce[:], number)
	m.aead.Seal(t[:0], nonce[:], nil, data)
	return t
}
