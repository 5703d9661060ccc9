package renewal

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestIntervals(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct {
		variation float64
		weibull   bool
	}{{0.3, false}, {1, false}, {3, false}, {0.5, true}, {1.5, true}} {
		next := Intervals(c.weibull, c.variation)
		sum, squares := 0.0, 0.0
		const n = 400_000
		for range n {
			v := next(r)
			sum += v
			squares += v * v
		}
		mean := sum / n
		variation := math.Sqrt(squares/n-mean*mean) / mean
		if math.Abs(mean-1) > 0.03 || math.Abs(variation/c.variation-1) > 0.05 {
			t.Errorf("%+v: mean %.3f and coefficient of variation %.3f", c, mean, variation)
		}
	}
}
