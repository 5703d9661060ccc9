package capacity

import (
	"cmp"
	"math"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
)

// decoding is the decode part of one engine's work.
type decoding struct {
	engine  *Engine
	context float64 // tokens of a running request in the cache, in the mean
	answer  float64 // tokens, in the mean
	spread  float64 // their standard deviation divided by the mean
	free    float64 // share of the time that prompts leave
	most    float64 // requests that run at once
	bursts  float64 // as in Shape
}

// decoding returns the decode part of an engine of whose time prompts take a share.
func (e *Engine) decoding(s Shape, share float64) decoding {
	answer := max(1, s.Answer)
	// Requests are seen the longer the more tokens they have left to make: their mean context has the mean square of answers.
	d := decoding{engine: e, answer: answer, spread: s.AnswerSpread, free: 1 - share, bursts: s.bursts()}
	d.context = max(1, s.Prompt+answer*(1+s.AnswerSpread*s.AnswerSpread)/2)
	d.most = float64(cmp.Or(e.MaxSeqs, defaultMaxSeqs))
	if e.KVTokens > 0 {
		d.most = min(d.most, float64(e.KVTokens)/d.context)
	}
	return d
}

// step returns the seconds of a step with as many running requests, of which a part may be one.
func (d *decoding) step(running float64) float64 {
	at := func(n float64) float64 {
		return d.engine.Timing.Decode(perfmodel.Decode{
			Requests: int(n), Context: int(n * d.context), Capacity: d.engine.KVTokens,
		}).Seconds()
	}
	low := max(1, math.Floor(running))
	part := max(0, running-low)
	if part == 0 {
		return at(low)
	}
	return at(low)*(1-part) + at(low+1)*part
}

// itl returns the time between tokens of a request with as many running requests.
func (d *decoding) itl(running float64) time.Duration {
	return time.Duration(d.step(running) / d.free / max(1, d.engine.StepTokens) * float64(time.Second))
}

// served returns the requests per second that end with as many running.
func (d *decoding) served(running float64) float64 {
	return running * d.free * max(1, d.engine.StepTokens) / (d.answer * d.step(running))
}

// running returns a quantile of the number of running requests on one of n engines, each of which gets a rate of requests per second,
// and that rate as a share of the highest one.
func (d *decoding) running(rate, n, q float64) (running, load float64) {
	load = rate / d.served(d.most)
	if load >= 1 || d.most < 1 {
		return d.most, max(load, 1)
	}

	low, high := 0.0, d.most
	for range 40 {
		if mid := (low + high) / 2; d.served(mid) < rate {
			low = mid
		} else {
			high = mid
		}
	}

	// The variance of the number on all n engines is bursts · rate · n / G', where G' is the slope of served, the same for n engines as for
	// one.
	width := max(0.5, high/50)
	slope := (d.served(high+width) - d.served(max(0, high-width))) / (high + width - max(0, high-width))
	if slope <= 0 {
		return d.most, load
	}
	deviation := math.Sqrt(d.bursts*rate*n/slope) / n
	return min(max(high+deviation*normalQuantile(q), 0), d.most), load
}

// bursts returns the dispersion of arrivals.
func (s *Shape) bursts() float64 { return max(1, s.Bursts) }

// longAnswer returns a quantile of the tokens of an answer.
func (s *Shape) longAnswer(q float64) float64 {
	return logNormal(max(1, s.Answer), s.AnswerSpread, normalQuantile(q))
}

// logNormal returns the value of a log-normal distribution with a mean and a spread, at a number of standard deviations of its
// logarithm. Lengths of prompts and answers are about log-normal.
func logNormal(mean, spread, deviations float64) float64 {
	variance := math.Log(1 + spread*spread)
	return mean * math.Exp(deviations*math.Sqrt(variance)-variance/2)
}

// normalQuantile returns a quantile of the normal distribution with mean 0 and deviation 1.
func normalQuantile(q float64) float64 {
	return math.Sqrt2 * math.Erfinv(2*min(max(q, 1e-6), 1-1e-6)-1)
}
