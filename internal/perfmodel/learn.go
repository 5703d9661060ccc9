package perfmodel

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Line is a time that grows with a number of tokens. Of prefill that is how long a prompt takes to
// compute, by its tokens that are not cached; of decode how long a step takes, by the tokens that
// running requests have in the cache.
type Line struct {
	Base  time.Duration
	Token float64 // nanoseconds
	// Observed counts what the line was learned from; 0 is a guess. Error is how far the
	// observations of late lay from it, as a share of them (root mean square): an honest line of
	// an engine that batches has 0.3 and more.
	Observed int
	Error    float64
}

// Speed is what is believed of a kind of engine.
type Speed struct{ Prefill, Decode Line }

// DefaultSpeed is believed of an engine of which nothing is known: what [Polynomial] takes for a
// prompt of some thousand tokens beside a decode step, and for steps of a cache of a million tokens.
func DefaultSpeed() Speed {
	return Speed{Prefill: Line{Base: 25 * time.Millisecond, Token: 16_500}, Decode: Line{Base: 6 * time.Millisecond, Token: 45}}
}

// Prefill is the time that tokens of one prompt take; none takes no time.
func (l Line) Prefill(tokens int) time.Duration {
	if tokens <= 0 {
		return 0
	}
	return l.at(tokens)
}

// Step is the time of a decode step with so many tokens in the cache.
func (l Line) Step(context int) time.Duration { return l.at(max(0, context)) }

func (l Line) at(tokens int) time.Duration {
	return l.Base + time.Duration(float64(tokens)*l.Token)
}

func (l Line) String() string {
	return fmt.Sprintf("%s and %.3g µs a token, from %d observations, %.0f %% off", l.Base.Round(time.Microsecond), l.Token/1e3, l.Observed, 100*l.Error)
}

// Learned is a line that follows what is observed: least squares that forget, so that the last
// few hundred observations count, and a prior that is outvoted after some tens.
//
// All methods are safe for concurrent use; Line is one atomic load.
type Learned struct {
	line atomic.Pointer[Line]

	mu                sync.Mutex
	prior, seen       sums    // guarded by mu
	residual, squares float64 // guarded by mu: of the error
}

// sums are what least squares need; x in tokens, y in nanoseconds.
type sums struct{ weight, x, xx, y, xy float64 }

func (s *sums) add(x, y, weight float64) {
	s.weight += weight
	s.x += weight * x
	s.xx += weight * x * x
	s.y += weight * y
	s.xy += weight * x * y
}

func (s *sums) fade(keep float64) {
	for _, v := range []*float64{&s.weight, &s.x, &s.xx, &s.y, &s.xy} {
		*v *= keep
	}
}

func (s *sums) plus(o *sums) sums {
	return sums{s.weight + o.weight, s.x + o.x, s.xx + o.xx, s.y + o.y, s.xy + o.xy}
}

// What an observation of before keeps at each new one; what the prior keeps, which must go sooner:
// its points may lie far beyond all observations, where they would weigh most; how much it weighs at
// first; how many times its estimate an observation may be, so that one stall does not rule for
// minutes.
const (
	keep      = 0.995
	keepPrior = 0.9
	prior     = 10
	beyond    = 5
)

// NewLearned begins with a line that is believed until observations outvote it. It is believed as if
// it had been observed at two numbers of tokens.
func NewLearned(start Line, short, long int) *Learned {
	l := &Learned{}
	for _, tokens := range []int{short, long} {
		l.prior.add(float64(tokens), float64(start.at(tokens)), prior)
	}
	start.Observed = 0
	l.line.Store(&start)
	return l
}

// Line is what is believed now.
func (l *Learned) Line() Line { return *l.line.Load() }

// Observe is told that so many tokens took a time: of prefill, one in which an engine computed no
// other prompt's, or together with one that it was told of with all the time.
func (l *Learned) Observe(tokens int, took time.Duration) {
	if tokens <= 0 || took < 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.Line()
	expected := float64(now.at(tokens))
	y := min(float64(took), beyond*expected)
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

// solve is the line of least squares that has no negative part: where the best one would, it runs
// through the origin or is flat. Observations of one length alone leave, once the prior is
// forgotten, the line through the origin.
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
