package plan

import (
	"math"
	"time"
)

// bursts is how much the numbers of requests in neighbouring steps differ. A step is about as long as requests wait or run, so this is how
// engines see bursts. Sums in which older steps count less.
//
// A rate that jumps is for the forecast to follow, and no burst: it is one great difference. So a difference counts at most as one that is
// rare with the dispersion that was observed before. Bursts that stay bursts raise that again and again.
type bursts struct {
	rate float64 // requests per second in the last step
	seen bool
	// squares are the squared differences by the requests of both steps: 1 in the mean if these come independently of each other.
	squares, steps float64
}

const (
	// burstsFor is the time in which the weight of a step falls to 0.37.
	burstsFor = 10 * time.Minute
	// assumedSteps is the number of steps that weigh as much as the ones that were observed, and have no bursts.
	assumedSteps = 12
	// rareDifference is three standard deviations, squared.
	rareDifference = 9
	// mostDispersion bounds the dispersion: beyond it more engines are of little use, because a burst lasts longer than answers.
	mostDispersion = 20
)

// after returns the state after a step in which so many requests came.
func (b bursts) after(requests float64, over time.Duration) bursts {
	keep := math.Exp(-float64(over) / float64(burstsFor))
	next := bursts{rate: requests / over.Seconds(), seen: true, squares: b.squares * keep, steps: b.steps * keep}
	before := b.rate * over.Seconds()
	both := requests + before
	if b.seen && both > 0 {
		next.squares += min((requests-before)*(requests-before)/both, rareDifference*b.dispersion())
		next.steps++
	}
	return next
}

// interrupted returns the state after a step of which nothing is known.
func (b bursts) interrupted() bursts {
	b.seen = false
	return b
}

// dispersion returns the dispersion of capacity.Shape, at least 1. It leaves out two standard errors: requests that come independently of
// each other may be above 1 by chance.
func (b bursts) dispersion() float64 {
	steps := b.steps + assumedSteps
	chance := 2 * math.Sqrt(2/steps)
	d := (b.squares+assumedSteps)/steps - chance
	return min(max(d, 1), mostDispersion)
}
