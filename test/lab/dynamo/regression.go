package dynamo

import (
	"errors"
	"fmt"
	"math"
)

// Kind is the kind of passes of a regression: it selects the parts of a pass that are its features.
type Kind int

// The kinds of passes.
const (
	PrefillPass Kind = iota // prompt tokens
	DecodePass              // decoding requests, and the tokens of their contexts
	MixedPass               // prompt tokens, and the tokens of decoding requests' contexts
)

// Sample is one forward pass of an engine.
type Sample struct {
	// PromptTokens is the prompt tokens that were computed.
	PromptTokens float64
	// Requests is the requests that decoded, and ContextTokens the tokens in the cache of them.
	Requests, ContextTokens float64
	// Milliseconds is the duration of the pass.
	Milliseconds float64
}

// features returns the values that a kind of regression is about. The second one is 0 for prefill passes.
func (k Kind) features(s Sample) (a, b float64) {
	switch k {
	case PrefillPass:
		return s.PromptTokens, 0
	case DecodePass:
		return s.Requests, s.ContextTokens
	}
	return s.PromptTokens, s.ContextTokens
}

// Retention sets the samples that a regression keeps.
type Retention struct {
	// Most is the number of samples that are kept, Buckets the number of buckets into which their features are divided, a square
	// number, and Ready the number of samples that a regression needs.
	Most, Buckets, Ready int
}

// DefaultRetention returns 64 samples in 16 buckets, of which 5 are needed.
func DefaultRetention() Retention { return Retention{Most: 64, Buckets: 16, Ready: 5} }

// mostSamples bounds the samples that a configuration may ask for: adding a sample copies all.
const mostSamples = 4096

// validate returns an error for a retention that is not valid.
func (r Retention) validate() error {
	side := int(math.Sqrt(float64(max(0, r.Buckets))))
	switch {
	case r.Most < 1 || r.Most > mostSamples:
		return fmt.Errorf("%d samples are to be kept: it must be 1 to %d", r.Most, mostSamples)
	case side*side != r.Buckets || side == 0:
		return fmt.Errorf("samples are divided into %d buckets: it must be a square number", r.Buckets)
	case r.Ready < 1:
		return errors.New("a regression must need one sample or more")
	}
	return nil
}

// Regression learns how long passes last. It is a value: Add returns the next one. It holds at most as many samples as its Retention.
type Regression struct {
	kind    Kind
	keep    Retention
	samples []Sample // oldest first; never changed once it is here
}

// NewRegression returns a regression without samples.
func NewRegression(kind Kind, keep Retention) Regression { return Regression{kind: kind, keep: keep} }

// Add returns the regression with one more sample. Samples without a duration, or without any work of this kind, are left out: an
// idle engine reports them as a sign of life.
func (r Regression) Add(s Sample) Regression {
	a, b := r.kind.features(s)
	if !(s.Milliseconds > 0) || !finite(s.Milliseconds) || !(a >= 0) || !(b >= 0) || !finite(a) || !finite(b) || a+b == 0 {
		return r
	}

	samples := make([]Sample, 0, len(r.samples)+1)
	samples = append(samples, r.samples...)
	samples = append(samples, s)
	if len(samples) > r.keep.Most {
		i := r.superfluous(samples)
		samples = append(samples[:i], samples[i+1:]...)
	}
	r.samples = samples
	return r
}

// superfluous returns the oldest sample of the bucket that has the most. The buckets divide the range of the features, so that rare
// passes are kept.
func (r Regression) superfluous(samples []Sample) int {
	low, high := r.bounds(samples)
	counts := map[int]int{}
	most := 0
	for _, s := range samples {
		bucket := r.bucket(s, low, high)
		counts[bucket]++
		most = max(most, counts[bucket])
	}
	for i, s := range samples {
		if counts[r.bucket(s, low, high)] == most {
			return i
		}
	}
	return 0
}

// bounds returns the least and the largest features.
func (r Regression) bounds(samples []Sample) (low, high [2]float64) {
	low = [2]float64{math.Inf(1), math.Inf(1)}
	high = [2]float64{math.Inf(-1), math.Inf(-1)}
	for _, s := range samples {
		a, b := r.kind.features(s)
		low = [2]float64{min(low[0], a), min(low[1], b)}
		high = [2]float64{max(high[0], a), max(high[1], b)}
	}
	return low, high
}

// bucket returns the bucket of a sample: one row for one feature, a square for two.
func (r Regression) bucket(s Sample, low, high [2]float64) int {
	a, b := r.kind.features(s)
	part := func(v, low, high float64, n int) int {
		if high <= low {
			return 0
		}
		return min(n-1, int(float64(n)*(v-low)/(high-low)))
	}
	if r.kind == PrefillPass {
		return part(a, low[0], high[0], r.keep.Buckets)
	}
	side := int(math.Sqrt(float64(r.keep.Buckets)))
	return side*part(a, low[0], high[0], side) + part(b, low[1], high[1], side)
}

