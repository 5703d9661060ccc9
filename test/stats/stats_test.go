package stats

import (
	"math"
	"testing"
	"time"
)

// TestMeans compares means and deviations with figures that were computed by hand.
func TestMeans(t *testing.T) {
	if m, d := Mean([]float64{1, 3}), Deviation([]float64{1, 3}); m != 2 || math.Abs(d-math.Sqrt2) > 1e-12 {
		t.Errorf("%v ± %v, want 2 ± √2", m, d)
	}
	if m, d := Mean([]float64{5}), Deviation([]float64{5}); m != 5 || d != 0 {
		t.Errorf("%v ± %v of one value, want 5 ± 0", m, d)
	}
	if m, d := Mean(nil), Deviation(nil); m != 0 || d != 0 {
		t.Errorf("%v ± %v of nothing, want 0 ± 0", m, d)
	}
	if m := MeanOf([]time.Duration{time.Second, 2 * time.Second}, func(d *time.Duration) float64 { return d.Seconds() }); m != 1.5 {
		t.Errorf("%v, want 1.5", m)
	}
}

// TestMedian has odd and even numbers of values.
func TestMedian(t *testing.T) {
	if m := Median([]float64{3, 1, 2}); m != 2 {
		t.Errorf("%v, want 2", m)
	}
	if m := Median([]time.Duration{4, 1, 2, 8}); m != 3 {
		t.Errorf("%v, want 3", m)
	}
	if m := Median[float64](nil); m != 0 {
		t.Errorf("%v of nothing", m)
	}
}

// TestPercentile has shares that fall on a value and between two, and one that is not exact in binary.
func TestPercentile(t *testing.T) {
	var values []int
	for i := range 20 {
		values = append(values, 20-i)
	}
	for share, want := range map[float64]int{0: 1, 0.05: 1, 0.06: 2, 0.5: 10, 0.55: 11, 0.95: 19, 0.99: 20, 1: 20} {
		if got := Percentile(values, share); got != want {
			t.Errorf("%v: %d, want %d", share, got, want)
		}
	}
	if values[0] != 20 {
		t.Error("the values were sorted in place")
	}
	if got := Percentile[float64](nil, 0.5); got != 0 {
		t.Errorf("%v of nothing", got)
	}
}
