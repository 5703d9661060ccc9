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
// requests have in the cache.
type Line struct {
	Base  time.Duration // for no tokens
	Token float64       // nanoseconds for each token
	// Observed counts the observations; 0 means that the line is a first estimate. Error is how far the latest
	// observations lie from the line, as a share of them (root mean square). Engines that batch have 0.3 and
	// more, because prompts share passes.
	Observed int
	Error    float64
}

// Speed is the estimate for a class of workers: of prefills, and of decode steps.
type Speed struct{ Prefill, Decode Line }

// DefaultSpeed is the first estimate for an engine without a profile. It is that of [Polynomial] for a prompt
// of some thousand tokens beside a decode step, and for steps with a cache of a million tokens.
func DefaultSpeed() Speed {
	return Speed{Prefill: Line{Base: 25 * time.Millisecond, Token: 16_500}, Decode: Line{Base: 6 * time.Millisecond, Token: 45}}
}

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
// All methods are safe for concurrent use. Line is one atomic load, because every decision reads it.
type Learned struct {
	line atomic.Pointer[Line]

	long int // tokens from which a prompt is long; does not change

	mu          sync.Mutex
	prior, seen sums // guarded by mu
	// residual is the sum of squared errors, and squares that of squared times, both with forgetting. Guarded
	// by mu.
	residual, squares float64
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
)

// NewLearned begins with the line start, as if it had been observed at two numbers of tokens, short and long.
func NewLearned(start Line, short, long int) *Learned {
	l := &Learned{long: long}
	for _, tokens := range []int{short, long} {
		l.prior.add(float64(tokens), float64(start.at(tokens)), prior)
	}
	start.Observed = 0
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
	l.seen.fade(keep)
	l.prior.fade(keepPrior)
	l.residual *= keep
	l.squares *= keep
	l.seen.add(float64(tokens), y, 1)
	l.residual += (y - expected) * (y - expected)
	l.squares += y * y

	all := l.seen.plus(&l.prior)
	next := all.solve()
	next.Observed = now.Observed + 1
	if l.squares > 0 {
		next.Error = math.Sqrt(l.residual / l.squares)
	}
	l.line.Store(&next)
}

// solve returns the line of least squares without a negative part. If the best one has a negative base, the
// line runs through the origin; if it falls, it is flat. Observations of one length alone do not define a
// line: once the prior has faded, it runs through the origin.
func (s *sums) solve() Line {
	det := s.weight*s.xx - s.x*s.x
	if det > 1e-9*s.weight*s.xx {
		token := (s.weight*s.xy - s.x*s.y) / det
		base := (s.y - token*s.x) / s.weight
		if token >= 0 && base >= 0 {
			return Line{Base: time.Duration(base), Token: token}
		}
		if token < 0 {
			return Line{Base: time.Duration(s.y / s.weight)}
		}
	}
	return Line{Token: s.xy / s.xx} // there is an observation, and it has tokens
}
