// Package stats has the statistics of test programs and benchmarks: means, medians, percentiles and intervals.
package stats

import (
	"cmp"
	"math"
	"slices"
)

// Mean returns the mean of values; 0 for none.
func Mean(values []float64) (mean float64) {
	for _, v := range values {
		mean += v / float64(len(values))
	}
	return mean
}

// MeanOf returns the mean of a figure of elements; 0 for none.
func MeanOf[T any](list []T, figure func(*T) float64) (mean float64) {
	for i := range list {
		mean += figure(&list[i]) / float64(len(list))
	}
	return mean
}

// Deviation returns the standard deviation of a sample; 0 for less than two values.
func Deviation(values []float64) float64 {
	mean, squares := Mean(values), 0.0
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	return math.Sqrt(squares / float64(max(1, len(values)-1)))
}

// Median returns the median of values, which is the mean of the two in the middle if their number is even; 0 for none.
func Median[T ~float64 | ~int64](values []T) T {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// Percentile returns the least of the values that at least a share of them does not exceed; the zero value for none.
func Percentile[T cmp.Ordered](values []T, share float64) (v T) {
	if len(values) == 0 {
		return v
	}
	sorted := slices.Sorted(slices.Values(values))
	const rounding = 1e-9 // 0.55 of 20 is 11, and not a little more
	rank := int(math.Ceil(share*float64(len(sorted)) - rounding))
	return sorted[min(max(rank, 1), len(sorted))-1]
}
