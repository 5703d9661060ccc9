package peers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/stream"
)

const (
	bitsPerBlock = 12
	probes       = 8 // near bitsPerBlock * ln 2, which gives the fewest wrong positives
	filterHeader = 8
)

// filter is a Bloom filter of blocks as it is sent: 4 bytes number of blocks, 4 zero bytes, then the bits. Numbers are little-endian.
type filter []byte

// mostBlocks bounds the blocks of a filter. More would set so many bits that a lookup finds everything.
const mostBlocks = 16 << 20

// newFilter returns the filter of the first mostBlocks keys, of at most so many bytes. It has no bits without keys.
func newFilter(keys []block.Key, most int) filter {
	keys = keys[:min(len(keys), mostBlocks)]
	f := make(filter, filterSize(len(keys), most))
	binary.LittleEndian.PutUint32(f, uint32(len(keys)))
	for _, key := range keys {
		for i := range uint64(probes) {
			at := f.position(key, i)
			f[filterHeader+at/8] |= 1 << (at % 8)
		}
	}
	return f
}

var errFilter = errors.New("the peer's summary is no filter of its blocks")

// parseFilter checks and decodes the filter that a peer has sent.
func parseFilter(b []byte) (filter, error) {
	if len(b) < filterHeader || binary.LittleEndian.Uint32(b[4:]) != 0 {
		return nil, fmt.Errorf("%w: it begins with %x", errFilter, b[:min(len(b), filterHeader)])
	}
	f := filter(b)
	if len(b) != filterSize(f.blocks(), stream.MostSummary) {
		return nil, fmt.Errorf("%w: %d blocks in %d bytes", errFilter, f.blocks(), len(b))
	}
	set := 0
	for _, bits8 := range b[filterHeader:] {
		set += bits.OnesCount8(bits8)
	}
	if most := f.mostBits(); set > most {
		return nil, fmt.Errorf("%w: it claims too much: %d bits are set, and its %d blocks set at most %d", errFilter, set,
			f.blocks(), most)
	}
	return f, nil
}

// filterSize returns the bytes of the filter of so many blocks, of which there are at most so many.
func filterSize(blocks, most int) int { return min(filterHeader+(blocks*bitsPerBlock+7)/8, most) }

// mostBits returns how many bits may be set: as many as its blocks set, and seven eighths, which mostBlocks do not reach.
func (f filter) mostBits() int {
	all := (len(f) - filterHeader) * 8
	return min(f.blocks()*probes, all*7/8)
}

// blocks returns the number of blocks.
func (f filter) blocks() int { return int(binary.LittleEndian.Uint32(f)) }

// has reports whether the filter has a block. It may be wrong about blocks that the filter does not have.
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
