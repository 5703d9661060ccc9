package dynamo

import (
	"math"
	"time"
)

// Pass returns the duration of a forward pass, in milliseconds. 0 and less is unknown.
type Pass func(Sample) float64

// Limits are the bounds of an engine: tokens of one pass, requests that run at once, and tokens in its KV cache.
type Limits struct{ MaxBatchedTokens, MaxSeqs, MaxKVTokens int }

// DefaultLimits are the limits that Dynamo assumes of an engine that reports none.
func DefaultLimits() Limits { return Limits{8192, 512, 2_000_000} }

// Asked is the requests that a capacity is about.
type Asked struct {
	// ISL and OSL are tokens of a prompt and of its answer.
	ISL, OSL int
	// TTFT, ITL and E2E are bounds; 0 is none. A bound on a latency that a role does not have makes every capacity ineligible.
	TTFT, ITL, E2E time.Duration
	// HitRate is the share of the prompt that is cached; at most 0.95 of it counts.
	HitRate float64
	// AcceptLength is tokens of a decode step; below 1 is 1.
	AcceptLength float64
	// LeastLatency prefers the shortest latency over the highest rate.
	LeastLatency bool
	// halves keeps the half of a token that a context may have.
	halves bool
}

// Capacity is the load that one engine serves. Latencies are in milliseconds; 0 is one that the role does not have.
type Capacity struct {
	Batch          int
	RPS            float64
	TTFT, ITL, E2E float64
	// Eligible reports whether the latencies are within the bounds.
	Eligible bool
}

// capacityCandidates is the most sizes of batches that are tried.
const capacityCandidates = 128

// batches returns the sizes of batches to try: all up to 128, or 128 of them with even distances.
func batches(most int) []int {
	n := max(0, min(most, capacityCandidates))
	out := make([]int, 0, n)
	for i := range n {
		size := i + 1
		if most > capacityCandidates {
			size = 1 + i*(most-1)/(capacityCandidates-1)
		}
		out = append(out, size)
	}
	return out
}

// hit and accept are the shares and lengths that count.
func (a Asked) hit() float64 {
	if !finite(a.HitRate) {
		return 0
	}
	return min(max(a.HitRate, 0), 0.95)
}

func (a Asked) accept() float64 {
	if !finite(a.AcceptLength) || a.AcceptLength < 1 {
		return 1
	}
	return a.AcceptLength
}

// fresh returns the prompt tokens to compute of one request.
func (a Asked) fresh() int { return max(1, int(math.Ceil(float64(a.ISL)*(1-a.hit())))) }

// context returns the tokens in the cache of a request half-way through its answer.
func (a Asked) context() float64 {
	if a.halves {
		return max(1, float64(a.ISL)+float64(a.OSL)/2)
	}
	return float64(max(1, a.ISL+a.OSL/2))
}

// eligible reports whether a capacity is within the bounds.
func (a Asked) eligible(c Capacity) bool {
	ok := func(ms float64, bound time.Duration) bool { return bound <= 0 || ms > 0 && ms <= milliseconds(bound) }
	return ok(c.TTFT, a.TTFT) && ok(c.ITL, a.ITL) && ok(c.E2E, a.E2E)
}

// better returns the capacity to prefer: eligible ones first, then by rate or by latency. Of equal ones it is the first.
func (a Asked) better(best, c Capacity) Capacity {
	c.Eligible = a.eligible(c)
	switch {
	case best.Batch == 0:
		return c
	case best.Eligible != c.Eligible:
		if c.Eligible {
			return c
		}
		return best
	case a.LeastLatency && c.latency() < best.latency(), !a.LeastLatency && c.RPS > best.RPS:
		return c
	}
	return best
}

// latency returns the longest latency that the role has.
func (c Capacity) latency() float64 {
	for _, ms := range []float64{c.E2E, c.TTFT, c.ITL} {
		if ms > 0 {
			return ms
		}
	}
	return math.Inf(1)
}

