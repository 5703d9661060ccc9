package object

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
)

// The format of an index, see the package's description.
const (
	magic        = "SKVI"
	version      = 2
	headerBytes  = len(magic) + 2 + 2 + len(block.Space{}) + 4 + 4
	entryBytes   = len(block.Key{}) + 4 + 4 + block.TagBytes
	trailerBytes = block.TagBytes
)

// The bounds of a pack, and of the index that describes it.
const (
	maxPackBytes  = 256 << 20
	maxEntries    = 4096
	maxIndexBytes = headerBytes + maxEntries*entryBytes + trailerBytes
)

var errIndex = errors.New("not an index that this version can read")

// entry is a block in a pack.
type entry struct {
	key    block.Key
	offset uint32
	tag    block.Tag
}

// encodeIndex returns the index object of the pack with a MAC.
func encodeIndex(mac block.MAC, space block.Space, blockBytes int, entries []entry) []byte {
	b := make([]byte, 0, headerBytes+len(entries)*entryBytes+trailerBytes)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint16(b, version)
	b = binary.LittleEndian.AppendUint16(b, 0)
	b = append(b, space[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(blockBytes))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(entries)))

	for _, e := range entries {
		b = append(b, e.key[:]...)
		b = binary.LittleEndian.AppendUint32(b, e.offset)
		b = binary.LittleEndian.AppendUint32(b, uint32(blockBytes))
		b = append(b, e.tag[:]...)
	}
	tag := mac.Tag(indexNumber, b)
	return append(b, tag[:]...)
}

// decodeIndex reads the index object of the pack with a MAC. It returns an error that wraps errIndex unless everything is as encodeIndex
// writes it.
func decodeIndex(mac block.MAC, b []byte, space block.Space, blockBytes int) ([]entry, error) {
	if len(b) < headerBytes+trailerBytes || len(b) > maxIndexBytes {
		return nil, fmt.Errorf("%w: it has %d bytes", errIndex, len(b))
	}
	body := b[:len(b)-trailerBytes]
	if mac.Tag(indexNumber, body) != block.Tag(b[len(body):]) {
		return nil, fmt.Errorf("%w: it is damaged, or was written without the secret of this store", errIndex)
	}
	if string(b[:len(magic)]) != magic || binary.LittleEndian.Uint16(b[4:]) != version || binary.LittleEndian.Uint16(b[6:]) != 0 {
		return nil, fmt.Errorf("%w: it begins with %x", errIndex, b[:8])
	}
	if block.Space(b[8:40]) != space {
		return nil, fmt.Errorf("%w: it is of another space", errIndex)
	}
	if n := binary.LittleEndian.Uint32(b[40:]); int64(n) != int64(blockBytes) {
		return nil, fmt.Errorf("%w: blocks have %d bytes there and %d here", errIndex, n, blockBytes)
	}

	count := int(binary.LittleEndian.Uint32(b[44:]))
	rest := body[headerBytes:]
	if count < 1 || count > maxEntries || count*entryBytes != len(rest) {
		return nil, fmt.Errorf("%w: %d entries in %d bytes", errIndex, count, len(rest))
	}
	return decodeEntries(rest, blockBytes)
}

// decodeEntries reads entries, whose blocks must lie one behind the other.
func decodeEntries(b []byte, blockBytes int) ([]entry, error) {
	entries := make([]entry, 0, len(b)/entryBytes)
	for ; len(b) > 0; b = b[entryBytes:] {
		e := entry{key: block.Key(b[:16]), offset: binary.LittleEndian.Uint32(b[16:]), tag: block.Tag(b[24:])}
		length := binary.LittleEndian.Uint32(b[20:])

		end := int64(len(entries)) * int64(blockBytes)
		if int64(length) != int64(blockBytes) || int64(e.offset) != end || end+int64(blockBytes) > maxPackBytes {
			return nil, fmt.Errorf("%w: entry %d has %d bytes at %d", errIndex, len(entries), length, e.offset)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// entriesOf returns how many entries an index object of a size has, or 0 if no index has that size.
func entriesOf(size int64) int {
	n := size - int64(headerBytes+trailerBytes)
	if n <= 0 || size > int64(maxIndexBytes) || n%int64(entryBytes) != 0 {
		return 0
	}
	return int(n) / entryBytes
}

// packName is the name of a pack, and its parts that readers need.
type packName struct {
	text string
	made time.Time
	node string
}

var (
	nodePattern = regexp.MustCompile(`^[A-Za-z0-9._]{1,63}$`)
	namePattern = regexp.MustCompile(`^([0-9a-f]{12})-[0-9a-f]{16}-[0-9a-f]{8}-([A-Za-z0-9._]{1,63})$`)
)

func newName(made time.Time, nonce [8]byte, number uint32, node string) packName {
	text := fmt.Sprintf("%s-%s-%08x-%s", nameTime(made), hex.EncodeToString(nonce[:]), number, node)
	return packName{text: text, made: made, node: node}
}

// nameTime returns the beginning of the names of packs that are made at a time.
func nameTime(t time.Time) string { return fmt.Sprintf("%012x", max(0, t.UnixMilli())) }

// parseName reads what newName has made. Names of others are not ok.
func parseName(text string) (n packName, ok bool) {
	m := namePattern.FindStringSubmatch(text)
	if m == nil {
		return n, false
	}
	ms, err := strconv.ParseInt(m[1], 16, 64)
	return packName{text: text, made: time.UnixMilli(ms), node: m[2]}, err == nil
}
