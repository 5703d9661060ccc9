package capacity

import (
	"cmp"
	"math"
	"time"
)

// Never is a latency without an end: requests come faster than they are served.
const Never = time.Duration(math.MaxInt64)

// Latency is the expected latency of requests at a quantile. A latency that a role does not determine is 0.
type Latency struct {
	TTFT, ITL, E2E time.Duration
	// Load is the rate divided by the highest one that the engines serve at all. From 1 on, latencies are Never.
	Load float64
}

// Met reports whether the latencies are within the targets, and the engines keep up.
func (t Targets) Met(l Latency) bool {
	within := func(v, bound time.Duration) bool { return bound == 0 || v <= bound }
	return l.Load <= mostLoad && within(l.TTFT, t.TTFT) && within(l.ITL, t.ITL) && within(l.E2E, t.E2E)
}

// quantile returns the share of requests that are to be within the bounds.
func (t Targets) quantile() float64 { return cmp.Or(t.Quantile, defaultQuantile) }

// AllowedMisses returns the share of requests that may miss the bounds.
func (t Targets) AllowedMisses() float64 { return 1 - t.quantile() }

// DefaultMaxSeqs is the number of requests that an engine runs at once if it is not configured.
const DefaultMaxSeqs = 256

// DefaultAllowedMisses is the share of requests that may miss the bounds if it is not configured.
const DefaultAllowedMisses = 1 - defaultQuantile

const (
	defaultQuantile = 0.9
	// mostLoad is the highest load of engines without targets: beyond it, small errors of the estimate make long queues.
	mostLoad = 0.95

	defaultMaxSeqs          = DefaultMaxSeqs
	defaultMaxBatchedTokens = 8192
)

// The estimates below treat n engines behind a router that balances well as one queue with n servers.
//
// Decoding is processor sharing: all running requests share the engine, and the time of a step grows with their number. The number of
// running requests N follows from Little's law: rate = N / (answer · step(N)). It varies around that by chance: with the rate λ of
// arrivals and the rate G(N) of ends, its variance is λ / G'(N), which is N for engines whose steps do not slow down. A quantile of N
// gives the step's quantile. Arrivals in bursts have a multiple of that variance.
//
// Prefill is a queue: a prompt waits for those before it (M/G/n, with the approximation of Lee and Longton for the mean, Erlang's C for
// the share that waits, and an exponential tail), for the rest of the pass that runs, and for its own pass. Prompts that are short are
// computed several in one pass, as many as its tokens hold.
//
// On an engine that does both, prompts take a share of the time, by which decoding slows down, and a pass with prompts makes a decode
// step too. How many prompts come during an answer varies by chance, and most for short answers: a prompt more or less is a large part of
// their time.

// Decode returns the latencies of n engines that decode prompts computed elsewhere, at a rate of requests per second.
func (e *Engine) Decode(n int, rate float64, s Shape, q float64) Latency {
	d := e.decoding(s, 0)
	running, load := d.running(rate/float64(n), float64(n), q)
	if running >= d.most { // one more waits until another one ends
		return Latency{ITL: Never, E2E: Never, Load: load}
	}
	itl := d.itl(running)
	return Latency{ITL: itl, E2E: times(itl, s.longAnswer(q)), Load: load}
}

// Prefill returns the latencies of n engines that only compute prompts.
func (e *Engine) Prefill(n int, rate float64, s Shape, q float64) Latency {
	p := e.prefilling(s, 0)
	load := rate / float64(n) / p.most
	if load >= 1 {
		return Latency{TTFT: Never, Load: load}
	}
	return Latency{TTFT: p.ttft(rate, n, load, q), Load: load}
}

// Aggregated returns the latencies of n engines that prefill and decode.
func (e *Engine) Aggregated(n int, rate float64, s Shape, q float64) Latency {
	each := rate / float64(n)
	prompts := e.prefilling(s, 0)
	load := each / prompts.most
	never := Latency{TTFT: Never, ITL: Never, E2E: Never, Load: max(1, load)}
	if load >= 1 {
		return never
	}

	// The time for prompts depends on the steps between them, and these on the time that prompts leave.
	var d decoding
	typical, step := 0.0, 0.0
	for range 2 {
		d = e.decoding(s, prompts.share(each, step))
		typical, load = d.running(each, float64(n), 0.5)
		if load >= 1 {
			return never
		}
		step = d.step(typical)
	}
	running, _ := d.running(each, float64(n), q)

	// A pass with prompts makes a step of the requests that decode.
	p := e.prefilling(s, step)
	busy := each / p.most
	load = max(load, busy)
	if busy >= 1 {
		return never
	}
	ttft := p.ttft(rate, n, busy, q)
	// A burst is spread over the engines, so each has less of it.
	itl := p.itl(&d, typical, running, each*(1+(s.bursts()-1)/float64(n)), q)
	return Latency{TTFT: ttft, ITL: itl, E2E: ttft + times(itl, s.longAnswer(q)), Load: load}
}

// times returns a multiple of a duration, at most Never.
func times(d time.Duration, n float64) time.Duration {
	v := float64(d) * n
	if v >= float64(Never) {
		return Never
	}
	return time.Duration(v)
}
