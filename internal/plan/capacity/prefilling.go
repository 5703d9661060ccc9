package capacity

import (
	"cmp"
	"math"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
)

// prefilling is the prefill part of one engine's work. Times are in seconds.
type prefilling struct {
	engine *Engine
	shape  Shape
	beside float64 // the time of a pass besides its prompts
	most   float64 // prompts per second that one engine computes
	batch  float64 // prompts of a pass at that rate
	mean   float64 // the time of a pass with one prompt

	lengths [lengths]float64 // tokens to compute of prompts of several lengths
	spread  float64          // of the service time: its variance divided by the square of its mean
}

// lengths is by how many prompts of different lengths their distribution is represented. The longest ones are few and have most of the
// work, so these have lengths of their own: upTo has the share of the prompts up to each of the lengths.
const lengths = 8

var upTo = [lengths]float64{0.25, 0.5, 0.7, 0.85, 0.93, 0.975, 0.995, 1}

// shareOf returns the share of the prompts that have one of the lengths.
func shareOf(i int) float64 {
	if i == 0 {
		return upTo[0]
	}
	return upTo[i] - upTo[i-1]
}

// lengthsOf returns the means of the parts of a log-normal distribution with a mean and a spread: their mean is that mean.
func lengthsOf(mean, spread float64) (out [lengths]float64) {
	deviation := math.Sqrt(math.Log(1 + spread*spread))
	// below returns the part of the sum of all lengths below a quantile.
	below := func(q float64) float64 {
		if q >= 1 {
			return 1
		}
		return 0.5 * math.Erfc((deviation-normalQuantile(q))/math.Sqrt2)
	}
	last := 0.0
	for i := range out {
		now := below(upTo[i])
		out[i] = mean * (now - last) / shareOf(i)
		last = now
	}
	return out
}

// prefilling returns the prefill part of an engine whose passes take some time besides their prompts.
func (e *Engine) prefilling(s Shape, beside float64) prefilling {
	p := prefilling{engine: e, shape: s, beside: beside}
	p.lengths = lengthsOf(s.fresh(), s.PromptSpread)
	square := 0.0
	for i := range p.lengths {
		if e.KVTokens > 0 {
			p.lengths[i] = min(p.lengths[i], float64(e.KVTokens)*(1-s.cached())) // a longer prompt is refused
		}
		t := p.pass(p.lengths[i], 1)
		p.mean += t * shareOf(i)
		square += t * t * shareOf(i)
	}
	p.spread = max(0, square/(p.mean*p.mean)-1)

	// Short prompts share the fixed time of a pass.
	tokens := float64(cmp.Or(e.MaxBatchedTokens, defaultMaxBatchedTokens))
	for batch := 1.0; batch == 1 || batch*s.fresh() <= tokens && batch <= float64(cmp.Or(e.MaxSeqs, defaultMaxSeqs)); batch *= 2 {
		rate := batch / p.took(batch)
		if rate > p.most {
			p.most, p.batch = rate, batch
		}
	}
	return p
}

// took returns the mean time of a pass with so many prompts.
func (p *prefilling) took(batch float64) float64 {
	return max(1e-9, p.mean+p.pass(batch*p.shape.fresh(), batch)-p.pass(p.shape.fresh(), 1))
}

// share returns the share of the time that prompts take at a rate on one engine, on which a step of the requests that decode takes some
// time. Prompts that come during a pass are computed in the next one. So at a low rate most have a pass alone, which takes more of the
// time than the full passes of the highest rate.
func (p *prefilling) share(rate, step float64) float64 {
	batch := 1.0
	for range 10 { // the batch changes little after some
		come := rate * (step + p.took(batch))
		batch = min(max(1, come/-math.Expm1(-come)), p.batch) // the mean of those passes that have a prompt
	}
	return min(rate*p.took(batch)/batch, 0.999)
}

// fresh returns the mean tokens of a prompt that are not cached.
func (s *Shape) fresh() float64 { return max(1, s.Prompt*(1-s.cached())) }

// cached returns the share of the prompts that is cached, less than 1.
func (s *Shape) cached() float64 { return min(max(s.Cached, 0), 0.99) }

// pass returns the time of passes that compute as many tokens, of so many prompts, each with its share of cached ones. A pass has at most
// MaxBatchedTokens, so a long prompt takes several, each with the time that a pass takes besides.
func (p *prefilling) pass(tokens, prompts float64) float64 {
	limit := float64(cmp.Or(p.engine.MaxBatchedTokens, defaultMaxBatchedTokens))
	prefix := tokens * p.shape.cached() / (1 - p.shape.cached())
	sum := 0.0
	tokens = min(tokens, maxPasses*limit)
	for left := tokens; left > 0; left -= limit {
		now := min(left, limit)
		w := perfmodel.Prefill{Requests: int(max(1, prompts)), Input: int(prefix + now), Prefix: int(prefix)}
		sum += p.engine.Timing.Prefill(w).Seconds() + p.beside
		prefix += now
	}
	return sum
}

// maxPasses bounds the passes of a prompt that are computed.
const maxPasses = 1024

