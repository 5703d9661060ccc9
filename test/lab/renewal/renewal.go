// Package renewal draws the times between arrivals of clients whose requests come in bursts.
package renewal

import (
	"math"
	"math/rand/v2"
)

// Intervals returns a function that draws times with a mean of 1 and a coefficient of variation: from a Weibull distribution, or from a
// gamma distribution.
func Intervals(weibull bool, variation float64) func(*rand.Rand) float64 {
	if !weibull {
		return func(r *rand.Rand) float64 { return Gamma(r, variation) }
	}
	shape := weibullShape(variation)
	scale := 1 / math.Gamma(1+1/shape)
	return func(r *rand.Rand) float64 { return scale * math.Pow(-math.Log(1-r.Float64()), 1/shape) }
}

// weibullShape returns the shape with a coefficient of variation, by bisection.
func weibullShape(variation float64) float64 {
	low, high := 0.1, 20.0
	for range 60 {
		shape := (low + high) / 2
		mean := math.Gamma(1 + 1/shape)
		if math.Gamma(1+2/shape)/(mean*mean)-1 > variation*variation {
			low = shape
		} else {
			high = shape
		}
	}
	return low
}

// Gamma returns a gamma-distributed number with a mean of 1 and a coefficient of variation, by Marsaglia and Tsang (2000).
func Gamma(r *rand.Rand, variation float64) float64 {
	shape := 1 / max(variation*variation, 1e-6)
	if shape < 1 {
		return math.Pow(1-r.Float64(), 1/shape) * gammaShape(r, shape+1) / shape
	}
	return gammaShape(r, shape) / shape
}

// gammaShape returns a gamma-distributed number of a shape of at least 1 and scale 1.
func gammaShape(r *rand.Rand, shape float64) float64 {
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.NormFloat64()
		v := math.Pow(1+c*x, 3)
		if v > 0 && math.Log(1-r.Float64()) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}
