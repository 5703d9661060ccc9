package stats

import (
	"fmt"
	"math"
)

// Interval is a mean difference and its 95 % interval, as shares.
type Interval struct{ Mean, Low, High float64 }

// quantiles are the 97.5 % quantiles of Student's t with 1, 2, … degrees of freedom. Few rounds need them: a bootstrap of four
// pairs excludes zero whenever all four have one sign, which happens by chance once in eight times.
var quantiles = []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
	2.120, 2.110, 2.101, 2.093, 2.086}

// Difference compares two series of measurements whose elements belong together, as of two policies in the same rounds. It returns the
// mean of a[i] - b[i] as a share of the mean of b, with the interval of Student's t. The interval of a single
// pair is unbounded.
func Difference(a, b []float64) Interval {
	differences := make([]float64, len(a))
	base := 0.0
	for i := range a {
		differences[i] = a[i] - b[i]
		base += b[i] / float64(len(a))
	}
	mean, half := estimate(differences)
	return Interval{mean / base, (mean - half) / base, (mean + half) / base}
}

// estimate returns the mean of values and half the width of its 95 % interval by Student's t, which is unbounded for a single value.
func estimate(values []float64) (mean, half float64) {
	n := float64(len(values))
	mean = Mean(values)
	squares := 0.0
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	if len(values) < 2 {
		return mean, math.Inf(1)
	}
	return mean, quantile(len(values)-1) * math.Sqrt(squares/(n-1)/n)
}

func quantile(freedom int) float64 {
	if freedom <= len(quantiles) {
		return quantiles[freedom-1]
	}
	return 1.96 + 2.4/float64(freedom) // within 0.1 % of the table's continuation
}

// String writes the difference in percent.
func (i Interval) String() string {
	if math.IsInf(i.High, 1) {
		return fmt.Sprintf("%+.1f %% (one round)", 100*i.Mean)
	}
	return fmt.Sprintf("%+.1f %% (%+.1f to %+.1f)", 100*i.Mean, 100*i.Low, 100*i.High)
}
