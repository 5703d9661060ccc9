package perfmodel

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Line is a time that grows with a number of tokens. For prefill it is how long a prompt's computation lasts,
// over its tokens that are not cached. For decode it is how long a step lasts, over the tokens that running
// requests have in the cache. For transfer it is how long the KV cache of computed tokens is on its way.
type Line struct {
	Base  time.Duration // for no tokens
	Token float64       // nanoseconds for each token
	// Observed counts the observations; 0 means that the line is a first estimate. Error is how far the latest
	// observations lie from the line, as a share of them (root mean square). Engines that batch have 0.3 and
	// more, because prompts share passes.
	Observed int
	Error    float64
}

// Speed is the estimate for a class of workers: of prefills, of decode steps, and of transfers of KV caches.
type Speed struct{ Prefill, Decode, Transfer Line }

// DefaultSpeed is the first estimate for an engine without a profile. It is that of [Polynomial] for a prompt
// of some thousand tokens beside a decode step, and for steps with a cache of a million tokens.
func DefaultSpeed() Speed {
	return Speed{
		Prefill:  Line{Base: 25 * time.Millisecond, Token: 16_500},
		Decode:   Line{Base: 6 * time.Millisecond, Token: 45},
		Transfer: DefaultTransfer(),
	}
}

// DefaultTransfer is the first estimate of transfers of KV caches: those of a model with 160 KiB a token, as Llama 3 70B has in
// FP8 (80 layers, 8 heads of 128 elements), at 24 GB/s, which is half of a 400 Gb/s network.
func DefaultTransfer() Line { return Line{Base: 5 * time.Millisecond, Token: 7_000} }

// Prefill is how long the computation of a prompt's tokens lasts; 0 for none.
func (l Line) Prefill(tokens int) time.Duration {
	if tokens <= 0 {
		return 0
	}
	return l.at(tokens)
}

// Step is the time of a decode step with so many tokens in the cache.
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

// Learned is a line that follows observations, by least squares with forgetting: the last few hundred
// observations count. It begins with an estimate, the prior, which some tens of observations outweigh.
//
//	observations   line
//	0              the prior
//	1 to ~20       between the prior and the observations
//	more           the observations; each new one counts 0.5 %
//
// The mean of the observations is exact after a few of them. The slope is not: it needs prompts of different
// lengths, and little noise. So the slope is drawn to that of the prior, scaled to the mean, by as much as the
// observations leave it open, and it never falls below a share of that. An observation far from the line
// counts less.
//
// All methods are safe for concurrent use. Line is one atomic load, because every decision reads it.
type Learned struct {
	line atomic.Pointer[Line]

	// long is the number of tokens from which a prompt is long, and start the prior. They do not change.
	long  int
	start Line

	mu          sync.Mutex
	prior, seen sums // guarded by mu
	// residual is the sum of squared errors, squares that of squared times, and count that of observations,
	// all three with forgetting. Guarded by mu.
	residual, squares, count float64
}

// sums are the weighted sums from which least squares are solved; x in tokens, y in nanoseconds.
type sums struct{ weight, x, xx, y, xy float64 }

// add adds an observation.
func (s *sums) add(x, y, weight float64) {
	s.weight += weight
	s.x += weight * x
	s.xx += weight * x * x
	s.y += weight * y
	s.xy += weight * x * y
}

// fade makes all observations so far count less.
func (s *sums) fade(keep float64) {
	for _, v := range []*float64{&s.weight, &s.x, &s.xx, &s.y, &s.xy} {
		*v *= keep
	}
}

// plus is the sums of both sets of observations.
func (s *sums) plus(o *sums) sums {
	return sums{s.weight + o.weight, s.x + o.x, s.xx + o.xx, s.y + o.y, s.xy + o.xy}
}

