package capacity

import "github.com/stator-project/stator/internal/fleet"

// Need is how many engines of one role a rate needs.
type Need struct {
	Replicas int
	// Latency is that with as many.
	Latency Latency
	// Met is false where no number of engines reaches the targets. Replicas is then what keeps queues short.
	Met bool
}

// unreachableLoad is the load of engines whose targets no number of them reaches.
const unreachableLoad = 0.7

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

// Need returns the smallest number of engines in a role, at least 1 and at most most, that serve a rate within the targets.
func (e *Engine) Need(r fleet.Role, rate float64, s Shape, t Targets, most int) Need {
	met := func(l Latency) bool { return t.Met(l) }
	if best := e.Latency(r, 1, 1e-6, s, t.quantile()); !met(best) {
		met = func(l Latency) bool { return l.Load <= unreachableLoad }
		n := e.smallest(r, rate, s, t, most, met)
		return Need{Replicas: n, Latency: e.Latency(r, n, rate, s, t.quantile())}
	}
	n := e.smallest(r, rate, s, t, most, met)
	l := e.Latency(r, n, rate, s, t.quantile())
	return Need{Replicas: n, Latency: l, Met: met(l)}
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
