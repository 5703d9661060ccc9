package planner

import "testing"

func points(figures ...float64) (out []point) {
	for i := 0; i < len(figures); i += 2 {
		out = append(out, point{hours: figures[i], misses: figures[i+1]})
	}
	return out
}

// A front has no point that another one beats in both figures, and none with more than half of the requests missed.
func TestFrontOf(t *testing.T) {
	f := frontOf(points(3, 0.2, 1, 0.9, 2, 0.3, 2, 0.25, 4, 0.2, 5, 0.01))
	want := points(2, 0.25, 3, 0.2, 5, 0.01)
	if len(f) != len(want) {
		t.Fatalf("the front is %v, want %v", f, want)
	}
	for i := range f {
		if f[i].hours != want[i].hours || f[i].misses != want[i].misses {
			t.Errorf("point %d is %v, want %v", i, f[i], want[i])
		}
	}
	if p := f.chosen(); p.hours != 5 {
		t.Errorf("the point with few misses has %v GPU hours, want 5", p.hours)
	}
	if p := f[:2].chosen(); p.hours != 3 {
		t.Errorf("without a point with few misses, the one with the fewest has %v GPU hours, want 3", p.hours)
	}
}

// Fronts are compared at the rival's GPU hours and at its misses. A rival that is cheaper than all of our points is never beaten.
func TestCompareFronts(t *testing.T) {
	our := frontOf(points(2, 0.1, 3, 0.02, 4, 0.01))
	r, ok := compareFronts(our, frontOf(points(1, 0.4, 3.5, 0.05, 5, 0.001)))
	switch {
	case !ok || !r.fewer || !r.cheaper:
		t.Fatalf("no comparison: %+v", r)
	case r.equalHours.misses != 0.02 || r.equalMisses.hours != 3:
		t.Errorf("%v misses at equal GPU hours and %v GPU hours at equal misses, want 0.02 and 3", r.equalHours.misses, r.equalMisses.hours)
	case r.better != 1 || r.all != 3:
		t.Errorf("better at %d of %d points, want 1 of 3", r.better, r.all)
	}

	r, ok = compareFronts(our, frontOf(points(1, 0.04)))
	if !ok || r.fewer || !r.cheaper {
		t.Errorf("a rival that is cheaper than all points: %+v", r)
	}
	if _, ok := compareFronts(nil, our); ok {
		t.Error("a front without points is compared")
	}
}