const (
	// keep is the share of its weight that an observation keeps at each new one.
	keep = 0.995
	// keepPrior is that share for the prior, which must fade sooner. Its points may lie far beyond all
	// observations, where they would pull the line most.
	keepPrior = 0.9
	// prior is the weight of each of the prior's two points, in observations.
	prior = 10
	// beyond bounds an observation to this many times its estimate, so that one stall of the engine does not
	// spoil the line for minutes. It bounds the observation of a long prompt to that part of its estimate too:
	// least squares would follow the longest prompts, and another request may have computed one of them. A short
	// prompt may take no time of its own, because it shares a pass.
	beyond = 5
	// outlier is how many times the line's error an observation may be off before it counts less (Huber's
	// weight). leastTrust bounds that weight, so that the line follows an engine that has changed.
	outlier, leastTrust = 3, 0.1
	// trustAll is the number of observations until which all count fully, because the error is not known.
	trustAll = 20
	// leastSlope is the share of the prior's slope, scaled to the mean, that the line's slope keeps. With less,
	// a cached prompt would cost nearly as much as an uncached one, and routing would ignore caches.
	leastSlope = 0.25
	// leastScale bounds how much faster than the prior the line can become. It must not be 0, because
	// observations are bounded by multiples of it.
	leastScale = 1e-3
)

// NewLearned begins with the line start, as if it had been observed at two numbers of tokens, short and long.
func NewLearned(start Line, short, long int) *Learned {
	start.Observed = 0
	l := &Learned{long: long, start: start}
	for _, tokens := range []int{short, long} {
		l.prior.add(float64(tokens), float64(start.at(tokens)), prior)
	}
	l.line.Store(&start)
	return l
}

// Line returns the line now.
func (l *Learned) Line() Line { return *l.line.Load() }

// Observe adds an observation: the time that some tokens took. For prefill the engine computed no other prompt
// in that time, or that other prompt was observed with all of the time and this one with none. An
// observation without tokens is ignored.
func (l *Learned) Observe(tokens int, took time.Duration) {
	if tokens <= 0 || took < 0 {
		return
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.Line()
	expected := float64(now.at(tokens))
	y := min(float64(took), beyond*expected)
	if tokens > l.long {
		y = max(y, expected/beyond)
	}
	trust := l.trust(math.Abs(y-expected), expected, &now)

	l.seen.fade(keep)
	l.prior.fade(keepPrior)
	for _, v := range []*float64{&l.residual, &l.squares, &l.count} {
		*v *= keep
	}
	l.seen.add(float64(tokens), y, trust)
	l.residual += (y - expected) * (y - expected)
	l.squares += y * y
	l.count++

	all := l.seen.plus(&l.prior)
	next := all.solve(l.start, l.residual/l.count)
	next.Observed = now.Observed + 1
	if l.squares > 0 {
		next.Error = math.Sqrt(l.residual / l.squares)
	}
	l.line.Store(&next)
}

// trust is the weight of an observation that is off by so much: 1, and less for an outlier.
func (l *Learned) trust(off, expected float64, now *Line) float64 {
	usual := outlier * now.Error * expected
	if now.Observed < trustAll || off <= usual {
		return 1
	}
	return max(usual/off, leastTrust)
}

// solve returns the line of least squares through the observations, with a slope that is drawn to that of
// start, scaled to their mean. noise is the variance of an observation. With it, and a slope that may be wrong
// by all of itself, the weight of the drawing follows (ridge regression):
//
//	slope = (spread of xy + pull · like) / (spread of x + pull),  pull = noise / like²
//
// Many lengths and little noise give the observed slope. One length alone, or much noise, gives that of start.
func (s *sums) solve(start Line, noise float64) Line {
	meanX := s.x / s.weight // there is an observation, and it has tokens
	meanY := s.y / s.weight
	expected := float64(start.Base) + meanX*start.Token
	like := start.Token * max(meanY/expected, leastScale)
	if !(like > 0) {
		return Line{Base: time.Duration(meanY)}
	}

	pull := noise / (like * like)
	spread := max(0, s.xx-s.x*meanX)
	token := like
	if spread+pull > 0 {
		token = (s.xy - s.x*meanY + pull*like) / (spread + pull)
	}
	token = max(token, leastSlope*like)
	base := meanY - token*meanX
	if base < 0 {
		return Line{Token: max(s.xy/s.xx, leastSlope*like)} // the best line through the origin
	}
	return Line{Base: time.Duration(base), Token: token}
}
