package trace

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"
)

// hour returns n arrivals, one every three seconds. Neighbours share the first 8 of 16 tokens.
func hour(n int) (list []Arrival) {
	for i := range n {
		list = append(list, Arrival{
			At: time.Minute + time.Duration(i)*3*time.Second, Prompt: Segments{{uint64(i / 2), 8}, {uint64(1000 + i), 8}}, Output: 1 + i, Session: "s",
		})
	}
	return list
}

// TestTileRepeats: without a curve every repetition has every arrival, and its prompts share nothing with those of others.
func TestTileRepeats(t *testing.T) {
	source, done := Tile(Tiling{Times: 3}, List(hour(4)))
	got := all(t, source, nil)
	if len(got) != 12 || done() != 1 {
		t.Fatalf("%d arrivals, %v done", len(got), done())
	}

	first := map[uint32]int{}
	for i, a := range got {
		if want := time.Duration(i) * 3 * time.Second; a.At != want || a.Output != 1+i%4 {
			t.Errorf("arrival %d at %v with %d tokens: want %v and %d", i, a.At, a.Output, want, 1+i%4)
		}
		first[a.Prompt.Append(nil)[0]]++
	}
	if len(first) != 6 || got[0].Session != "s" || got[4].Session != "s/256" {
		t.Errorf("%d different first tokens, want 6; sessions %q and %q", len(first), got[0].Session, got[4].Session)
	}
}

// TestTileFollowsTheCurve: the number of arrivals over the time is that of the curve, in order of time, and the same for the same
// seed.
func TestTileFollowsTheCurve(t *testing.T) {
	const times, parts = 24, 8
	tiling := Tiling{Times: times, Swing: 0.6, Seed: 3}
	source, _ := Tile(tiling, List(hour(1200)))
	got := all(t, source, nil)

	total := float64(times * 1200)
	if math.Abs(float64(len(got))/total-1) > 0.02 {
		t.Errorf("%d arrivals, want about %.0f", len(got), total)
	}
	counts := make([]float64, parts)
	for i, a := range got {
		if i > 0 && a.At < got[i-1].At {
			t.Fatalf("arrival %d at %v is before the one at %v", i, a.At, got[i-1].At)
		}
		counts[int(a.At*parts/(times*time.Hour))]++
	}
	for i, n := range counts {
		middle := (float64(i) + 0.5) / parts
		want := total / parts * (1 - 0.6*math.Cos(2*math.Pi*middle))
		if math.Abs(n/want-1) > 0.06 {
			t.Errorf("part %d of %d has %.0f arrivals, want about %.0f", i, parts, n, want)
		}
	}

	source, _ = Tile(tiling, List(hour(1200)))
	same := func(a, b Arrival) bool {
		return a.At == b.At && slices.Equal(a.Prompt.Append(nil), b.Prompt.Append(nil))
	}
	if again := all(t, source, nil); !slices.EqualFunc(got, again, same) {
		t.Error("the same seed gave other arrivals")
	}
}

// TestTileOfLittle tiles traces of one arrival and of none, and passes errors on.
func TestTileOfLittle(t *testing.T) {
	for n, want := range []int{0, 5} {
		source, _ := Tile(Tiling{Times: 5}, List(hour(n)))
		if got := all(t, source, nil); len(got) != want {
			t.Errorf("%d arrivals of %d, want %d", len(got), n, want)
		}
	}

	broken := errors.New("broken")
	source, _ := Tile(Tiling{Times: 2}, func() (Arrival, bool, error) { return Arrival{}, false, broken })
	if _, _, err := source(); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	for _, bad := range []Tiling{{Times: -1}, {Times: 1 << 20}, {Swing: -0.1}, {Swing: 1.1}, {Swing: math.NaN()}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}
