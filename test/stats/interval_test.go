package stats

import (
	"math"
	"testing"
)

func TestDifference(t *testing.T) {
	got := Difference([]float64{11, 12, 13}, []float64{10, 10, 10})
	// Differences of 1, 2 and 3 have the deviation 1, so half the interval is 4.303 / √3.
	half := 0.4303 / math.Sqrt(3)
	if math.Abs(got.Mean-0.2) > 1e-9 || math.Abs(got.High-0.2-half) > 1e-9 || math.Abs(got.Low-0.2+half) > 1e-9 {
		t.Errorf("%v", got)
	}
	if one := Difference([]float64{3}, []float64{2}); one.String() != "+50.0 % (one round)" {
		t.Errorf("%v", one)
	}
}

// TestEstimate compares with figures computed by hand: values 1, 2, 3 have mean 2, deviation 1, and
// 4.303 as the quantile of two degrees.
func TestEstimate(t *testing.T) {
	center, half := estimate([]float64{1, 2, 3})

	if want := 4.303 / math.Sqrt(3); center != 2 || math.Abs(half-want) > 1e-9 {
		t.Errorf("%g ± %g, want 2 ± %g", center, half, want)
	}
	if _, half := estimate([]float64{1}); !math.IsInf(half, 1) {
		t.Errorf("one value has an interval of ± %g", half)
	}
}

// TestQuantile checks the continuation of the table beside published values.
func TestQuantile(t *testing.T) {
	for degrees, want := range map[int]float64{9: 2.262, 20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980} {
		if got := quantile(degrees); math.Abs(got-want) > 0.002 {
			t.Errorf("%d degrees: %g, want %g", degrees, got, want)
		}
	}
}
