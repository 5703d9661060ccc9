package disk

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// memory is a file in memory.
type memory struct{ data []byte }

func (m *memory) WriteAt(b []byte, at int64) (int, error) {
	m.data = slices.Grow(m.data, int(at)+len(b))
	m.data = m.data[:max(len(m.data), int(at)+len(b))]
	return copy(m.data[at:], b), nil
}
func (m *memory) ReadAt(b []byte, at int64) (int, error) { return copy(b, m.data[at:]), nil }
func (m *memory) Close() error                           { return nil }

var testLayout = layout{testSpace, testBlock}

// logOf returns a log with a batch for each list of records.
func logOf(t testing.TB, batches ...[]record) []byte {
	t.Helper()
	m := &memory{}
	w := logWriter{f: m, identity: 77}
	if err := w.begin(testLayout); err != nil {
		t.Fatal(err)
	}
	for _, records := range batches {
		batch := newBatch()
		for _, r := range records {
			batch = appendRecord(batch, r)
		}
		if err := w.write(batch); err != nil {
			t.Fatal(err)
		}
	}
	return m.data
}

func add(slot uint32, n int, generation uint64) record {
	return record{kind: recordAdd, slot: slot, key: key(n), entry: entry{generation: generation, length: testBlock}}
}

func remove(slot uint32, n int, generation uint64) record {
	r := add(slot, n, generation)
	r.kind = recordRemove
	return r
}

func replayed(data []byte) (records []record, whole bool, err error) {
	whole, err = replay(bytes.NewReader(data), testLayout, func(r record) { records = append(records, r) })
	return records, whole, err
}

// TestDamagedLogs cuts a log at each byte and flips each bit. The records that are left are the first ones as they were written.
func TestDamagedLogs(t *testing.T) {
	want := []record{add(0, 1, 1), add(1, 2, 2), remove(0, 1, 1), add(0, 3, 3)}
	log := logOf(t, want[:1], want[1:3], want[3:])
	got, whole, err := replayed(append(log[:len(log):len(log)], make([]byte, 1000)...))
	if err != nil || !whole || !slices.Equal(got, want) {
		t.Fatalf("%+v, %v, %v", got, whole, err)
	}

	for n := range log {
		got, whole, err := replayed(log[:n])
		if len(got) == len(want) || !slices.Equal(got, want[:len(got)]) || (err != nil) != (n < logHeader) {
			t.Fatalf("cut at %d: %+v, %v, %v", n, got, whole, err)
		}
	}
	for bit := range 8 * len(log) {
		unused := bit/8 >= logFields+4 && bit/8 < logHeader || bit/8 >= logHeader && unusedByte(bit/8-logHeader)
		if unused && bit%100 > 0 { // most of the first page
			continue
		}
		flipped := bytes.Clone(log)
		flipped[bit/8] ^= 1 << (bit % 8)
		got, whole, err := replayed(flipped)
		if !slices.Equal(got, want[:len(got)]) || (whole && err == nil) != unused {
			t.Fatalf("bit %d of byte %d: %d records, %v, %v", bit%8, bit/8, len(got), whole, err)
		}
	}
}

// unusedByte reports whether a byte of the batches of TestDamagedLogs has no meaning: the end of a batch's header.
func unusedByte(at int) bool {
	for _, records := range []int{1, 2, 1} {
		size := batchHeader + records*recordBytes
		if at < size {
			return at >= batchSum+4 && at < batchHeader
		}
		at -= size
	}
	return false
}

// TestReplayedSlots has logs that a crash or a failed write can leave.
func TestReplayedSlots(t *testing.T) {
	long := add(0, 1, 1)
	long.entry.length = testBlock + 1
	for name, c := range map[string]struct {
		log  []record
		want map[int]int // slot of each key
	}{
		"a slot that was used again":         {[]record{add(0, 1, 1), add(0, 2, 2)}, map[int]int{2: 0}},
		"an older record that follows":       {[]record{add(0, 2, 2), add(0, 1, 1)}, map[int]int{2: 0}},
		"an older removal that follows":      {[]record{add(0, 2, 2), remove(0, 1, 1)}, map[int]int{2: 0}},
		"a removal":                          {[]record{add(0, 1, 1), add(1, 2, 2), remove(0, 1, 1)}, map[int]int{2: 1}},
		"a key in two slots":                 {[]record{add(0, 1, 1), add(1, 1, 2)}, map[int]int{1: 1}},
		"a key in two slots, the newer last": {[]record{add(1, 1, 2), add(0, 1, 1)}, map[int]int{1: 1}},
		"a slot that does not exist":         {[]record{add(4, 1, 1), add(1, 2, 2)}, map[int]int{2: 1}},
		"a block that is too long":           {[]record{long, add(1, 2, 2)}, map[int]int{2: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t.TempDir(), 4)
			if err := os.WriteFile(filepath.Join(cfg.Dir, indexName), logOf(t, c.log), 0o600); err != nil {
				t.Fatal(err)
			}
			d := open(t, cfg)
			if got := d.Stats().Restored; got != len(c.want) {
				t.Errorf("%d blocks were found, want %d", got, len(c.want))
			}
			for n, slot := range c.want {
				if got, ok := d.pool.Find(key(n)); !ok || got != slot {
					t.Errorf("block %d is in slot %d, %v, want %d", n, got, ok, slot)
				}
			}
		})
	}
}

// FuzzReplay reads any bytes as a log.
func FuzzReplay(f *testing.F) {
	f.Add(logOf(f, []record{add(0, 1, 1), remove(0, 1, 1)})[logHeader:])
	header := logOf(f)
	f.Fuzz(func(t *testing.T, batches []byte) {
		records, _, err := replayed(slices.Concat(header, batches))
		if err != nil || len(records)*recordBytes > len(batches) {
			t.Errorf("%d records of %d bytes: %v", len(records), len(batches), err)
		}
	})
}
