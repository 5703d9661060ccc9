package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/sim/engine"
)

// Noise sets how much the times of engines vary. The zero Noise is none: equal passes take equal times.
// Stalls, neighbours and slow starts have the sizes that were measured: see package engine.
type Noise struct {
	// Sigma is the parameter of the log-normal factor of each pass, whose mean is 1.
	Sigma float64
	// Stalls makes engines stall now and then.
	Stalls bool
	// Neighbours lets engines 0 and 1, 2 and 3, and so on, share hardware. One is slower while the other computes.
	Neighbours bool
	// SlowStarts maps a worker's number to how many of its first prompts are slow.
	SlowStarts map[int]int
	// SlowSpells lists workers that are slow for a time, and recover.
	SlowSpells []SlowSpell
}

// SlowSpell makes the passes of a worker take Factor times as long from At on, counted from the first arrival,
// for a time.
type SlowSpell struct {
	Worker   int
	Factor   float64
	At, Span time.Duration
}

// noiseOf returns the noise of one engine. beside reports whether its neighbour computes.
func (n *Noise) noiseOf(number int, seed uint64, beside func() bool) engine.Noise {
	out := engine.Noise{Seed: seed ^ uint64(number+1)<<32, Sigma: n.Sigma, Began: epoch}
	if n.Stalls {
		out.StallEvery = engine.MeasuredStallEvery
		out.StallFrom = engine.MeasuredStallFrom
		out.StallTo = engine.MeasuredStallTo
	}
	if n.Neighbours {
		out.Beside = beside
		out.BesidePrefill = engine.MeasuredBesidePrefill
		out.BesideDecode = engine.MeasuredBesideDecode
	}
	// A restarted engine has cold prompts again, because its process is new.
	out.ColdPrompts = n.SlowStarts[number]
	out.ColdTime = engine.MeasuredColdTime
	for _, s := range n.SlowSpells {
		if s.Worker == number {
			out.SlowFactor = s.Factor
			out.SlowFrom = s.At
			out.SlowSpan = s.Span
		}
	}
	return out
}

// validate reports everything that is wrong with the noise of so many engines.
func (n *Noise) validate(engines int) error {
	var errs []error
	wrong := func(number int) {
		if number < 0 || number >= engines {
			errs = append(errs, fmt.Errorf("noise of worker %d: there are %d", number, engines))
		}
	}

	seen := map[int]bool{}
	for _, s := range n.SlowSpells {
		wrong(s.Worker)
		if seen[s.Worker] {
			errs = append(errs, fmt.Errorf("worker %d is slow twice: one spell is supported", s.Worker))
		}
		seen[s.Worker] = true
		errs = append(errs, n.noiseOf(s.Worker, 0, nil).Validate())
	}
	for number, prompts := range n.SlowStarts {
		wrong(number)
		if prompts < 0 {
			errs = append(errs, fmt.Errorf("%d slow prompts of worker %d: there must be at least 0", prompts, number))
		}
	}

	none := -1 // has the noise of all engines alone
	errs = append(errs, n.noiseOf(none, 0, nil).Validate())
	return errors.Join(errs...)
}

// neighbourComputes returns a function that reports whether the engine beside one computes. Numbers that differ
// in the last bit alone are neighbours. The last one of an odd number has none.
func (r *run) neighbourComputes(number int) func() bool {
	beside := number ^ 1
	return func() bool { return beside < len(r.workers) && r.workers[beside].inPass }
}
