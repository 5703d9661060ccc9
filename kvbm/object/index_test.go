package object

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
)

// mac is the MAC of a pack of tests.
var mac = block.NewMAC([block.MACKeyBytes]byte{1})

func someEntries(n int) (list []entry) {
	for i := range n {
		list = append(list, entry{key: block.Key{byte(i), byte(i >> 8)}, offset: uint32(i * 64), tag: block.Tag{byte(i), 77}})
	}
	return list
}

func TestIndexComesBack(t *testing.T) {
	space := block.Space{1, 2, 3}
	for _, n := range []int{1, 64, maxEntries} {
		data := encodeIndex(mac, space, 64, someEntries(n))
		got, err := decodeIndex(mac, data, space, 64)
		if err != nil || len(got) != n || got[n-1] != someEntries(n)[n-1] {
			t.Errorf("%d entries: got %d, error %v", n, len(got), err)
		}
		if entriesOf(int64(len(data))) != n {
			t.Errorf("an index of %d bytes has %d entries, and not %d", len(data), entriesOf(int64(len(data))), n)
		}
	}
}

// TestWrongIndexesAreRefused changes one thing each, and corrects the tag so that the change itself must be found.
func TestWrongIndexesAreRefused(t *testing.T) {
	space := block.Space{1, 2, 3}
	for name, change := range map[string]func(b []byte) []byte{
		"magic":       func(b []byte) []byte { b[0]++; return b },
		"version":     func(b []byte) []byte { b[4]++; return b },
		"flags":       func(b []byte) []byte { b[6]++; return b },
		"space":       func(b []byte) []byte { b[8]++; return b },
		"block bytes": func(b []byte) []byte { b[40]++; return b },
		"count":       func(b []byte) []byte { b[44]++; return b },
		"no entries":  func(b []byte) []byte { b[44] = 0; return append(b[:headerBytes], make([]byte, trailerBytes)...) },
		"offset":      func(b []byte) []byte { b[headerBytes+16]++; return b },
		"length":      func(b []byte) []byte { b[headerBytes+20]++; return b },
		"shortened":   func(b []byte) []byte { return b[:len(b)-entryBytes] },
		"too long":    func(b []byte) []byte { return append(b, make([]byte, maxIndexBytes)...) },
		"empty":       func([]byte) []byte { return nil },
	} {
		b := change(encodeIndex(mac, space, 64, someEntries(3)))
		if len(b) > trailerBytes {
			tag := mac.Tag(indexNumber, b[:len(b)-trailerBytes])
			copy(b[len(b)-trailerBytes:], tag[:])
		}
		if _, err := decodeIndex(mac, b, space, 64); !errors.Is(err, errIndex) {
			t.Errorf("%s: error is %v", name, err)
		}
	}

	b := encodeIndex(mac, space, 64, someEntries(3))
	b[headerBytes]++
	if _, err := decodeIndex(mac, b, space, 64); !errors.Is(err, errIndex) {
		t.Errorf("tag: error is %v", err)
	}
}

func FuzzIndex(f *testing.F) {
	space := block.Space{1}
	f.Add(encodeIndex(mac, space, 64, someEntries(2)))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		// The tag is corrected, because no fuzzer finds one.
		if len(b) > trailerBytes {
			tag := mac.Tag(indexNumber, b[:len(b)-trailerBytes])
			copy(b[len(b)-trailerBytes:], tag[:])
		}
		entries, err := decodeIndex(mac, b, space, 64)
		if err == nil && !bytes.Equal(encodeIndex(mac, space, 64, entries), b) {
			t.Errorf("an index that is read differs from the one that is written: %x", b)
		}
	})
}

func TestNamesComeBackAndSortByTime(t *testing.T) {
	made := time.UnixMilli(1_800_000_000_123)
	n := newName(made, [8]byte{9}, 7, "node.1_a")
	got, ok := parseName(n.text)
	if !ok || got != n {
		t.Errorf("%+v came back as %+v, %v", n, got, ok)
	}
	if later := newName(made.Add(time.Millisecond), [8]byte{1}, 1, "a"); later.text <= n.text {
		t.Errorf("%s is not after %s", later.text, n.text)
	}
	for _, bad := range []string{"", "probe", n.text + "/x", "x" + n.text, "0199d3c7a1f0-6c1f0e9d2b7a4c35-0000002a-"} {
		if _, ok := parseName(bad); ok {
			t.Errorf("%q is taken for a name", bad)
		}
	}
}
