package disk

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
)

// The log begins with a page that names its layout:
//
//	magic u32, version u32, space [32]byte, bytes of a block u64, identity of the log u64, CRC32C of these u32
//
// Batches follow, each a header and records of equal size:
//
//	magic u32, records u32, identity of the log u64, number of the batch u64, CRC32C of these and the records u32, 0 u32
//	kind u8, priority u8, 0 u16, slot u32, key [16]byte, generation u64, end of the pin i64 (Unix nanoseconds), length u32, 0 u32
const (
	logMagic    = 0x474C5653 // "SVLG"
	batchMagic  = 0x54425653 // "SVBT"
	logHeader   = pageBytes
	logFields   = 4 + 4 + 32 + 8 + 8 // before the checksum
	batchHeader = 32
	batchSum    = 24 // the position of the checksum in a batch's header
	recordBytes = 48

	// maxBatch is the highest number of records of a batch, and of records that wait to be written.
	maxBatch = 1024
	// leastLog is the size from which a log is written again, if four records for each slot take less.
	leastLog = 1 << 20
)

// Kinds of records.
const (
	recordAdd    = 1
	recordRemove = 2
)

// record is one event of a slot.
type record struct {
	kind, priority byte
	slot           uint32
	key            block.Key
	entry          entry
	until          time.Time
}

func appendRecord(b []byte, r record) []byte {
	b = append(b, r.kind, r.priority, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, r.slot)
	b = append(b, r.key[:]...)
	b = binary.LittleEndian.AppendUint64(b, r.entry.generation)
	until := int64(0)
	if !r.until.IsZero() {
		until = r.until.UnixNano()
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(until))
	b = binary.LittleEndian.AppendUint32(b, r.entry.length)
	return append(b, 0, 0, 0, 0)
}

func readRecord(b []byte) record {
	r := record{kind: b[0], priority: b[1], slot: binary.LittleEndian.Uint32(b[4:]), key: block.Key(b[8:24])}
	r.entry.generation = binary.LittleEndian.Uint64(b[24:])
	r.entry.length = binary.LittleEndian.Uint32(b[40:])
	if until := int64(binary.LittleEndian.Uint64(b[32:])); until != 0 {
		r.until = time.Unix(0, until)
	}
	return r
}

// layout has the values that a log must share with the tier that reads it.
type layout struct {
	space      block.Space
	blockBytes int
}

// logWriter appends batches to a log. It belongs to one goroutine at a time.
type logWriter struct {
	f        file
	identity uint64
	batches  uint64
	size     int64
}

// begin writes the first page of an empty log.
func (w *logWriter) begin(l layout) error {
	page := make([]byte, 0, logHeader)
	page = binary.LittleEndian.AppendUint32(page, logMagic)
	page = binary.LittleEndian.AppendUint32(page, formatVersion)
	page = append(page, l.space[:]...)
	page = binary.LittleEndian.AppendUint64(page, uint64(l.blockBytes))
	page = binary.LittleEndian.AppendUint64(page, w.identity)
	page = binary.LittleEndian.AppendUint32(page, block.Sum(page))

	_, err := w.f.WriteAt(page[:logHeader], 0)
	w.size = logHeader
	return err
}

// newBatch returns an empty batch, to which records are appended.
func newBatch() []byte { return make([]byte, batchHeader, batchHeader+maxBatch*recordBytes) }

// write appends a batch. After an error the next batch takes its place.
func (w *logWriter) write(batch []byte) error {
	binary.LittleEndian.PutUint32(batch, batchMagic)
	binary.LittleEndian.PutUint32(batch[4:], uint32((len(batch)-batchHeader)/recordBytes))
	binary.LittleEndian.PutUint64(batch[8:], w.identity)
	binary.LittleEndian.PutUint64(batch[16:], w.batches)
	clear(batch[batchSum:batchHeader])
	binary.LittleEndian.PutUint32(batch[batchSum:], block.Sum(batch))

	if _, err := w.f.WriteAt(batch, w.size); err != nil {
		return err
	}
	w.size += int64(len(batch))
	w.batches++
	return nil
}

// errLayout is the error of a log whose first page is damaged, or of another layout.
var errLayout = errors.New("the index is damaged or of another layout")

// replay calls apply for each record of the batches that verify, up to the first that does not. Whole is whether the log ends
// there: with zeros, or with its file.
func replay(from io.Reader, want layout, apply func(record)) (whole bool, err error) {
	r := bufio.NewReaderSize(from, 1<<16)
	page := make([]byte, logHeader)
	if _, err := io.ReadFull(r, page); err != nil {
		return false, fmt.Errorf("%w: %w", errLayout, err)
	}
	if binary.LittleEndian.Uint32(page[logFields:]) != block.Sum(page[:logFields]) ||
		binary.LittleEndian.Uint32(page) != logMagic || binary.LittleEndian.Uint32(page[4:]) != formatVersion ||
		block.Space(page[8:40]) != want.space || binary.LittleEndian.Uint64(page[40:]) != uint64(want.blockBytes) {
		return false, errLayout
	}

	identity := binary.LittleEndian.Uint64(page[48:])
	buf := newBatch()
	buf = buf[:cap(buf)]
	for number := uint64(0); ; number++ {
		records, end := readBatch(r, buf, identity, number)
		for len(records) > 0 {
			apply(readRecord(records))
			records = records[recordBytes:]
		}
		if end != nil {
			return errors.Is(end, io.EOF), nil
		}
	}
}

// errBatch is the error of a batch that does not verify.
var errBatch = errors.New("a batch of the index is damaged")

// readBatch returns the records of the next batch. At the end of the log the error is io.EOF.
func readBatch(r io.Reader, buf []byte, identity, number uint64) (records []byte, err error) {
	head := buf[:batchHeader]
	if n, err := io.ReadFull(r, head); n == 0 {
		return nil, err
	} else if err != nil {
		return nil, errBatch
	}
	if bytes.Equal(head, make([]byte, batchHeader)) {
		return nil, io.EOF
	}

	count := binary.LittleEndian.Uint32(head[4:])
	if binary.LittleEndian.Uint32(head) != batchMagic || count > maxBatch ||
		binary.LittleEndian.Uint64(head[8:]) != identity || binary.LittleEndian.Uint64(head[16:]) != number {
		return nil, errBatch
	}
	batch := buf[:batchHeader+int(count)*recordBytes]
	if _, err := io.ReadFull(r, batch[batchHeader:]); err != nil {
		return nil, errBatch
	}

	sum := binary.LittleEndian.Uint32(head[batchSum:])
	clear(head[batchSum:])
	if block.Sum(batch) != sum {
		return nil, errBatch
	}
	return batch[batchHeader:], nil
}
