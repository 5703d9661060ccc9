package perfmodel

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Line is a time that grows with a number of tokens. For prefill it is the extra time of a pass that computes prompts, over their tokens
// that are not cached. For decode it is the other time of a pass, over the tokens that the requests which decode have in the cache. For
// transfer it is the time that the KV cache of computed tokens is on its way.
type Line struct {
	Base  time.Duration // for no tokens
	Token float64       // nanoseconds for each token
	// Observed counts the observations; 0 means that the line is a first estimate. Error is the distance of the latest observations from
	// the estimate, as a share of it (root mean square).
	Observed int
	Error    float64
}

// Speed is the estimate for a class of workers: of prefills, of decode steps, and of transfers of KV caches.
type Speed struct{ Prefill, Decode, Transfer Line }

// DefaultSpeed is the first estimate for an engine without a profile. It is the speed of [Polynomial] for a prompt of some thousand tokens,
// and for steps with a cache of a million tokens.
func DefaultSpeed() Speed {
	return Speed{
		Prefill:  Line{Base: 17 * time.Millisecond, Token: 16_500},
		Decode:   Line{Base: 6 * time.Millisecond, Token: 45},
		Transfer: DefaultTransfer(),
	}
}

// DefaultTransfer is the first estimate of transfers of KV caches: for a model with 160 KiB a token, as Llama 3 70B has in FP8 (80 layers,
// 8 heads of 128 elements), at 24 GB/s, which is half of a 400 Gb/s network.
func DefaultTransfer() Line { return Line{Base: 5 * time.Millisecond, Token: 7_000} }

// Prefill returns the time to compute a prompt's tokens; 0 for none.
func (l Line) Prefill(tokens int) time.Duration {
	if tokens <= 0 {
		return 0
	}
	return l.at(tokens)
}

// Step returns the time of a decode step with the given number of tokens in the cache.
func (l Line) Step(context int) time.Duration { return l.at(max(0, context)) }

// at is the line's value.
func (l Line) at(tokens int) time.Duration {
	return l.Base + time.Duration(float64(tokens)*l.Token)
}

// String prints the line and how well it fits.
func (l Line) String() string {
	return fmt.Sprintf("%s and %.3g µs a token, from %d observations, %.0f %% off",
		l.Base.Round(time.Microsecond), l.Token/1e3, l.Observed, 100*l.Error)
}

// Pass is a model of an engine's passes. A pass decodes one token of each running request, and computes prompts beside that. It
// lasts as long as both parts together.
type Pass struct{ Prefill, Decode Line }

// Work is the work of an engine in some time, from which [Learned] learns. Fractions are means.
type Work struct {
	Steps    float64 // passes in which requests decoded
	Context  float64 // the tokens that these requests had in the cache, summed over Steps
	Prefills float64 // passes in which prompts were computed
	Tokens   float64 // prompt tokens that were computed
}

// Time returns the duration of the work.
func (p *Pass) Time(w Work) time.Duration {
	return time.Duration(w.Steps*float64(p.Decode.Base) + w.Context*p.Decode.Token +
		w.Prefills*float64(p.Prefill.Base) + w.Tokens*p.Prefill.Token)
}

// Learned is a Pass that follows observations, by least squares with forgetting: the last few hundred observations
// count. It begins with an estimate, the prior. Because an observation has the load under which it was made, a busy engine does not
// look like a slow one.
//
// The speed of the engine on the whole is known after a few observations. Its division into the four terms of the model is not: it
// needs observations under different loads, and little noise. So each term is drawn to the prior's term, scaled by the whole, by
// as much as the observations leave it open (ridge regression), and never falls below a share of the latter. An observation far
// from the estimate counts less.
//
// All methods are safe for concurrent use. Pass is one atomic load, because every decision reads it.
type Learned struct {
	pass  atomic.Pointer[Pass]
	start [terms]float64 // the prior, in nanoseconds; does not change

	mu sync.Mutex
	// moments and targets are the sums of least squares, Σ w·z·zᵀ and Σ w·z·y. The terms z of an observation are the terms of the
	// prior's time, as shares of the estimate before it is scaled: so all observations weigh the same, also observations from before an
	// engine changed. Guarded by mu.
	moments [terms][terms]float64
	targets [terms]float64
	// residual is the sum of squared errors, and count the number of observations, both with forgetting. prior is the weight of the
	// assumption that the engine is as fast as the prior. Guarded by mu.
	residual, count, prior float64
	scale                  float64 // of the whole prior; guarded by mu
	logPace                float64 // the mean logarithm of the paces of latest observations; guarded by mu
	observed               int     // guarded by mu
}

// The terms of the model, in the order of Work.
const (
	termSteps = iota
	termContext
	termPrefills
	termTokens
	terms
)

const (
	// keep is the share of its weight that an observation keeps at each new one.
	keep = 0.995
	// priorWeight is the weight of the prior at first, in observations, and keepPrior the share of it that is left after each.
	priorWeight, keepPrior = 10, 0.9
	// priorError is the assumed error of the estimate before the first observation, as a share of it.
	priorError = 0.3
	// termDoubt is the standard deviation of a term's ratio to the scaled prior, as a share of it.
	termDoubt = 1
	// leastTerm is the least ratio of a term to the scaled prior. With less, a cached prompt could cost as much as one that is not
	// cached, and routing would ignore caches.
	leastTerm = 0.25
	// beyond bounds an observation to this multiple of its estimate, and to the inverse part of it, so that one stall of the engine does
	// not spoil the model for minutes.
	beyond = 5
	// longest bounds the estimate of an observation, in nanoseconds: a day.
	longest = float64(24 * time.Hour)
	// outlier is the multiple of the usual error beyond which an observation counts less (Huber's weight). leastTrust bounds that weight,
	// so that the model follows an engine that has changed.
	outlier, leastTrust = 3, 0.1
	// trustAll is the number of observations until which all count fully, because the error is not known.
	trustAll = 20
)

