package peers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/stator-project/stator/workeragent/kvbm/block"
)

const (
	bitsPerBlock = 12
	probes       = 8 // near bitsPerBlock * ln 2, which gives the fewest wrong positives
	filterHeader = 8
)

// filter is a Bloom filter of blocks as it is sent: 4 bytes number of blocks, 4 zero bytes, then the bits. Numbers are little-endian.
type filter []byte

// newFilter returns the filter of keys, of at most so many bytes. It has no bits without keys.
func newFilter(keys []block.Key, most int) filter {
	size := min((len(keys)*bitsPerBlock+7)/8, most-filterHeader)
	f := make(filter, filterHeader+size)
	binary.LittleEndian.PutUint32(f, uint32(len(keys)))
	for _, key := range keys {
		for i := range uint64(probes) {
			at := f.position(key, i)
			f[filterHeader+at/8] |= 1 << (at % 8)
		}
	}
	return f
}

var errFilter = errors.New("the peer's summary is no filter of blocks")

// parseFilter checks what a peer has sent.
func parseFilter(b []byte) (filter, error) {
	if len(b) < filterHeader || binary.LittleEndian.Uint32(b[4:]) != 0 {
		return nil, fmt.Errorf("%w: it begins with %x", errFilter, b[:min(len(b), filterHeader)])
	}
	if f := filter(b); (f.blocks() == 0) != (len(b) == filterHeader) {
		return nil, fmt.Errorf("%w: %d blocks in %d bytes", errFilter, f.blocks(), len(b))
	}
	return filter(b), nil
}

// blocks returns the number of blocks.
func (f filter) blocks() int { return int(binary.LittleEndian.Uint32(f)) }

// has reports whether the filter has a block. It may be wrong where it has not.
func (f filter) has(key block.Key) bool {
	if len(f) == filterHeader {
		return false
	}
	for i := range uint64(probes) {
		at := f.position(key, i)
		if f[filterHeader+at/8]&(1<<(at%8)) == 0 {
			return false
		}
	}
	return true
}

// position returns a bit of a key. Keys are parts of a SHA-256, so their halves are two independent hashes.
func (f filter) position(key block.Key, probe uint64) uint64 {
	first := binary.LittleEndian.Uint64(key[:])
	step := binary.LittleEndian.Uint64(key[8:]) | 1
	at, _ := bits.Mul64(first+probe*step, uint64(len(f)-filterHeader)*8)
	return at
}
