package perfmodel

import (
	"math"
	"time"
)

// Factor is the time of an engine's work as a multiple of its model's estimate, learned from observations. It combines an estimate that was
// made before the first observation with the observations, each by its doubt: the logarithm of the factor is followed by a Kalman filter of
// one dimension. It is a value. The zero Factor belongs to a model without doubt, which nothing changes: begin with [NewFactor].
type Factor struct {
	// Log is the logarithm of the factor.
	Log float64
	// Variance is the variance of the logarithm's error. Its square root is the doubt: the standard deviation of the factor, as a share
	// of it.
	Variance float64
	// Observed counts the observations.
	Observed int
}

const (
	// factorNoise is the standard deviation of the logarithm of one observation, which covers the engine's noise and errors of the counts.
	// factorDrift is the change of the factor itself between two observations.
	factorNoise = 0.2
	factorDrift = 0.005
	// factorMost bounds the factor and its inverse, so that one absurd observation leaves a usable model.
	factorMost = 8
	// factorOutlier bounds the deviation of an observation, in standard deviations: one that is further off counts as that far off.
	factorOutlier = 3
)

// NewFactor returns a factor of 1 with a doubt: the standard deviation of its logarithm.
func NewFactor(doubt float64) Factor { return Factor{Variance: doubt * doubt} }

// Observe returns the factor after an observation of work that took some time, and should have taken another by the model. An
// observation without a time is ignored.
func (f Factor) Observe(took, expected time.Duration) Factor {
	if took <= 0 || expected <= 0 || f.Variance <= 0 {
		return f
	}

	before := f.Variance + factorDrift*factorDrift
	spread := math.Sqrt(before + factorNoise*factorNoise)
	off := math.Log(float64(took)/float64(expected)) - f.Log
	off = min(max(off, -factorOutlier*spread), factorOutlier*spread)

	gain := before / (before + factorNoise*factorNoise)
	f.Log = min(max(f.Log+gain*off, -math.Log(factorMost)), math.Log(factorMost))
	f.Variance = before * (1 - gain)
	f.Observed++
	return f
}

// Value returns the factor.
func (f Factor) Value() float64 { return math.Exp(f.Log) }

// Corrected is a timing whose passes take factors as long.
type Corrected struct {
	Timing              Timing
	PrefillBy, DecodeBy float64 // 0 means 1
}

// Prefill returns the corrected time of the prompts of a pass.
func (c Corrected) Prefill(w Prefill) time.Duration {
	return time.Duration(float64(c.Timing.Prefill(w)) * orOne(c.PrefillBy))
}

// Decode returns the corrected time of a decode step.
func (c Corrected) Decode(w Decode) time.Duration {
	return time.Duration(float64(c.Timing.Decode(w)) * orOne(c.DecodeBy))
}