// NewLearned begins with an estimate. Terms of it that are 0 stay 0.
func NewLearned(start Pass) *Learned {
	l := &Learned{scale: 1, prior: priorWeight, residual: priorWeight * priorError * priorError, count: priorWeight}
	l.start = [terms]float64{float64(start.Decode.Base), start.Decode.Token, float64(start.Prefill.Base), start.Prefill.Token}
	start.Prefill.Observed, start.Decode.Observed = 0, 0
	l.pass.Store(&start)
	return l
}

// Pass returns the model now. It must not be changed.
func (l *Learned) Pass() *Pass { return l.pass.Load() }

// Observe adds an observation: the time that some work took. Work that lasts no time by the model, or more than a day, is ignored.
func (l *Learned) Observe(w Work, took time.Duration) { l.ObserveAt(1, w, took) }

// ObserveAt is Observe for an engine whose times are known to be a multiple of its class's, the pace. The observation counts as if the
// engine had the mean pace. Slow engines have other loads than fast ones, so the model would else take the difference for one of the
// loads, and the engines for equal.
func (l *Learned) ObserveAt(pace float64, w Work, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	expected := float64(l.Pass().Time(w))
	if took < 0 || !(expected > 0 && expected < longest) {
		return
	}

	l.logPace = keep*l.logPace + (1-keep)*math.Log(pace)
	y := float64(took) / expected * math.Exp(l.logPace) / pace
	y = min(max(y, 1.0/beyond), beyond)
	trust := l.trust(math.Abs(y - 1))
	l.addObservation(w, expected, y, trust)
	l.observed++
	l.pass.Store(l.solve())
}

// trust is the weight of an observation that is off by a share of its estimate: 1, and less for an outlier.
func (l *Learned) trust(off float64) float64 {
	usual := outlier * math.Sqrt(l.residual/l.count)
	if l.observed < trustAll || off <= usual {
		return 1
	}
	return max(usual/off, leastTrust)
}

// addObservation adds an observation to the sums, and makes earlier ones count less. The terms are the prior's terms for this work, divided
// by the estimate before it is scaled, so that their sum is near 1 whatever the engine's speed and the size of the work.
func (l *Learned) addObservation(w Work, expected, y, trust float64) {
	z := [terms]float64{w.Steps, w.Context, w.Prefills, w.Tokens}
	for i := range z {
		z[i] *= l.start[i] * l.scale / expected
	}
	for i := range z {
		for j := range z {
			l.moments[i][j] = keep*l.moments[i][j] + trust*z[i]*z[j]
		}
		l.targets[i] = keep*l.targets[i] + trust*z[i]*y*l.scale
	}
	l.residual = keep*l.residual + (y-1)*(y-1)
	l.count = keep*l.count + 1
	l.prior *= keepPrior
}

// solve returns the model that fits the observations best:
//
//	scale   the factor of the whole prior, by least squares
//	ratio   of each term to the scaled prior: least of Σ w·(y − scale·zᵀ·ratio)² + pull·Σ (ratio − 1)²
//
// pull is the variance of an observation divided by the variance of a term's ratio.
func (l *Learned) solve() *Pass {
	all, target := 0.0, 0.0
	for i := range l.moments {
		target += l.targets[i]
		for j := range l.moments {
			all += l.moments[i][j]
		}
	}
	l.scale = (target + l.prior) / (all + l.prior)
	usual := math.Sqrt(l.residual / l.count)
	ratio := l.ratios(usual * usual / (termDoubt * termDoubt))

	var term [terms]float64
	for i := range term {
		term[i] = l.scale * ratio[i] * l.start[i]
	}
	return &Pass{
		Decode:  Line{Base: time.Duration(term[termSteps]), Token: term[termContext], Observed: l.observed, Error: usual},
		Prefill: Line{Base: time.Duration(term[termPrefills]), Token: term[termTokens], Observed: l.observed, Error: usual},
	}
}

// sweeps bounds how often ratios goes through all terms, and settled is the change with which it ends.
const sweeps, settled = 40, 1e-4

// ratios solves for the ratios of the terms, none below leastTerm, by Gauss and Seidel's method. Each step takes one term to the
// best value beside the others, and cuts it off at its bound: for a sum of squares that converges to the best point within the bounds.
func (l *Learned) ratios(pull float64) (ratio [terms]float64) {
	for i := range ratio {
		ratio[i] = 1
	}
	for range sweeps {
		change := 0.0
		for i := range ratio {
			rest := l.targets[i]/l.scale + pull
			for j := range ratio {
				if j != i {
					rest -= l.moments[i][j] * ratio[j]
				}
			}
			if own := l.moments[i][i] + pull; own > 0 {
				next := max(rest/own, leastTerm)
				change = max(change, math.Abs(next-ratio[i]))
				ratio[i] = next
			}
		}
		if change < settled {
			break
		}
	}
	return ratio
}
