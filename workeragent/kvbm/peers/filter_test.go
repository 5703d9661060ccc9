package peers

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stator-project/stator/workeragent/kvbm/block"
	"github.com/stator-project/stator/workeragent/kvbm/stream"
)

// someKeys returns keys of n blocks.
func someKeys(first, n int) (keys []block.Key) {
	space := layout.Space()
	for i := range n {
		keys = append(keys, space.Key(binary.LittleEndian.AppendUint64(nil, uint64(first+i))))
	}
	return keys
}

// TestFilter: a filter has all its blocks, in 1.5 bytes each, and few others.
func TestFilter(t *testing.T) {
	for _, n := range []int{0, 1, 7, 1000, 100_000} {
		keys := someKeys(0, n)
		f, err := parseFilter(newFilter(keys, stream.MostSummary))
		if err != nil || f.blocks() != n || len(f) > filterHeader+n*3/2+1 {
			t.Fatalf("%d blocks: %d in %d bytes, %v", n, f.blocks(), len(f), err)
		}
		for _, key := range keys {
			if !f.has(key) {
				t.Fatalf("%d blocks: one of them is missing", n)
			}
		}
		wrong := 0
		for _, key := range someKeys(1<<40, 20_000) {
			if f.has(key) {
				wrong++
			}
		}
		if n == 0 && wrong > 0 || n >= 1000 && wrong > 120 { // 0.31 % are 63
			t.Errorf("%d blocks: %d wrong positives of 20,000", n, wrong)
		}
	}
}

// TestFilterIsBounded: a filter of many blocks has the greatest size that is allowed, and still all its blocks.
func TestFilterIsBounded(t *testing.T) {
	keys := someKeys(0, 10_000) // 15,000 bytes at 12 bits
	f := newFilter(keys, 5000)
	if len(f) != 5000 || f.blocks() != len(keys) {
		t.Errorf("a filter of %d blocks in %d bytes", f.blocks(), len(f))
	}
	for _, key := range keys {
		if !f.has(key) {
			t.Fatal("a block is missing")
		}
	}
}

// FuzzFilter: no summary of a peer ends the program.
func FuzzFilter(f *testing.F) {
	for _, n := range []int{0, 1, 100} {
		f.Add([]byte(newFilter(someKeys(0, n), stream.MostSummary)))
	}
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 1})
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		parsed, err := parseFilter(b)
		if err != nil {
			if !errors.Is(err, errFilter) {
				t.Error(err)
			}
			return
		}
		for _, key := range someKeys(0, 8) {
			if parsed.has(key) && parsed.blocks() == 0 {
				t.Error("an empty filter has a block")
			}
		}
	})
}

// BenchmarkFilter makes the filter of a million blocks, and looks for a block in it.
func BenchmarkFilter(b *testing.B) {
	keys := someKeys(0, 1_000_000)
	var f filter
	b.Run("make", func(b *testing.B) {
		for b.Loop() {
			f = newFilter(keys, stream.MostSummary)
		}
	})
	b.Run("has", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			f.has(keys[i%len(keys)])
		}
	})
}
