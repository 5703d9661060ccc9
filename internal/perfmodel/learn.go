package perfmodel

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Line is how long a prompt's tokens take to compute: a time for each prompt, and one for each
// of its tokens that is not cached.
type Line struct {
	Base  time.Duration
	Token float64 // nanoseconds
	// Observed counts what the line was learned from; 0 is a guess. Error is how far the
	// observations of late lay from it, as a share of them (root mean square): an honest line of
	// an engine that batches has 0.3 and more.
	Observed int
	Error    float64
}

// DefaultLine is believed of an engine of which nothing is known: what [Polynomial] takes for
// a prompt of some thousand tokens beside a decode step.
func DefaultLine() Line { return Line{Base: 25 * time.Millisecond, Token: 16_500} }

// Prefill is the time that tokens of one prompt take; none takes no time.
func (l Line) Prefill(tokens int) time.Duration {
	if tokens <= 0 {
		return 0
	}
	return l.Base + time.Duration(float64(tokens)*l.Token)
}

func (l Line) String() string {
	return fmt.Sprintf("%s a prompt and %.1f µs a token, from %d observations, %.0f %% off", l.Base.Round(time.Microsecond), l.Token/1e3, l.Observed, 100*l.Error)
}

// Learned is a line that follows what is observed: least squares that forget, so that the last
// few hundred prompts count, and a prior that is outvoted after some tens.
//
// All methods are safe for concurrent use; Line is one atomic load.
type Learned struct {
	line atomic.Pointer[Line]

	mu                   sync.Mutex
	weight, x, xx, y, xy float64 // sums, guarded by mu; x in tokens, y in nanoseconds
	residual, squares    float64 // guarded by mu: of the error
}

// What an observation of before keeps at each new one; how much the prior weighs; how many times
// its estimate an observation may be, so that one stall does not rule for minutes.
const (
	keep   = 0.995
	prior  = 10
	beyond = 5
)

// NewLearned begins with a line that is believed until observations outvote it.
func NewLearned(start Line) *Learned {
	l := &Learned{}
	for _, tokens := range []float64{500, 8_000} {
		l.add(tokens, float64(start.Base)+tokens*start.Token, prior)
	}
	start.Observed = 0
	l.line.Store(&start)
	return l
}

// Line is what is believed now.
func (l *Learned) Line() Line { return *l.line.Load() }

// Observe is told that an engine computed so many tokens of a prompt in a time in which it
// computed no other's, or together with one that it was told of with all the time.
func (l *Learned) Observe(tokens int, took time.Duration) {
	if tokens <= 0 || took < 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.Line()
	expected := float64(now.Prefill(tokens))
	y := min(float64(took), beyond*expected)
	for _, sum := range []*float64{&l.weight, &l.x, &l.xx, &l.y, &l.xy, &l.residual, &l.squares} {
		*sum *= keep
	}
	l.add(float64(tokens), y, 1)
	l.residual += (y - expected) * (y - expected)
	l.squares += y * y
	next := l.solveLocked()
	next.Observed = now.Observed + 1
	if l.squares > 0 {
		next.Error = math.Sqrt(l.residual / l.squares)
	}
	l.line.Store(&next)
}

func (l *Learned) add(x, y, weight float64) {
	l.weight += weight
	l.x += weight * x
	l.xx += weight * x * x
	l.y += weight * y
	l.xy += weight * x * y
}

// solveLocked is the line of least squares that has no negative part: where the best one would, it
// runs through the origin or is flat. Invariant: the prior's two points keep the sums apart from
// a division by zero for thousands of observations, and observations of one length alone leave
// the line through the origin.
func (l *Learned) solveLocked() Line {
	det := l.weight*l.xx - l.x*l.x
	if det > 1e-9*l.weight*l.xx {
		token := (l.weight*l.xy - l.x*l.y) / det
		base := (l.y - token*l.x) / l.weight
		if token >= 0 && base >= 0 {
			return Line{Base: time.Duration(base), Token: token}
		}
		if token < 0 {
			return Line{Base: time.Duration(l.y / l.weight)}
		}
	}
	if l.xx <= 0 {
		return DefaultLine()
	}
	return Line{Token: l.xy / l.xx}
}
