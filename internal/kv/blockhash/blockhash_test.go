package blockhash_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// The first six vectors are those of Dynamo's own tests; the last two were derived from its
// rules and recomputed independently.
func TestGoldenVectors(t *testing.T) {
	if got := xxh3.HashStringSeed("test data", 1337); got != 13226331709069118873 {
		t.Errorf("xxh3 of \"test data\" is %d", got)
	}
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}
	blocks := blockhash.Append(nil, tokens, 4, blockhash.Seed("", ""))
	wantBlocks := []blockhash.Block{14643705804678351452, 16777012769546811212, 483935686894639516}
	if fmt.Sprint(blocks) != fmt.Sprint(wantBlocks) {
		t.Errorf("blocks %d, want %d", blocks, wantBlocks)
	}
	wantSequences := []blockhash.Sequence{14643705804678351452, 4945711292740353085, 12583592247330656132}
	if got := blockhash.Chain(nil, blocks); fmt.Sprint(got) != fmt.Sprint(wantSequences) {
		t.Errorf("sequences %d, want %d", got, wantSequences)
	}
	if got := blockhash.Hash(tokens[:4], blockhash.Seed("my-lora", "")); got != 15671544057904749233 {
		t.Errorf("with a LoRA: %d", got)
	}
	if got := blockhash.Hash(tokens[:4], blockhash.Seed("", "tenant-a")); got != 5738685477468498325 {
		t.Errorf("with a salt: %d", got)
	}
}

// TestNextIsXXH3: the hash of a pair, written out, is the library's.
func TestNextIsXXH3(t *testing.T) {
	for range 10_000 {
		parent, block := rand.Uint64(), rand.Uint64()
		raw := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, parent), block)
		if got, want := blockhash.Next(blockhash.Sequence(parent), blockhash.Block(block)), xxh3.HashSeed(raw, 1337); uint64(got) != want {
			t.Fatalf("%d then %d: %d, want %d", parent, block, got, want)
		}
	}
}

func TestAppendAllocatesNothing(t *testing.T) {
	tokens := make([]uint32, 1024)
	dst := make([]blockhash.Block, 0, 64)
	if n := testing.AllocsPerRun(100, func() { dst = blockhash.Append(dst[:0], tokens, 16, 1337) }); n != 0 {
		t.Errorf("%v allocations per call, want 0", n)
	}
}

// BenchmarkAppend: what does hashing a prompt cost?
//
//	go test -run - -bench Append ./internal/kv/blockhash
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{256, 4096, 32768} {
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			tokens := make([]uint32, n)
			for i := range tokens {
				tokens[i] = uint32(i * 7)
			}
			dst := make([]blockhash.Block, 0, n/16)
			b.ReportAllocs()
			b.SetBytes(int64(4 * n))
			for b.Loop() {
				dst = blockhash.Append(dst[:0], tokens, 16, 1337)
			}
		})
	}
}

// BenchmarkChain: what does the chain of a prompt of 6,250 blocks cost?
//
//	go test -run - -bench Chain ./internal/kv/blockhash
func BenchmarkChain(b *testing.B) {
	blocks := make([]blockhash.Block, 6250)
	for i := range blocks {
		blocks[i] = blockhash.Hash([]uint32{uint32(i)}, 1337)
	}
	dst := make([]blockhash.Sequence, 0, len(blocks))
	b.ReportAllocs()
	for b.Loop() {
		dst = blockhash.Chain(dst[:0], blocks)
	}
}
