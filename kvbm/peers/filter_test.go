package peers

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/stream"
	"github.com/stator-project/stator/test/testkit"
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

// TestFilterThatClaimsTooMuch: a filter with all bits, with more than its blocks can set, or with another size than theirs is refused.
func TestFilterThatClaimsTooMuch(t *testing.T) {
	ones := func(blocks uint32, size int) []byte {
		b := bytes.Repeat([]byte{0xff}, filterHeader+size)
		binary.LittleEndian.PutUint32(b, blocks)
		binary.LittleEndian.PutUint32(b[4:], 0)
		return b
	}
	full := make([]byte, filterHeader+1500)
	binary.LittleEndian.PutUint32(full, 1000)
	copy(full[filterHeader:], bytes.Repeat([]byte{0xff}, 1000))
	if _, err := parseFilter(full); err != nil {
		t.Errorf("as many bits as 1,000 blocks can set: %v", err)
	}
	full[filterHeader+1000] = 1

	for name, b := range map[string][]byte{
		"all bits":                      ones(1000, 1500),
		"one bit more than its blocks":  full,
		"all bits of the greatest size": ones(1<<32-1, stream.MostSummary-filterHeader),
		"a small one with many blocks":  ones(1<<32-1, 1500),
		"a large one with few blocks":   ones(1, 1500),
	} {
		if f, err := parseFilter(b); !errors.Is(err, errFilter) {
			t.Errorf("%s: a filter of %d blocks, %v", name, f.blocks(), err)
		}
	}
}

// TestClaimOfEverything: a peer with the token whose summary claims every block is not used, its connection ends, and the log names it.
func TestClaimOfEverything(t *testing.T) {
	server, err := stream.NewServer(stream.ServerConfig{
		Token: token, Node: "liar", Layout: layout, Source: NewSource(nil),
		Summary: func(uint64) (uint64, []byte) {
			all := binary.LittleEndian.AppendUint64(nil, 1000)
			return 1, append(all, bytes.Repeat([]byte{0xff}, 1500)...)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	address, _ := serveWith(t, server)

	var log bytes.Buffer
	var mu sync.Mutex
	p := follow(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(locked{&mu, &log}, nil)) })
	p.Set([]Found{{Node: "liar", Address: address}})
	testkit.Eventually(t, "the log names the peer", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(log.String(), "peer="+address+" node=liar") && strings.Contains(log.String(), "claims too much")
	})
	testkit.Eventually(t, "its connection ends", func() bool { return server.Stats().Open == 0 })
	if s := p.Status(); p.Match(someKeys(0, 1)) != 0 || len(s) != 1 || s[0].State != Failing || !strings.Contains(s[0].Reason, "claims too much") {
		t.Errorf("%+v", s)
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