// Len returns the number of samples, and Ready whether they are enough.
func (r Regression) Len() int { return len(r.samples) }

// Ready reports whether there are samples enough for a fit.
func (r Regression) Ready() bool { return len(r.samples) >= max(1, r.keep.Ready) }

// Mean returns the mean of the samples' features: prompt tokens or requests, and tokens of contexts.
func (r Regression) Mean() (a, b float64) {
	for _, s := range r.samples {
		x, y := r.kind.features(s)
		a += x / float64(len(r.samples))
		b += y / float64(len(r.samples))
	}
	return a, b
}

// meanLength returns the mean context of a decoding request.
func (r Regression) meanLength() (tokens float64) {
	n := 0.0
	for _, s := range r.samples {
		if s.Requests > 0 {
			n++
			tokens += s.ContextTokens / s.Requests
		}
	}
	return tokens / max(1, n)
}

// Fit is a model of the duration of passes: Intercept + A·a + B·b + Bend·max(a-Knot, 0), in milliseconds, for the two features
// of its kind.
type Fit struct {
	Kind                     Kind
	Intercept, A, B          float64
	Bend, Knot               float64
	RelativeError, Deviation float64 // root mean square: as a share (of at least 25 ms), and in milliseconds
}

// Pass returns the duration of a pass in milliseconds, of at least a microsecond: the intercept of a line may be negative.
func (f Fit) Pass(s Sample) float64 { return max(1e-3, f.value(s)) }

func (f Fit) value(s Sample) float64 {
	a, b := f.Kind.features(s)
	return f.Intercept + f.A*a + f.B*b + f.Bend*max(a-f.Knot, 0)
}

// Fit returns the model of the current sources: a line with one bend for prefill passes of six samples and more, and the least
// squares with coefficients of at least 0 for others. It is false if there are not enough samples, or if nothing but their mean
// explains them.
func (r Regression) Fit() (Fit, bool) {
	if !r.Ready() {
		return Fit{}, false
	}
	if r.kind == PrefillPass && len(r.samples) >= leastForBend {
		if f, ok := r.bent(); ok {
			return f, true
		}
	}
	return r.nonNegative()
}

// Plain returns the model of release 1.6.1: ordinary least squares, with an intercept of either sign. A fit with a negative
// coefficient is refused, but the coefficient of the number of decoding requests becomes 0.
func (r Regression) Plain() (Fit, bool) {
	if !r.Ready() {
		return Fit{}, false
	}
	f, ok := r.leastSquares(true, r.kind != PrefillPass)
	if ok && f.A < 0 && r.kind == DecodePass && f.B >= 0 {
		f.A = 0
		return r.judged(f), true
	}
	return f, ok && f.A >= 0 && f.B >= 0
}

// nonNegative enumerates which coefficients are 0 and returns the best fit whose others are not negative. The intercept is free.
func (r Regression) nonNegative() (Fit, bool) {
	var best Fit
	found := false
	for _, use := range [][2]bool{{true, true}, {true, false}, {false, true}} {
		if r.kind == PrefillPass && use[1] {
			continue
		}
		f, ok := r.leastSquares(use[0], use[1])
		if ok && f.A >= 0 && f.B >= 0 && f.A+f.B > 0 && (!found || f.Deviation < best.Deviation) {
			best, found = f, true
		}
	}
	return best, found
}

// leastSquares fits an intercept and those coefficients that are in use.
// A feature that is the same in all samples explains nothing, so a fit with it is refused.
func (r Regression) leastSquares(useA, useB bool) (Fit, bool) {
	low, high := r.bounds(r.samples)
	if useA && low[0] == high[0] || useB && low[1] == high[1] {
		return Fit{}, false
	}
	rows, targets := make([][]float64, len(r.samples)), make([]float64, len(r.samples))
	for i, s := range r.samples {
		a, b := r.kind.features(s)
		rows[i] = []float64{1}
		if useA {
			rows[i] = append(rows[i], a)
		}
		if useB {
			rows[i] = append(rows[i], b)
		}
		targets[i] = s.Milliseconds
	}
	x, ok := solveLeastSquares(rows, targets)
	if !ok {
		return Fit{}, false
	}

	f := Fit{Kind: r.kind, Intercept: x[0]}
	rest := x[1:]
	if useA {
		f.A = rest[0]
		rest = rest[1:]
	}
	if useB {
		f.B = rest[0]
	}
	return r.judged(f), true
}

// judged returns the fit with its errors on the samples.
func (r Regression) judged(f Fit) Fit {
	relative, squares := 0.0, 0.0
	for _, s := range r.samples {
		e := f.value(s) - s.Milliseconds
		squares += e * e
		relative += e * e / math.Pow(max(s.Milliseconds, leastScale), 2)
	}
	n := float64(len(r.samples))
	f.RelativeError, f.Deviation = math.Sqrt(relative/n), math.Sqrt(squares/n)
	return f
}

// finite reports whether v is a number, and not infinite.
func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
