package paired

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
	if q := quantile(30); math.Abs(q-2.042) > 0.01 {
		t.Errorf("the quantile of 30 degrees of freedom is %v", q)
	}
}
