package score

import (
	"math"
	"time"

	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/pick"
)

// A prompt is computed by its decode worker, or by a prefill worker. The workers of one role have similar numbers of requests, so
// cost.Delay counts only the share of these that a prompt probably delays. Both roles together differ much, so a comparison between them
// counts all that are delayed:
//
//	at a decode worker   each request there stands still while the prompt is computed
//	at a prefill worker  about as many prompts come after this one as wait before it, and each has its first token so much later
//
// While a prefill worker computes the prompt, requests end on the decode worker. So the wait for a slot there begins with the prefill, and
// not after it. For the prompts after this one it is the same: as far as they wait for slots anyway, this one delays no first token.

// LeastLocal is the lowest cost of a decode worker that computes the prompt, too. By cost.Delay a worker that is idle for a moment counts
// as the mean of all: the next request may come to it during the prompt.
func (j *Judged) LeastLocal() float64 {
	running := int64(0)
	for i := range j.Candidates {
		running += max(0, j.Candidates[i].Facts.Booked.Requests)
	}
	mean := float64(running) / float64(len(j.Candidates))
	return j.leastDelaying(func(_ *cost.Delay, booked float64) float64 { return max(booked, mean) })
}

// LeastPrefill is the lowest cost of a prefill worker, and the time until the prompt is expected to be computed there. others is the part
// of the cost by which prompts after this one are delayed.
func (j *Judged) LeastPrefill() (least float64, computed time.Duration, others float64) {
	delayed := func(d *cost.Delay, booked float64) float64 { return d.FirstToken * booked }
	least = j.leastDelaying(delayed)
	c := j.leastCandidate()
	there := j.Expect(c)
	if delay, ok := j.function.(*cost.Delay); ok {
		others = delayed(delay, booked(c)) * float64(there.Added) / 1e6
	}
	return least, there.firstToken(), others
}

// LeastDecode is the lowest cost of a decode worker to which the prompt comes computed after a time. By cost.Delay the part of this time in
// which the request waits for a slot does not count: it delays the first token no further. hidden is this part's share of the time.
func (j *Judged) LeastDecode(computed time.Duration) (least, hidden float64) {
	c := j.leastCandidate()
	delay, ok := j.function.(*cost.Delay)
	if !ok || computed <= 0 {
		return c.Total, 0
	}
	waits := min(computed, j.Expect(c).Wait)
	return c.Total - delay.FirstToken*float64(waits)/1e6, float64(waits) / float64(computed)
}

// leastDelaying is the lowest cost of the candidates if a prompt on a rank with so many booked requests delays as many as delayed returns,
// each with its weight. Other functions than cost.Delay do not count delays.
func (j *Judged) leastDelaying(delayed func(d *cost.Delay, booked float64) float64) float64 {
	delay, ok := j.function.(*cost.Delay)
	if !ok {
		return j.Least()
	}

	least := math.Inf(1)
	for i := range j.Candidates {
		c := &j.Candidates[i]
		uncounted := delayed(delay, booked(c)) - delay.Interference*booked(c)
		least = min(least, c.Total+uncounted*float64(j.Expect(c).Added)/1e6)
	}
	return least
}

// booked is the number of requests that are booked on a candidate.
func booked(c *pick.Candidate) float64 { return float64(max(0, c.Facts.Booked.Requests)) }
