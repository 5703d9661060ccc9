package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Replicas is the number of engines of a role from a time on.
type Replicas struct {
	// At is in seconds from the first arrival.
	At float64 `json:"at_s"`
	// Wanted is the number that the plan wants. Engines that are down count as none of the others.
	Wanted   int `json:"wanted"`
	Ready    int `json:"ready"`
	Starting int `json:"starting"`
	Draining int `json:"draining"`
}

// maxReplicas bounds a series of Replicas. A longer one is thinned.
const maxReplicas = 4096

// pool is the engines of one role that planning changes.
//
// Invariant: series has at most maxReplicas points, in order of time, and no two of one time.
type pool struct {
	role   fleet.Role
	wanted int
	series []Replicas
}

// initPools makes the pools of a run with planning, with the engines at its start. The first pool has the engines that decode,
// or do both.
func (r *run) initPools() {
	if r.cfg.Planning == nil {
		return
	}
	r.pools = []*pool{{role: r.cfg.role(0), wanted: r.cfg.Workers}}
	if r.cfg.Prefill > 0 {
		r.pools = append(r.pools, &pool{role: fleet.Prefill, wanted: r.cfg.Prefill})
	}
	r.recordAll()
}

// recordAll adds the present numbers of engines to the series.
func (r *run) recordAll() {
	for _, p := range r.pools {
		p.record(r.count(p))
	}
}

// count returns the present numbers of a pool's engines.
func (r *run) count(p *pool) Replicas {
	out := Replicas{At: round(r.now.Seconds()), Wanted: p.wanted}
	for _, w := range r.live {
		if w.role != p.role {
			continue
		}
		switch w.state() {
		case fleet.Ready:
			out.Ready++
		case fleet.Starting:
			out.Starting++
		case fleet.Draining:
			out.Draining++
		}
	}
	return out
}

// size returns the number of a pool's engines in all states.
func (r *run) size(p *pool) (n int) {
	for _, w := range r.live {
		if w.role == p.role {
			n++
		}
	}
	return n
}

// record adds numbers if they changed. Of several changes at one time the last one is kept. A series that is too long
// loses every second point; each of the others then stands for itself and the one that followed.
func (p *pool) record(now Replicas) {
	if n := len(p.series); n > 0 {
		last := p.series[n-1]
		last.At = now.At
		if last == now {
			return
		}
		if p.series[n-1].At == now.At {
			p.series[n-1] = now
			return
		}
	}
	if len(p.series) == maxReplicas {
		kept := p.series[:0]
		for i := 0; i < maxReplicas; i += 2 {
			kept = append(kept, p.series[i])
		}
		p.series = kept
	}
	p.series = append(p.series, now)
}

// planned adds the figures of planning to a result. An engine that is left at the end has GPU time until the run's last event.
func (r *run) planned(out *Result) {
	if r.cfg.Planning == nil {
		return
	}
	out.Replicas = r.pools[0].series
	if len(r.pools) > 1 {
		out.PrefillReplicas = r.pools[1].series
	}

	var gpuTime time.Duration
	for _, w := range r.workers {
		end := r.now
		if w.life.gone {
			end = w.life.ended
		}
		gpuTime += time.Duration(w.gpus) * (end - w.life.began)
	}
	out.GPUHours = math.Round(gpuTime.Hours()*1e6) / 1e6
}

// writePlanned writes the figures of planning as text.
func (r *Result) writePlanned(b *strings.Builder) {
	if len(r.Replicas) == 0 {
		return
	}
	fmt.Fprintf(b, "%.3f GPU hours; %s", r.GPUHours, rangeOf(r.Replicas))
	if len(r.PrefillReplicas) > 0 {
		fmt.Fprintf(b, " that decode, and %s that only prefill", rangeOf(r.PrefillReplicas))
	}
	b.WriteString("\n\n")
}

// rangeOf describes the numbers of ready engines of a series that is not empty.
func rangeOf(series []Replicas) string {
	byReady := func(a, b Replicas) int { return a.Ready - b.Ready }
	return fmt.Sprintf("%d to %d ready engines", slices.MinFunc(series, byReady).Ready, slices.MaxFunc(series, byReady).Ready)
}
