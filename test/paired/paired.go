// Package paired compares two series of measurements whose elements belong together: those of two policies in the same rounds.
package paired

import (
	"fmt"
	"math"
)

// Interval is a mean difference and its 95 % interval, as shares.
type Interval struct{ Mean, Low, High float64 }

// quantiles are the 97.5 % quantiles of Student's t with 1, 2, … degrees of freedom. Few rounds need them: a bootstrap of four
// pairs excludes zero whenever all four have one sign, which happens by chance once in eight times.
var quantiles = []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131}

// Difference returns the mean of a[i] - b[i] as a share of the mean of b, with the interval of Student's t. The interval of a single
// pair is unbounded.
func Difference(a, b []float64) Interval {
	n := float64(len(a))
	var mean, base float64
	for i := range a {
		mean += (a[i] - b[i]) / n
		base += b[i] / n
	}
	if len(a) == 1 {
		return Interval{mean / base, math.Inf(-1), math.Inf(1)}
	}

	var squares float64
	for i := range a {
		squares += (a[i] - b[i] - mean) * (a[i] - b[i] - mean)
	}
	half := quantile(len(a)-1) * math.Sqrt(squares/(n-1)/n)
	return Interval{mean / base, (mean - half) / base, (mean + half) / base}
}

func quantile(freedom int) float64 {
	if freedom <= len(quantiles) {
		return quantiles[freedom-1]
	}
	return 1.96 + 2.5/float64(freedom) // within 0.01
}

// String writes the difference in percent.
func (i Interval) String() string {
	if math.IsInf(i.High, 1) {
		return fmt.Sprintf("%+.1f %% (one round)", 100*i.Mean)
	}
	return fmt.Sprintf("%+.1f %% (%+.1f to %+.1f)", 100*i.Mean, 100*i.Low, 100*i.High)
}
