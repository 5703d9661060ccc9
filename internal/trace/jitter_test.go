package trace

import (
	"errors"
	"testing"
	"time"
)

// TestJitterSpreadsRoundedArrivals checks that all arrivals come, in order and within their spans, and
// that those before an error are not lost.
func TestJitterSpreadsRoundedArrivals(t *testing.T) {
	var list []Arrival
	for i := range 300 {
		list = append(list, Arrival{At: time.Duration(i/10) * 3 * time.Second, Output: i})
	}
	next := Jitter(3*time.Second, 1, List(list))
	seen, last, moments := map[int]bool{}, time.Duration(0), map[time.Duration]bool{}
	for a, ok, err := next(); ok; a, ok, err = next() {
		was := list[a.Output].At
		if err != nil || a.At < last || a.At < was || a.At >= was+3*time.Second || seen[a.Output] {
			t.Fatalf("arrival %d of %v at %v after %v, %v", a.Output, was, a.At, last, err)
		}
		seen[a.Output], last, moments[a.At] = true, a.At, true
	}
	if len(seen) != 300 || len(moments) != 300 {
		t.Errorf("%d arrivals at %d moments", len(seen), len(moments))
	}
	broken := errors.New("line 3")
	left := 3
	next = Jitter(time.Second, 1, func() (Arrival, bool, error) {
		if left--; left < 0 {
			return Arrival{}, false, broken
		}
		return Arrival{}, true, nil
	})
	for range 3 {
		if _, ok, err := next(); !ok || err != nil {
			t.Fatal("an arrival before the error is lost")
		}
	}
	if _, ok, err := next(); ok || !errors.Is(err, broken) {
		t.Errorf("%v, %v at the end", ok, err)
	}
}
