package dynamo

import (
	"math"
)

// Budget bounds the GPUs of all workers. A negative bound is none.
type Budget struct{ Min, Max int }

// inBand reports whether as many GPUs are within the budget. The lower bound is relaxed by the step of the largest worker if both
// bounds are set, because not every total can be reached.
func (b Budget) inBand(total, step int) bool {
	if b.Max >= 0 && total > b.Max {
		return false
	}
	if b.Min >= 0 && b.Max < 0 {
		step = 0
	}
	return b.Min < 0 || total >= b.Min-step
}

// Pair fits prefill and decode workers into the budget, in proportion. gpus are the GPUs of one worker of each role, and least
// the least numbers of workers. It returns no workers if the least ones have too many GPUs, and want if gpus are unknown.
func (b Budget) Pair(want, gpus, least Replicas) Replicas {
	if gpus.Prefill <= 0 || gpus.Decode <= 0 {
		return want
	}
	total := gpusOf(want, gpus)
	switch {
	case b.inBand(total, max(gpus.Prefill, gpus.Decode)):
		return want
	case b.Max >= 0 && total > b.Max:
		return shrink(want, gpus, least, b.Max)
	}
	return b.grow(want, gpus, least)
}

// gpusOf returns how many units (GPUs or watts) workers need.
func gpusOf(n, each Replicas) int { return n.Prefill*each.Prefill + n.Decode*each.Decode }

// shrink fits a pair under an upper bound: prefill workers in proportion, and decode workers into the rest.
func shrink(want, each, least Replicas, bound int) Replicas {
	if bound < gpusOf(least, each) {
		return Replicas{}
	}
	scale := float64(bound) / float64(gpusOf(want, each))
	most := floorDiv(bound-least.Decode*each.Decode, each.Prefill)
	p := max(least.Prefill, min(most, int(math.Floor(float64(want.Prefill)*scale))))
	d := max(least.Decode, floorDiv(bound-p*each.Prefill, each.Decode))
	return Replicas{p, d}
}

// grow raises a pair to the lower bound, unless the steps of the workers then exceed the upper one.
func (b Budget) grow(want, gpus, least Replicas) Replicas {
	total := gpusOf(want, gpus)
	share := float64(b.Min) / 2 / float64(gpus.Prefill) // half of the GPUs, if there are no workers to be in proportion to
	if total > 0 {
		share = float64(want.Prefill) * float64(b.Min) / float64(total)
	}
	p := max(least.Prefill, int(math.Ceil(share)))
	rest := max(0, b.Min-p*gpus.Prefill)
	grown := Replicas{p, max(least.Decode, ceilDiv(rest, gpus.Decode))}
	if b.Max >= 0 && gpusOf(grown, gpus) > b.Max {
		return want
	}
	return grown
}

// Single fits workers of one role into the budget. It returns 0 if the least number has too many GPUs, and want if gpus are
// unknown.
func (b Budget) Single(want, gpus, least int) int {
	if gpus <= 0 {
		return want
	}
	total := want * gpus
	switch {
	case b.inBand(total, gpus):
		return want
	case b.Max >= 0 && total > b.Max:
		n := floorDiv(b.Max, gpus)
		if n < least {
			return 0
		}
		return n
	}

	grown := max(least, ceilDiv(b.Min, gpus))
	if b.Max >= 0 && grown*gpus > b.Max {
		return want
	}
	return grown
}

// The reasons of the power budget.
const (
	PowerClamped    = "power_budget_clamped"
	PowerStaged     = "power_rebalance_staged"
	PowerInfeasible = "power_budget_infeasible"
)

// Power fits prefill and decode workers under a bound in watts. now has the present numbers, and watts the power of one worker of
// each role. It returns at most as many of each role as wanted, and the reason of a change. If one role grows while the other
// shrinks and both together would exceed the bound on the way, the growth waits. If even the least numbers exceed it, nothing
// grows.
func Power(want, now, watts, least Replicas, bound int) (Replicas, string) {
	if watts.Prefill <= 0 || watts.Decode <= 0 {
		return want, ""
	}
	held := Replicas{min(want.Prefill, now.Prefill), min(want.Decode, now.Decode)}
	if gpusOf(least, watts) > bound {
		return held, PowerInfeasible
	}
	if opposing(want, now) && peak(want, now, watts) > bound {
		return held, PowerStaged
	}
	if gpusOf(want, watts) <= bound {
		return want, ""
	}

	if gpusOf(now, watts) <= bound {
		return fitBetween(now, want, watts, least, bound), PowerClamped
	}
	got := shrink(want, watts, least, bound)
	got = Replicas{min(got.Prefill, want.Prefill), min(got.Decode, want.Decode)}
	if opposing(got, now) && peak(got, now, watts) > bound {
		return Replicas{min(got.Prefill, now.Prefill), min(got.Decode, now.Decode)}, PowerStaged
	}
	return got, PowerClamped
}

// powered fits workers of one role under a bound in watts: at most as many as wanted. If even the least number exceeds it, nothing
// grows.
func powered(want, now, watts, least, bound int) int {
	switch {
	case bound <= 0 || watts <= 0 || want*watts <= bound:
		return want
	case least*watts > bound:
		return min(want, now)
	}
	return max(least, floorDiv(bound, watts))
}

// opposing reports whether one role grows and the other shrinks.
func opposing(want, now Replicas) bool {
	return (want.Prefill-now.Prefill)*(want.Decode-now.Decode) < 0
}

// peak returns the power of both roles while they change at the same time.
func peak(want, now, watts Replicas) int {
	return gpusOf(Replicas{max(want.Prefill, now.Prefill), max(want.Decode, now.Decode)}, watts)
}

// fitBetween returns the pair that is nearest to want, of those between now and want that are within the bound: so no role
// shrinks because the other grows. Of two as near, it is the one that keeps the proportion of the changes, then the one that
// changes more. It returns now if there is none.
func fitBetween(now, want, each, least Replicas, bound int) Replicas {
	best, score := now, [3]int{math.MaxInt}
	low := Replicas{max(min(now.Prefill, want.Prefill), least.Prefill), max(min(now.Decode, want.Decode), least.Decode)}
	high := Replicas{max(now.Prefill, want.Prefill), max(now.Decode, want.Decode)}
	for p := low.Prefill; p <= high.Prefill; p++ {
		// The nearest number of decode workers that fits beside p prefill workers.
		d := min(max(want.Decode, low.Decode), high.Decode, floorDiv(bound-p*each.Prefill, each.Decode))
		moves := p != now.Prefill && d != now.Decode || p == now.Prefill && d == now.Decode
		if d < low.Decode || opposing(want, now) && !moves {
			continue
		}
		byP, byD := abs(p-now.Prefill), abs(d-now.Decode)
		skew := abs(byP*abs(want.Decode-now.Decode) - byD*abs(want.Prefill-now.Prefill))
		s := [3]int{abs(want.Prefill-p) + abs(want.Decode-d), skew, -byP - byD}
		if less(s, score) {
			best, score = Replicas{p, d}, s
		}
	}
	return best
}

// less compares by the first different element.
func less(a, b [3]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

func abs(n int) int { return max(n, -n) }

// floorDiv and ceilDiv divide by a positive number.
func floorDiv(a, b int) int { return int(math.Floor(float64(a) / float64(b))) }

func ceilDiv(a, b int) int { return int(math.Ceil(float64(a) / float64(b))) }
