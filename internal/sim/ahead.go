package sim

import (
	"math"
	"time"
)

// Most passes are quiet: each running request gets a token, and neither routers nor other engines can notice (see package engine).
// Their order among the events of other engines has no effect, so an engine plays a row of them at once, which saves their events.
// It stops before the next event that may reach the engine: an arrival, a report of loads, or a plan.

// runsAhead reports whether these are the only events that reach engines. In other runs every pass has its events: requests come
// from a router's queue or another engine too, steps of programs follow the answers of any engine, engines die, or one is slower while
// another computes.
func (c *Config) runsAhead() bool {
	return c.Queue == nil && c.Prefill == 0 && !c.Pull && c.Concurrency == 0 && c.ProgramRate == 0 && len(c.Restarts) == 0 &&
		!c.Noise.Neighbours
}

// runAhead plays the quiet passes of an engine, of which the first one is planned and ends at a time. It returns the end of the
// last one that is planned. The pass after that is planned at its time.
func (r *run) runAhead(w *worker, end time.Duration) time.Duration {
	if !w.engine.Quiet() {
		return end
	}
	horizon := r.horizon()
	for end < horizon && w.engine.Quiet() {
		for _, out := range w.engine.End().Outputs {
			j := out.Request.Owner.(*job)
			r.countGap(j, end)
		}
		took, _ := w.engine.Plan(epoch.Add(end)) // after a quiet pass there always is one
		end += took
	}
	return end
}

// horizon returns the time of the next event that may reach an engine.
func (r *run) horizon() time.Duration {
	next := time.Duration(math.MaxInt64)
	if r.pending != nil {
		next = r.pending.At
	}
	if r.cfg.ReportEvery > 0 {
		next = min(next, r.ticks[reports])
	}
	if r.cfg.Planning != nil {
		next = min(next, r.ticks[plans])
	}
	return next
}

// addTick adds the next event of a kind that comes again and again.
func (r *run) addTick(k kind, after time.Duration) {
	r.ticks[k] = r.now + after
	r.agenda.add(event{at: r.now + after, kind: k})
}
