package plan

import (
	"cmp"
	"math"
	"slices"

	"github.com/stator-project/stator/internal/fleet"
)

const (
	// evenWeight is the weight of each worker of a pool whose workers are alike.
	evenWeight = 100
	// mostShift bounds the effect of load: a worker gets at least a quarter of its configured share, and at most four times as much.
	mostShift = 4
	// minChange is the least relative change of a weight that is published. Each change makes every Envoy rebuild a load balancer.
	minChange = 0.2
)

// Weights returns the share of traffic that each worker should get if no router decides, from its load, sorted by name. last has
// the weights that are in force: a weight changes only if it would differ from its last one by more than 20 %. Workers that are
// neither ready nor starting are left out; the caller adds the workers that it drains.
//
// In each pool, a worker's weight is its configured one, times the square root of its headroom: the mean load over its own load,
// times its speed over the mean speed. Load is requests that run or wait, and speed is tokens per second of one answer. A worker that
// is twice as loaded as the mean gets 0.7 of its share. The root damps the control loop. Without it, a plan would move all of the
// difference to the other workers, and the next plan would move it back. A worker whose load is not known has the mean headroom.
func Weights(workers []Worker, last []Planned) []Planned {
	before := make(map[string]uint32, len(last))
	for _, p := range last {
		before[p.Name] = p.Weight
	}
	pools := map[poolKey][]*Worker{}
	for i := range workers {
		w := &workers[i]
		if w.State == fleet.Ready || w.State == fleet.Starting {
			key := poolKey{w.Model, w.Role}
			pools[key] = append(pools[key], w)
		}
	}

	var out []Planned
	for _, pool := range pools {
		// Sums of floats depend on their order, and plans must not depend on the order of the workers.
		slices.SortFunc(pool, func(a, b *Worker) int { return cmp.Compare(a.Name, b.Name) })
		even := meansOf(pool)
		for _, w := range pool {
			out = append(out, Planned{Name: w.Name, Weight: damped(even.weight(w), before[w.Name])})
		}
	}
	slices.SortFunc(out, func(a, b Planned) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

type poolKey struct {
	model string
	role  fleet.Role
}

// means has the means of a pool's workers. A mean of nothing is 0.
type means struct {
	load, speed float64 // of the workers whose load, or speed, is known
	scale       float64 // of configured weights
}

func meansOf(pool []*Worker) (m means) {
	loads, speeds := 0, 0
	sum, most := 0.0, 1.0
	for _, w := range pool {
		sum += configured(w)
		most = max(most, configured(w))
		if w.Load == nil {
			continue
		}
		loads++
		m.load += loadOf(w)
		if speed := speedOf(w); speed > 0 {
			speeds++
			m.speed += speed
		}
	}

	m.load /= float64(max(1, loads))
	m.speed /= float64(max(1, speeds))
	// Four times the largest share must still be a weight.
	m.scale = min(evenWeight*float64(len(pool))/sum, fleet.MaxWeight/(mostShift*most))
	return m
}

// weight returns the weight of a worker of the pool, before it is rounded.
func (m means) weight(w *Worker) float64 {
	base := configured(w) * m.scale
	if w.Load == nil {
		return base
	}

	headroom := m.load / loadOf(w)
	if speed := speedOf(w); speed > 0 {
		headroom *= speed / m.speed
	}
	return base * min(mostShift, max(1.0/mostShift, math.Sqrt(headroom)))
}

// damped rounds a weight, and returns the last one instead if that differs by little; 0 is no last one. Half of a unit is added to the
// bound, because the last weight was rounded, too.
func damped(weight float64, last uint32) uint32 {
	if last > 0 && math.Abs(weight-float64(last)) <= minChange*float64(last)+0.5 {
		return last
	}
	return uint32(min(fleet.MaxWeight, max(1, math.Round(weight))))
}

// configured returns the configured weight of a worker.
func configured(w *Worker) float64 { return float64(max(w.Weight, fleet.DefaultWeight)) }

// loadOf returns the requests on a worker. One is added, so that idle workers have a share of finite size, and single requests
// count little.
func loadOf(w *Worker) float64 { return float64(w.Load.Running+w.Load.Waiting) + 1 }

// speedOf returns the tokens per second of one answer on a worker; 0 is unknown.
func speedOf(w *Worker) float64 {
	if w.Load.ITL <= 0 {
		return 0
	}
	return max(1, w.Load.StepTokens) / w.Load.ITL.Seconds()
}
