// Package perfmodel estimates how long an engine's forward passes last.
//
// A [Timing] is a pure function from the work of a pass to a duration; simulated engines use it. A [Line] is
// an estimate from outside, for routers: how long a prompt's prefill or a decode step lasts. A [Pass] has one of each, and [Learned]
// is a Pass that follows observations. A [Profile] is read from the measurements of Dynamo's profiler, and a [Roofline] computed
// from the sizes of a model and the data sheet of a GPU; a [Factor] corrects either by observations, by the doubt of both. The
// package measures nothing itself.
//
// All types except Learned are values. All, Learned included, are safe for concurrent use.
package perfmodel

import (
	"fmt"
	"math"
	"time"
)

// Prefill is the prefill part of one forward pass.
type Prefill struct {
	Requests int // that compute prompt tokens in this pass
	// Input is the sum over these requests of their tokens up to the end of this pass, the cached and
	// earlier computed ones included.
	Input int
	// Prefix is the sum of the tokens that were cached or computed before.
	Prefix int
}

// Decode is the decode part of one forward pass.
type Decode struct {
	Requests int // that emit a token in this pass
	Context  int // tokens, summed over these requests
	Capacity int // tokens the KV cache can hold
}

// Timing estimates the times of the two parts of a pass; a pass lasts their sum. A part without requests lasts no
// time. Implementations are pure.
type Timing interface {
	Prefill(Prefill) time.Duration
	Decode(Decode) time.Duration
}

// Polynomial is Dynamo's timing of a mid-sized model on one data-centre GPU: a quadratic in the new tokens of
// a pass, and one in the share of the KV cache that is read. It is a plausible engine, and no particular one.
type Polynomial struct {
	// Speedup divides all durations; 0 means 1.
	Speedup float64
}

// Prefill is 4.21e-07 T² + 0.01518 T + 16.5 ms for T new tokens. As in Dynamo, T is the number of requests
// times the difference of their mean input and mean prefix, both rounded down.
func (p Polynomial) Prefill(w Prefill) time.Duration {
	if w.Requests <= 0 {
		return 0
	}
	t := float64(w.Requests * (w.Input/w.Requests - w.Prefix/w.Requests))
	if t <= 0 {
		return 0
	}
	return milliseconds((4.209989e-07*t*t + 1.518344e-02*t + 16.50142) / orOne(p.Speedup))
}

// Decode is -25.74 u² + 54.01 u + 5.74 ms, at least 1 ms, where u is the share of the KV
// cache that the requests' contexts fill, at most 1.
func (p Polynomial) Decode(w Decode) time.Duration {
	if w.Requests <= 0 {
		return 0
	}
	u := 1.0
	if w.Context < w.Capacity {
		u = float64(w.Context) / float64(w.Capacity)
	}
	ms := max(1, -25.74*u*u+54.01*u+5.74)
	return milliseconds(ms / orOne(p.Speedup))
}

// Validate reports everything that is wrong with the model.
func (p Polynomial) Validate() error {
	return speedup("speedup", p.Speedup)
}

// speedup checks a divisor of durations.
func speedup(name string, v float64) error {
	if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Errorf("%s is %v: it must be a positive number, or 0 for 1", name, v)
	}
	return nil
}

// Fixed is an engine whose prefill and decode parts each last the same time in every pass.
type Fixed struct {
	PrefillTime, DecodeTime time.Duration
}

// Prefill returns PrefillTime if any request prefills.
func (f Fixed) Prefill(w Prefill) time.Duration {
	if w.Requests <= 0 {
		return 0
	}
	return f.PrefillTime
}

// Decode returns DecodeTime if any request decodes.
func (f Fixed) Decode(w Decode) time.Duration {
	if w.Requests <= 0 {
		return 0
	}
	return f.DecodeTime
}

// Linear is an engine with a fixed time for each pass and a time for each new token: the simplest one on which a cached prefix saves time.
// Simulations use it if a test computes the result by hand.
type Linear struct {
	PrefillBase, PrefillToken time.Duration
	DecodeBase, DecodeRequest time.Duration
}

// Prefill is PrefillBase and PrefillToken for each new token.
func (l Linear) Prefill(w Prefill) time.Duration {
	if w.Requests <= 0 {
		return 0
	}
	return l.PrefillBase + time.Duration(max(0, w.Input-w.Prefix))*l.PrefillToken
}

// Decode is DecodeBase and DecodeRequest for each request.
func (l Linear) Decode(w Decode) time.Duration {
	if w.Requests <= 0 {
		return 0
	}
	return l.DecodeBase + time.Duration(w.Requests)*l.DecodeRequest
}

// milliseconds returns ms as a duration. Fractions of a nanosecond are cut.
func milliseconds(ms float64) time.Duration {
	return time.Duration(ms * float64(time.Millisecond))
}

// orOne returns v, or 1 for a speed-up that is not set. Speed-ups are divisors, and the zero value of a model
// must not divide by 0.
func orOne(v float64) float64 {
	if v == 0 {
		return 1
	}
	return v
}
