package sim

import (
	"fmt"
	"strings"
	"time"
)

// SLA bounds the latencies of each request. 0 is no bound.
type SLA struct {
	// TTFT bounds the time to the first token, ITL the mean time between the tokens of the request, and E2E the time of the
	// whole request.
	TTFT, ITL, E2E time.Duration
}

// Misses reports whether an answered request took too long: it arrived, and had its first token and the last of so many, at
// these times.
func (s *SLA) Misses(at, first, last time.Duration, tokens int) bool {
	exceeds := func(took, bound time.Duration) bool { return bound > 0 && took > bound }
	// An answer of one token has no time between tokens.
	gap := (last - first) / time.Duration(max(1, tokens-1))
	return exceeds(first-at, s.TTFT) || exceeds(gap, s.ITL) || exceeds(last-at, s.E2E)
}

// writeSLA writes how many requests missed the SLA, if there was one.
func (r *Result) writeSLA(b *strings.Builder) {
	if r.SLAMisses != nil {
		fmt.Fprintf(b, "%d requests missed the SLA\n\n", *r.SLAMisses)
	}
}
