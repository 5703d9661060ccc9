package planner

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/test/process"
)

// bench is one run of the command.
type bench struct {
	traces string // folder
	less   int    // divides the number of requests
	rivals *regexp.Regexp
	slots  chan struct{} // as many as runs at a time
	// defaults means that our grid is not played.
	defaults bool

	static map[string][]point // of fleets that stay as they are, by workload

	reading  sync.Mutex
	arrivals map[string][]trace.Arrival // by path: traces that were read
}

// point is the result of a candidate.
type point struct {
	candidate
	hours  float64 // GPU hours
	misses float64 // share of the requests that missed the SLA or failed
	// early is the part of misses whose requests came before a worker of the first plan could be ready.
	early float64
}

// play plays one candidate. What happens goes to a timeline, which may be nil.
func (b *bench) play(w *workload, next trace.Source, c *candidate, startUp time.Duration, t *timeline) (point, error) {
	cfg := sim.Config{
		Workers: w.start.decode, Prefill: w.start.prefill, Engine: w.machine.engine(), SLA: w.sla,
		Transfer: sim.Transfer{TokenBytes: w.machine.kvBytes}, GPUs: w.machine.perEngine(), PrefillGPUs: w.machine.perEngine(),
		// Routers see first tokens in answers, which makes the simulation faster.
		FirstTokens: true, Seed: 1,
	}
	if w.start.prefill > 0 {
		cfg.PrefillAt = "remote"
	}
	measured, early := 0, 0
	cfg.Warmup = warmUp
	cfg.Ended = func(o sim.Outcome) {
		if o.At >= warmUp {
			measured++
			if o.At < every+startUp && (o.Failed || w.sla.Misses(o.At, o.First, o.End, o.Output)) {
				early++
			}
		}
		if t != nil {
			t.ended(o)
		}
	}
	if c.settings == nil {
		cfg.Workers = c.static.decode
		cfg.Prefill = c.static.prefill
	} else {
		cfg.Planning = &sim.Planning{Every: every, StartUp: startUp, Max: mostEngines, Next: c.planner(t)}
	}

	r, err := sim.Run(cfg, next)
	if err != nil {
		return point{}, fmt.Errorf("%s, %s: %w", w.name, c.label, err)
	}
	hours := r.GPUHours
	if c.settings == nil {
		hours = float64((c.static.prefill+c.static.decode)*w.machine.perEngine()) * r.Duration / 3600
	}
	share := func(n int) float64 { return float64(n) / float64(max(1, measured)) }
	return point{*c, hours, share(*r.SLAMisses), share(early)}, nil
}

// warmUp is the time after the first arrival in which requests are played and not counted. All begin with the same fleet, which
// planners have not chosen, and planners that start engines cannot change it sooner than in a start-up.
const warmUp = 3 * time.Minute

// playAll plays all candidates of a contender. There is one result for each, in their order.
func (b *bench) playAll(w *workload, list []candidate, startUp time.Duration, source func(*bench) (trace.Source, error)) ([]point, error) {
	out := make([]point, len(list))
	err := process.Each(b.slots, len(list), func(i int) error {
		next, err := source(b)
		if err != nil {
			return err
		}
		out[i], err = b.play(w, next, &list[i], startUp, nil)
		return err
	})
	return out, err
}

// front is the points of a grid for which no other one has less GPU hours and no more misses, by GPU hours.
type front []point

// mostMisses bounds the points of a front: a fleet with more misses than that is of no use.
const mostMisses = 0.5

// frontOf returns the front of points.
func frontOf(points []point) (f front) {
	sorted := slices.Clone(points)
	slices.SortStableFunc(sorted, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.hours, b.hours), cmp.Compare(a.misses, b.misses))
	})
	least := math.Inf(1)
	for _, p := range sorted {
		if p.misses < least {
			least = p.misses
			if p.misses <= mostMisses {
				f = append(f, p)
			}
		}
	}
	return f
}

// within returns the point with the fewest misses that has at most as many GPU hours.
func (f front) within(hours float64) (best point, ok bool) {
	for _, p := range f {
		if p.hours <= hours {
			best, ok = p, true
		}
	}
	return best, ok
}

// meeting returns the point with the least GPU hours that has at most as many misses.
func (f front) meeting(misses float64) (best point, ok bool) {
	i := slices.IndexFunc(f, func(p point) bool { return p.misses <= misses })
	if i < 0 {
		return point{}, false
	}
	return f[i], true
}

// fewMisses are those that a fleet may have at the point that is chosen to stand for its front.
const fewMisses = 0.05

// chosen returns the point with the least GPU hours and few misses, or without one that with the fewest misses.
func (f front) chosen() point {
	if p, ok := f.meeting(fewMisses); ok {
		return p
	}
	return f[len(f)-1]
}
