package cost

import (
	"math"
	"time"
)

// batch is the requests of a rank as its engine is expected to run them.
type batch struct {
	requests float64 // on the rank, running or waiting
	running  float64 // at once
	waiting  float64 // that must end before this request can run
	context  float64 // tokens that the running ones have in the cache, the sum of their contexts
	oldest   float64 // milliseconds since the first of them was booked
	crowded  bool    // the cache has no room for all
}

// batch divides the requests of a rank into running and waiting ones, by its slots and by its cache.
func (f *Facts) batch(r *Request) (b batch) {
	b.requests = float64(f.Requests())
	if b.requests == 0 {
		return b
	}
	b.running = b.requests
	blockSize := float64(max(1, r.BlockSize))
	each := blockSize*f.bookedBlocks()/float64(max(1, f.requests())) + r.Answer/2

	full := f.Slots > 0 && b.requests >= float64(f.Slots)
	if full {
		b.running = float64(f.Slots)
	}
	if room := blockSize * float64(f.Capacity); room > 0 {
		if held := f.footprint() * (each*b.requests + r.context()); held > room {
			b.running = min(b.running, max(1, b.requests*room/held))
			b.crowded = true
		}
	}
	if full || b.crowded {
		b.waiting = b.requests + 1 - b.running
	}
	b.context = each * b.running
	b.oldest = math.Inf(1)
	if f.Aged {
		b.oldest = 2 * milliseconds(f.Age)
	}
	return b
}

// slot returns the time in milliseconds until the engine can run another request: the first of the running ones ends when the oldest has
// its answer, and the others in turn. Their ages are taken to be spread evenly up to twice the mean.
func (b *batch) slot(r *Request, pace float64) float64 {
	if b.waiting <= 0 {
		return 0
	}
	answer := b.answer(r, pace)
	return max(0, answer-b.oldest) + b.waiting*answer/b.running
}

// answer returns the time of an answer in milliseconds.
func (b *batch) answer(r *Request, pace float64) float64 {
	return r.Answer * pace * (milliseconds(r.Decode.Base) + b.context*r.Decode.Token*perMillisecond)
}

// wait returns the time in milliseconds of the prefills that are booked before the request. Facts.Wait is their rest, if the engine
// computes one after the other as they come. Prompts that wait for requests to end are computed in turn with these, in passes that decode
// anyway, so their tokens count.
func (f *Facts) wait(r *Request, b *batch) float64 {
	if b.waiting > 0 {
		return f.pace() * r.Line.Token * perMillisecond * float64(f.pending())
	}
	return milliseconds(f.Wait)
}

// Expected has the expected times of a request on a rank.
type Expected struct {
	// Wait is the time until its prompt is computed: for the prefills before it, and for a slot.
	Wait time.Duration
	// Step is the duration of a decode step of the requests that run there; 0 if none runs.
	Step time.Duration
	// Passes is the part of a pass that its prompt adds: 0 if it is computed in one that is made anyway, with others that are booked there
	// or wait for a slot.
	Passes float64
	// Held means that it waits until another request has ended: for a slot, or for room in the cache.
	Held bool
}

// Expect returns the expected times of a request on a rank that must compute the given number of tokens of its prompt.
func Expect(r *Request, f *Facts, uncached int) Expected {
	b, pace := f.batch(r), f.pace()
	e := Expected{Wait: time.Duration((f.wait(r, &b) + b.slot(r, pace)) / perMillisecond)}
	e.Held = b.waiting > 0
	if !e.Held {
		e.Passes = f.Passes(uncached)
	}
	if b.requests > 0 {
		e.Step = time.Duration(pace * float64(r.Decode.Step(int(b.context))))
	}
	return e
}
