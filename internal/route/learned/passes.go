package learned

import (
	"math"
	"sync/atomic"
)

// passes is the mean number of passes that a prompt adds to the work of a rank, by the expectations of decisions: 1 if each prompt is
// computed alone, and less if prompts share passes. All methods are safe for concurrent use.
type passes struct {
	shared atomic.Uint64 // 1 less the mean, as bits of a float64, so that the zero value is a mean of 1
}

// passesKeep is the number of prompts in the mean. It is small, because requests that end together come back as one burst.
const passesKeep = 32

// Observe adds a prompt that adds the given part of a pass, from 0 to 1.
func (p *passes) Observe(part float64) {
	shared := math.Float64frombits(p.shared.Load())
	shared += (1 - part - shared) / passesKeep
	p.shared.Store(math.Float64bits(shared)) // an observation beside this one may be lost, which changes little
}

// Mean returns the mean: 1 before the first prompt.
func (p *passes) Mean() float64 { return 1 - math.Float64frombits(p.shared.Load()) }
