package disk

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/stator-project/stator/internal/kv/block"
)

// pageBytes is the unit of O_DIRECT: offsets, lengths and addresses of memory are multiples of it.
const pageBytes = 4096

// headerBytes is the size of a slot's header on the disk. Its fields are at the beginning.
const headerBytes = pageBytes

// Positions of the fields of a slot's header.
const (
	atMagic      = 0
	atVersion    = 4
	atKey        = 8
	atGeneration = 24
	atLength     = 32
	atSum        = 36
	atHeaderSum  = 40
	endOfHeader  = 44
)

const (
	slotMagic     = 0x424B5653 // "SVKB"
	formatVersion = 1
)

// entry is the entry of the index for the block of a slot.
type entry struct {
	generation uint64
	length     uint32
	// sum is the CRC32C of the bytes, and known whether it is known: of blocks that this process has written, or verified. The index on
	// the disk does not have it. Reads of such blocks need no header.
	sum   uint32
	known bool
}

// padded rounds a number of bytes up to whole pages.
func padded(n int) int { return (n + pageBytes - 1) / pageBytes * pageBytes }

// copySum copies bytes and returns their CRC32C, as [block.Sum] does. It works in parts that stay in the cache of a core, so that the
// bytes come from memory only once. A variant in which the disk used the caller's memory directly saved a tenth of the CPU time or less,
// because the checksum reads the bytes from memory anyway, and its callers had to keep the memory aside after their deadline.
func copySum(dst, src []byte) (sum uint32) {
	const part = 16 << 10
	for len(src) > 0 {
		n := copy(dst, src[:min(part, len(src))])
		sum = crc32.Update(sum, castagnoli, dst[:n])
		dst = dst[n:]
		src = src[n:]
	}
	return sum
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// putHeader writes the header of the block whose bytes follow it in buf, and zeros behind them. It returns the bytes to write.
func putHeader(buf []byte, key block.Key, e entry) []byte {
	end := headerBytes + padded(int(e.length))
	clear(buf[headerBytes+int(e.length) : end])

	clear(buf[:headerBytes])
	binary.LittleEndian.PutUint32(buf[atMagic:], slotMagic)
	binary.LittleEndian.PutUint32(buf[atVersion:], formatVersion)
	copy(buf[atKey:], key[:])
	binary.LittleEndian.PutUint64(buf[atGeneration:], e.generation)
	binary.LittleEndian.PutUint32(buf[atLength:], e.length)
	binary.LittleEndian.PutUint32(buf[atSum:], e.sum)
	binary.LittleEndian.PutUint32(buf[atHeaderSum:], block.Sum(buf[:atHeaderSum]))
	return buf[:end]
}

// verify copies the bytes of a block to dst, which has their length, if they match the key and the entry, and returns their CRC32C. The
// error wraps ErrTorn or ErrStale.
func verify(dst, buf []byte, key block.Key, e entry) (sum uint32, err error) {
	sum = e.sum
	if !e.known {
		sum, err = readHeader(buf, key, e)
		if err != nil {
			return 0, err
		}
	}
	if sum != copySum(dst, buf[headerBytes:headerBytes+int(e.length)]) {
		return 0, fmt.Errorf("%w: the checksum differs", ErrTorn)
	}
	return sum, nil
}

// readHeader returns the CRC32C that a slot's header has for its bytes, if it is the header of the key and entry.
func readHeader(buf []byte, key block.Key, e entry) (sum uint32, err error) {
	if binary.LittleEndian.Uint32(buf[atMagic:]) != slotMagic || binary.LittleEndian.Uint32(buf[atVersion:]) != formatVersion {
		return 0, fmt.Errorf("%w: its slot has no header", ErrTorn)
	}
	if binary.LittleEndian.Uint32(buf[atHeaderSum:]) != block.Sum(buf[:atHeaderSum]) {
		return 0, fmt.Errorf("%w: the checksum of the header differs", ErrTorn)
	}

	if found := block.Key(buf[atKey : atKey+len(key)]); found != key {
		return 0, fmt.Errorf("%w: %v", ErrStale, found)
	}
	if g := binary.LittleEndian.Uint64(buf[atGeneration:]); g != e.generation {
		return 0, fmt.Errorf("%w: generation %d, and the index has %d", ErrStale, g, e.generation)
	}
	if n := binary.LittleEndian.Uint32(buf[atLength:]); n != e.length {
		return 0, fmt.Errorf("%w: %d bytes, and the index has %d", ErrStale, n, e.length)
	}
	return binary.LittleEndian.Uint32(buf[atSum:]), nil
}
