package pool

import (
	"errors"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
)

// fill registers a block and leaves it inactive.
func fill(t testing.TB, p *Pool, k block.Key, priority uint8) Evicted {
	t.Helper()

	i, evicted, err := p.Take(time.Unix(1000, 0), true)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Complete(i); err != nil {
		t.Fatal(err)
	}
	i, err = p.Register(i, k, priority)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Release(i); err != nil {
		t.Fatal(err)
	}
	return evicted
}

// TestOrderOfEviction evicts by priority first, and by use among equals. A pinned block is the last, with its pin.
func TestOrderOfEviction(t *testing.T) {
	p := New(4)
	fill(t, p, key(1), 0)
	fill(t, p, key(2), 1)
	fill(t, p, key(3), 0)
	fill(t, p, key(4), 0)
	until := time.Unix(2000, 0)
	p.Pin(key(3), until)
	i, _ := p.Acquire(key(1))
	if err := p.Release(i); err != nil {
		t.Fatal(err)
	}

	for n, want := range []int{4, 1, 2, 3} {
		_, e, err := p.Take(time.Unix(1000, 0), true)
		if err != nil || e.Key != key(want) {
			t.Fatalf("eviction %d: %+v, %v, want key %d", n, e, err, want)
		}
		if pinned := want == 3; pinned != e.Until.Equal(until) {
			t.Errorf("key %d left with the pin %v", want, e.Until)
		}
	}
	if s := p.Stats(); s.Evicted != 4 || s.Demoted != 1 {
		t.Errorf("%+v", s)
	}
	if _, _, err := p.Take(time.Unix(1000, 0), true); !errors.Is(err, ErrFull) {
		t.Errorf("the slots are all partial: %v", err)
	}
}

// TestPinsEnd keeps a pinned block from callers that do not demote, until its time has come.
func TestPinsEnd(t *testing.T) {
	p := New(1)
	fill(t, p, key(1), 0)
	p.Pin(key(1), time.Unix(2000, 0))

	if _, _, err := p.Take(time.Unix(1999, 0), false); !errors.Is(err, ErrFull) {
		t.Fatalf("before its time: %v", err)
	}
	if _, e, err := p.Take(time.Unix(2000, 0), false); err != nil || e.Key != key(1) || !e.Until.IsZero() {
		t.Fatalf("at its time: %+v, %v", e, err)
	}
}

func TestMatchStopsAtTheFirstGap(t *testing.T) {
	p := New(3)
	for _, k := range []int{1, 2, 4} {
		fill(t, p, key(k), 0)
	}
	for _, c := range []struct {
		keys []block.Key
		want int
	}{
		{nil, 0},
		{[]block.Key{key(1), key(2), key(3), key(4)}, 2},
		{[]block.Key{key(3), key(1)}, 0},
		{[]block.Key{key(4), key(2), key(1)}, 3},
	} {
		if got := p.Match(c.keys); got != c.want {
			t.Errorf("%d of %d keys match, want %d", got, len(c.keys), c.want)
		}
	}
}

// TestCollidingKeys has keys with the same home in the index, and removes them in each order.
func TestCollidingKeys(t *testing.T) {
	for first := range 4 {
		p := New(4)
		for n := range 4 {
			fill(t, p, block.Key{15: byte(n)}, 0)
		}
		for n := range 4 {
			gone := block.Key{15: byte(first+n) % 4}
			if !p.Evict(gone).Valid || p.Has(gone) {
				t.Fatalf("key %v is not evicted", gone)
			}
			for rest := n + 1; rest < 4; rest++ {
				if k := (block.Key{15: byte(first+rest) % 4}); !p.Has(k) {
					t.Fatalf("key %v is gone with %v", k, gone)
				}
			}
		}
	}
}

// TestSketch compares estimates with true counts: never lower, and seldom higher.
func TestSketch(t *testing.T) {
	s := NewSketch(4096)
	for n := range 4096 {
		for range n % 8 {
			s.Add(key(n))
		}
	}

	higher := 0
	for n := range 4096 {
		got := s.Seen(key(n))
		if got < n%8 {
			t.Fatalf("key %d was seen %d times, and the estimate is %d", n, n%8, got)
		}
		if got > n%8 {
			higher++
		}
	}
	if higher > 4096*15/100 {
		t.Errorf("%d of 4096 estimates are too high", higher)
	}
}

// TestSketchForgets halves the counters after ten samples for each key.
func TestSketchForgets(t *testing.T) {
	s := NewSketch(16)
	for range 20 {
		s.Add(key(1))
	}
	if got := s.Seen(key(1)); got != highestCount {
		t.Fatalf("seen %d times after 20, want %d", got, highestCount)
	}
	for range 140 {
		s.Add(key(2))
	}
	if got := s.Seen(key(1)); got != highestCount/2 {
		t.Errorf("seen %d times after the halving, want %d", got, highestCount/2)
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	p, n := fullPool(t, 1000)
	sketch := NewSketch(1000)
	allocs := testing.AllocsPerRun(5000, func() {
		n++
		k := keyOf(n)
		sketch.Add(k)
		if e := fill(t, p, k, uint8(n%3)); !e.Valid {
			t.Fatal("nothing was evicted")
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations for each block", allocs)
	}
}

// keyOf returns a key without the cost of a digest.
func keyOf(n int) (k block.Key) {
	x := uint64(n) * 0x9E3779B97F4A7C15
	for i := range k {
		k[i] = byte(x >> (i % 8 * 8))
	}
	return k
}

func fullPool(t testing.TB, slots int) (p *Pool, keys int) {
	p = New(slots)
	for n := range slots {
		fill(t, p, keyOf(n), 0)
	}
	return p, slots
}

const benchSlots = 100_000

func BenchmarkMatch1000(b *testing.B) {
	p, _ := fullPool(b, benchSlots)
	keys := make([]block.Key, 1000)
	for n := range keys {
		keys[n] = keyOf(n * 97)
	}
	b.ReportAllocs()
	for b.Loop() {
		if p.Match(keys) != len(keys) {
			b.Fatal("keys are missing")
		}
	}
}

func BenchmarkTakeRegisterEvict(b *testing.B) {
	p, n := fullPool(b, benchSlots)
	b.ReportAllocs()
	for b.Loop() {
		n++
		fill(b, p, keyOf(n), uint8(n%3))
	}
}

func BenchmarkSketch(b *testing.B) {
	s := NewSketch(benchSlots)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		s.Add(keyOf(n))
	}
}