// Prefill returns the capacity of a prefill worker, false if the passes' times are unknown.
func (l Limits) Prefill(pass Pass, a Asked) (Capacity, bool) {
	if a.ISL <= 0 {
		return Capacity{}, false
	}
	e := a.fresh()
	most := 1
	if e <= l.MaxBatchedTokens {
		most = min(l.MaxSeqs, l.MaxBatchedTokens/e)
	}

	var best Capacity
	for _, b := range batches(most) {
		ttft, ok := l.Chunked(pass, float64(e*b), 0, 0)
		if !ok {
			return Capacity{}, false
		}
		best = a.better(best, Capacity{Batch: b, RPS: float64(b) / ttft * 1000, TTFT: ttft, E2E: ttft})
	}
	return best, best.Batch > 0
}

// Chunked returns how long prompt tokens take in passes of at most MaxBatchedTokens, beside decoding requests. It is false if
// the time of a pass is unknown.
func (l Limits) Chunked(pass Pass, tokens, requests, context float64) (ms float64, ok bool) {
	most := float64(l.MaxBatchedTokens)
	if !(most >= 1) || !(tokens >= 0) {
		return 0, false
	}
	full := math.Floor(tokens / most)
	if full > 0 {
		t := pass(Sample{PromptTokens: most, Requests: requests, ContextTokens: context})
		if !(t > 0) {
			return 0, false
		}
		ms += full * t
	}
	if tail := tokens - full*most; tail > 0 {
		t := pass(Sample{PromptTokens: tail, Requests: requests, ContextTokens: context})
		if !(t > 0) {
			return 0, false
		}
		ms += t
	}
	return ms, true
}

// Decode returns the capacity of a decode worker, false if a request does not fit into its cache or times are unknown.
func (l Limits) Decode(pass Pass, a Asked) (Capacity, bool) {
	return l.decode(pass, a, batches(l.decodeBatch(a)))
}

// decode tries sizes of batches.
func (l Limits) decode(pass Pass, a Asked, sizes []int) (Capacity, bool) {
	if a.ISL <= 0 || a.OSL <= 0 {
		return Capacity{}, false
	}
	var best Capacity
	for _, b := range sizes {
		t := pass(Sample{Requests: float64(b), ContextTokens: float64(b) * a.context()})
		if !(t > 0) {
			return Capacity{}, false
		}
		itl := t / a.accept()
		best = a.better(best, Capacity{Batch: b, RPS: float64(b) / (float64(a.OSL) * itl) * 1000, ITL: itl})
	}
	return best, best.Batch > 0
}

// decodeBatch returns how many requests decode at once.
func (l Limits) decodeBatch(a Asked) int {
	return min(l.MaxSeqs, int(float64(l.MaxKVTokens)/a.context()))
}

// Aggregated returns the capacity of a worker that prefills and decodes: its decode steps carry as many prompt tokens as keep the
// batch at its size.
func (l Limits) Aggregated(pass Pass, a Asked) (Capacity, bool) {
	if a.ISL <= 0 || a.OSL <= 0 {
		return Capacity{}, false
	}
	e, most := a.fresh(), min(l.decodeBatch(a), max(1, l.MaxBatchedTokens-1))
	var best Capacity
	for _, b := range batches(most) {
		beside := int(math.Ceil(float64(b) * a.accept() * float64(e) / float64(a.OSL)))
		if beside > l.MaxBatchedTokens-b {
			continue
		}
		requests, context := float64(b), float64(b)*a.context()
		t := pass(Sample{PromptTokens: float64(min(l.MaxBatchedTokens, beside)), Requests: requests, ContextTokens: context})
		ttft, ok := l.Chunked(pass, float64(beside+e), requests, context)
		if !(t > 0) || !ok {
			return Capacity{}, false
		}

		itl := t / a.accept()
		best = a.better(best, Capacity{
			Batch: b, RPS: requests / (float64(a.OSL) * itl) * 1000, TTFT: ttft, ITL: itl, E2E: ttft + itl*float64(a.OSL-1),
		})
	}
	return best, best.Batch > 0
}

// milliseconds returns a duration as Dynamo computes with it.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
