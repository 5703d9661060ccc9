package perfmodel

import "time"

// Scaled lets each token stand for several: an engine that is fed a trace whose prompts were
// shortened by Tokens takes the time that the whole prompts would have taken. Output is
// shortened too, so each decode pass stands for as many passes.
type Scaled struct {
	Timing Timing
	// Tokens is the number of tokens that one stands for; 0 means 1.
	Tokens int
}

// Prefill is the time of the prompts as long as they were.
func (s Scaled) Prefill(w Prefill) time.Duration {
	k := max(1, s.Tokens)
	w.Input *= k
	w.Prefix *= k
	return s.Timing.Prefill(w)
}

// Decode is the time of as many passes as one token stands for. Context and capacity shrank
// alike, so their ratio is as it was.
func (s Scaled) Decode(w Decode) time.Duration {
	return time.Duration(max(1, s.Tokens)) * s.Timing.Decode(w)
}
