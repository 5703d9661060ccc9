package capacity

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Need is the number of engines of one role that a rate needs.
type Need struct {
	Replicas int
	// Latency is that with as many.
	Latency Latency
	// Met is false if no number of engines reaches the targets. Replicas is then what keeps waits short.
	Met bool
}

// nearBest is the factor by which latencies may exceed an idle engine's where these exceed the targets already.
const nearBest = 1.25

// Latency returns the latencies of n engines in a role at a rate of requests per second.
func (e *Engine) Latency(r fleet.Role, n int, rate float64, s Shape, q float64) Latency {
	switch r {
	case fleet.Prefill:
		return e.Prefill(n, rate, s, q)
	case fleet.Decode:
		return e.Decode(n, rate, s, q)
	default:
		return e.Aggregated(n, rate, s, q)
	}
}

// Need returns the smallest number of engines in a role, at least 1 and at most most, that serve a rate within the targets. A latency that
// even an idle engine exceeds, because some prompts are too long, has an idle engine's latency as its target, and a little more: then
// requests wait for little but themselves.
func (e *Engine) Need(r fleet.Role, rate float64, s Shape, t Targets, most int) Need {
	most = max(1, most)
	best := e.Latency(r, 1, 1e-6, s, t.quantile())
	reachable := t.Met(best)
	if !reachable {
		t.TTFT = relaxed(t.TTFT, best.TTFT)
		t.ITL = relaxed(t.ITL, best.ITL)
		t.E2E = relaxed(t.E2E, best.E2E)
	}

	n := e.smallest(r, rate, s, t, most, t.Met)
	l := e.Latency(r, n, rate, s, t.quantile())
	return Need{Replicas: n, Latency: l, Met: reachable && t.Met(l)}
}

// Missing returns the share of the requests that miss the targets of the TTFT or the ITL with n engines in a role, to half a percent or so.
func (e *Engine) Missing(r fleet.Role, n int, rate float64, s Shape, t Targets) float64 {
	t.E2E = 0
	low, high := 0.0, 1.0
	for range 9 {
		mid := (low + high) / 2
		l := e.Latency(r, n, rate, s, mid)
		switch {
		case l.Load >= 1:
			return 1
		case t.Met(l):
			low = mid
		default:
			high = mid
		}
	}
	return 1 - (low+high)/2
}

// relaxed returns a target that engines can reach.
func relaxed(target, best time.Duration) time.Duration {
	if target == 0 || best <= target {
		return target
	}
	return time.Duration(nearBest * float64(best))
}

// smallest returns the smallest number of engines with which met holds, or most. More engines never have longer latencies.
func (e *Engine) smallest(r fleet.Role, rate float64, s Shape, t Targets, most int, met func(Latency) bool) int {
	is := func(n int) bool { return met(e.Latency(r, n, rate, s, t.quantile())) }
	enough := 1
	for enough < most && !is(enough) {
		enough = min(2*enough, most)
	}
	less := enough / 2 // does not suffice, or is 0
	for enough-less > 1 {
		if mid := (less + enough) / 2; is(mid) {
			enough = mid
		} else {
			less = mid
		}
	}
	return enough
}

// Running returns how many requests may run at once on one engine that decodes, for steps within a target of the time between tokens; 0
// is no target. share is the share of the time that prompts take there.
func (e *Engine) Running(s Shape, itl time.Duration, share float64) float64 {
	d := e.decoding(s, min(share, 0.95))
	if itl == 0 || d.itl(d.most) <= itl {
		return max(1, d.most)
	}
	low, high := 0.0, d.most
	for range 30 {
		if mid := (low + high) / 2; d.itl(mid) <= itl {
			low = mid
		} else {
			high = mid
		}
	}
	return max(1, low)
}

// PrefillRate returns how many prompts per second one engine computes at most.
func (e *Engine) PrefillRate(s Shape) float64 {
	p := e.prefilling(s, 0)
	return p.most
}

// PromptShare returns the share of the time that prompts take on one engine at a rate, if a step between them takes some time.
func (e *Engine) PromptShare(s Shape, rate float64, step time.Duration) float64 {
	p := e.prefilling(s, 0)
	return p.share(rate, step.Seconds())
}

// Most returns the highest rate of requests per second that n engines serve at all.
func (e *Engine) Most(r fleet.Role, n int, s Shape) float64 {
	switch r {
	case fleet.Prefill:
		return float64(n) * e.PrefillRate(s)
	case fleet.Decode:
		d := e.decoding(s, 0)
		return float64(n) * d.served(d.most)
	}

	// On engines that do both, the time of a request consists of its prompt and its part of the steps.
	d := e.decoding(s, 0)
	return float64(n) / (1/e.PrefillRate(s) + 1/d.served(d.most))
}
