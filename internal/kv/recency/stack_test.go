package recency

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// lru is the list of blocks, the one used last first.
type lru struct{ blocks []blockhash.Sequence }

func (l *lru) touch(chain []blockhash.Sequence) {
	for _, block := range slices.Backward(chain) {
		if i := slices.Index(l.blocks, block); i >= 0 {
			l.blocks = slices.Delete(l.blocks, i, i+1)
		}
		l.blocks = slices.Insert(l.blocks, 0, block)
	}
}

func (l *lru) kept(chain []blockhash.Sequence, capacity int) int {
	for i, block := range chain {
		if slices.Index(l.blocks, block) >= capacity {
			return i
		}
	}
	return len(chain)
}

// prompt is a chain of random blocks.
func prompt(rng *rand.Rand, blocks int) []blockhash.Sequence {
	chain := make([]blockhash.Sequence, blocks)
	for i := range chain {
		chain[i] = blockhash.Sequence(rng.Uint64() | 1<<63)
	}
	return chain
}

// TestStackEqualsList: a small cache is counted exactly, over many renumberings.
func TestStackEqualsList(t *testing.T) {
	const capacity = 300
	rng := rand.New(rand.NewPCG(1, 1))
	prompts := make([][]blockhash.Sequence, 30)
	for i := range prompts {
		prompts[i] = prompt(rng, 10+rng.IntN(30))
	}
	var s Stack
	var l lru
	lost := 0
	for step := range 5_000 {
		p := prompts[rng.IntN(len(prompts))]
		if got, want := s.Kept(p, len(p), capacity), l.kept(p, capacity); got != want {
			t.Fatalf("step %d: %d blocks are kept, want %d", step, got, want)
		}
		if l.kept(p, capacity) < len(p) {
			lost++
		}
		s.Touch(p, capacity)
		l.touch(p)
	}
	if lost < 500 {
		t.Errorf("only %d of 5,000 prompts lost blocks: the test shows little", lost)
	}
}

// TestSampledStackIsNear: of a large cache the sample finds the prompts that are lost, but for those near the edge and the
// few without a block in the sample.
func TestSampledStackIsNear(t *testing.T) {
	const capacity, length = 50_000, 500
	rng := rand.New(rand.NewPCG(2, 2))
	var s Stack
	var prompts [][]blockhash.Sequence
	for range 200 { // twice the cache
		prompts = append(prompts, prompt(rng, length))
		s.Touch(prompts[len(prompts)-1], capacity)
	}
	missed := 0
	for ago := range 200 {
		p := prompts[len(prompts)-1-ago]
		used := ago * length
		switch got := s.Kept(p, length, capacity); {
		case used < capacity*9/10 && got != length:
			t.Errorf("%d blocks later only %d are kept", used, got)
		case used > capacity*11/10 && got > length/2:
			missed++
		}
	}
	if missed > 4 {
		t.Errorf("%d of 90 prompts that are lost were not found", missed)
	}
}

// TestUnknownBlocksAreKept: the stack speaks only of blocks that were used before, and begins again with another sample.
func TestUnknownBlocksAreKept(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var s Stack
	p := prompt(rng, 20)
	if got := s.Kept(p, 20, 10); got != 20 {
		t.Errorf("%d blocks are kept of a prompt that is not known", got)
	}
	s.Touch(p, 10)
	if got := s.Kept(p, 20, 10); got != 10 {
		t.Errorf("%d blocks are kept in a cache of 10", got)
	}
	if got := s.Kept(p, 20, 1<<20); got != 20 {
		t.Errorf("%d blocks are kept after the capacity has grown", got)
	}
}

// TestStackIsBounded: however many blocks are used.
func TestStackIsBounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	var s Stack
	for range 200 {
		s.Touch(prompt(rng, 1_000), 1_000)
	}
	if len(s.placed) > places || len(s.blocks) > places || cap(s.blocks) > 2*places {
		t.Errorf("%d blocks at %d places", len(s.placed), len(s.blocks))
	}
}

func BenchmarkTouch(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 5))
	prompts := make([][]blockhash.Sequence, 64)
	for i := range prompts {
		prompts[i] = prompt(rng, 250)
	}
	var s Stack
	for i := 0; b.Loop(); i++ {
		s.Touch(prompts[i%64], 100_000)
	}
}

func BenchmarkKept(b *testing.B) {
	rng := rand.New(rand.NewPCG(6, 6))
	p := prompt(rng, 250)
	var s Stack
	s.Touch(p, 100_000)
	for b.Loop() {
		s.Kept(p, 250, 100_000)
	}
}
