package sim

import (
	"math"
	"slices"
)

// Quantiles summarizes durations, in milliseconds.
type Quantiles struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

// summary returns the quantiles of values, which it sorts.
func summary(values []float64) Quantiles {
	if len(values) == 0 {
		return Quantiles{}
	}
	slices.Sort(values)
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	at := func(q float64) float64 { return round(values[min(len(values)-1, int(q*float64(len(values))))]) }
	return Quantiles{round(sum / float64(len(values))), at(0.5), at(0.9), at(0.99)}
}

// histogram counts milliseconds in buckets whose width is 1/64 of their value. A run has many millions of
// gaps between tokens, too many to keep them all.
type histogram struct {
	counts [64 * bucketsPerOctave]uint64 // from 2^smallest ms
	n      uint64
	sum    float64
}

const (
	// smallest is the exponent of the first bucket: 2^-20 ms.
	smallest = -20
	// bucketsPerOctave is the number of buckets between a value and its double.
	bucketsPerOctave = 1 << bucketBits
	bucketBits       = 6
)

func (h *histogram) add(v float64) {
	h.n++
	h.sum += v
	// v = (1 + fraction) · 2^exponent, by the layout of a float64. The first bits of the fraction number the bucket.
	bits := math.Float64bits(v)
	i := 0
	if v > 0 {
		exponent := int(bits>>52) - 1023
		fraction := bits & (1<<52 - 1)
		i = (exponent+1-smallest)*bucketsPerOctave + int(fraction>>(52-bucketBits))
	}
	h.counts[min(max(i, 0), len(h.counts)-1)]++
}

// quantile returns the middle of the bucket that has the quantile q.
func (h *histogram) quantile(q float64) float64 {
	left := uint64(q * float64(h.n))
	for i, n := range h.counts {
		if left < n {
			return round(math.Ldexp(0.5+(float64(i%bucketsPerOctave)+0.5)/(2*bucketsPerOctave), i/bucketsPerOctave+smallest))
		}
		left -= n
	}
	return 0
}

// curve returns curvePoints quantiles of sorted values, from the least to the greatest.
func curve(sorted []float64) []float64 {
	if len(sorted) == 0 {
		return []float64{}
	}
	out := make([]float64, curvePoints)
	for i := range out {
		out[i] = round(sorted[i*(len(sorted)-1)/(curvePoints-1)])
	}
	return out
}

func (h *histogram) curve() []float64 {
	if h.n == 0 {
		return []float64{}
	}
	out := make([]float64, curvePoints)
	for i := range out {
		out[i] = h.quantile(float64(i) / (curvePoints - 1) * float64(h.n-1) / float64(h.n))
	}
	return out
}

func (h *histogram) summary() Quantiles {
	if h.n == 0 {
		return Quantiles{}
	}
	return Quantiles{round(h.sum / float64(h.n)), h.quantile(0.5), h.quantile(0.9), h.quantile(0.99)}
}