// ttft returns a quantile of the time to the first token on n engines that get a rate of prompts per second together, and are busy for
// a share of the time.
func (p *prefilling) ttft(rate float64, n int, busy, q float64) time.Duration {
	waits := erlangC(n, busy)
	wait := (p.shape.bursts() + p.spread) / 2 / (p.most * float64(n) * (1 - busy)) * imbalance // of those that wait

	// Prompts that wait are computed together, in passes that are full, and each gets its token at the end of the pass.
	full := p.pass(float64(cmp.Or(p.engine.MaxBatchedTokens, defaultMaxBatchedTokens)), 1)
	together := max(0, full-p.pass(p.shape.fresh(), 1)) / 2

	// Prompts that come during a pass are computed together in the next one.
	batch := min(p.batch, max(1, rate/float64(n)*p.pass(p.shape.fresh(), 1)))
	more := p.pass(batch*p.shape.fresh(), batch) - p.pass(p.shape.fresh(), 1)

	own := p.lengths
	for i := range own {
		own[i] = p.pass(p.lengths[i], 1) + more + p.beside*busy/2
	}
	later := func(t float64) (share float64) {
		for i, v := range own {
			switch {
			case t < v:
				share += shareOf(i)
			case t < v+together:
				share += waits * shareOf(i)
			default:
				share += waits * math.Exp(-(t-v-together)/wait) * shareOf(i)
			}
		}
		return share
	}

	low, high := 0.0, own[lengths-1]+together+50*wait
	for range 40 {
		if mid := (low + high) / 2; later(mid) > 1-q {
			low = mid
		} else {
			high = mid
		}
	}
	return time.Duration(high * float64(time.Second))
}

// itl returns a quantile of the mean time between the tokens of a request on an engine that also gets a rate of prompts per second.
// typical and running are the median and the quantile of the running requests.
func (p *prefilling) itl(d *decoding, typical, running, rate, q float64) time.Duration {
	z := normalQuantile(q)
	median := d.itl(typical)
	if math.Abs(z) < 1e-3 {
		return median
	}

	// The variances of the number of running requests, and of the prompts that come during an answer, are added.
	mean := median.Seconds()
	g := p.gaps(d, mean, (d.itl(running).Seconds()-mean)/z, rate)
	low, high := 0.0, mean+10*g.deviations[0]
	for range 40 {
		if mid := (low + high) / 2; g.later(mid) > 1-q {
			low = mid
		} else {
			high = mid
		}
	}
	return time.Duration(high * float64(time.Second))
}

// gaps is the distribution of requests' mean times between tokens, in seconds: normal ones, one for each of the lengths of answers.
type gaps struct {
	mean       float64
	deviations [lengths]float64
}

// gaps returns the distribution on an engine that gets a rate of prompts per second. batches is the deviation that all answers have.
func (p *prefilling) gaps(d *decoding, mean, batches, rate float64) gaps {
	square := 0.0 // of the time of a prompt
	for i, tokens := range p.lengths {
		t := p.pass(tokens, 1)
		square += t * t * shareOf(i)
	}
	g := gaps{mean: mean}
	for i, answer := range lengthsOf(d.answer, d.spread) {
		prompts := rate * mean * square / max(1, answer)
		g.deviations[i] = math.Sqrt(batches*batches + prompts)
	}
	return g
}

// later returns the share of the requests with longer times.
func (g *gaps) later(t float64) (share float64) {
	for i, v := range g.deviations {
		share += 0.5 * math.Erfc((t-g.mean)/max(v, 1e-9)/math.Sqrt2) * shareOf(i)
	}
	return share
}

// spreadOfGaps is the standard deviation of the mean times between tokens of an engine's requests without prompts between them, as a share
// of their mean.
const spreadOfGaps = 0.12

// Slower returns the share of the requests whose mean time between tokens is longer than a target, on an engine whose mean is known. Where
// that is the target, half of them are. A rate of prompts per second, which the engine computes between the tokens, spreads them: one
// prompt more or less is much of the time of a short answer.
func (e *Engine) Slower(s Shape, mean time.Duration, rate float64, target time.Duration) float64 {
	d := e.decoding(s, 0)
	p := e.prefilling(s, 0)
	g := p.gaps(&d, mean.Seconds(), spreadOfGaps*mean.Seconds(), rate)
	return g.later(target.Seconds())
}

// imbalance is the factor by which prompts wait longer than in one queue for all engines: a prompt stays at its engine, and passes
// begin together. The simulation has twice as long waits on 1, 2 and 3 engines at a load of 0.9, for prompts of 3,000 tokens.
const imbalance = 2

// erlangC returns the share of arrivals that find all n servers busy, where each is busy for a share of the time.
func erlangC(n int, busy float64) float64 {
	offered := float64(n) * busy
	blocked := 1.0 // Erlang's B by recursion
	for k := 1; k <= n; k++ {
		blocked = offered * blocked / (float64(k) + offered*blocked)
	}
	return blocked / (1 - busy*(1-blocked))
}
