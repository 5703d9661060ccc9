package local

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// worker is a worker of the fleet, as far as assignments depend on it.
type worker struct {
	model string
	role  fleet.Role
	state fleet.State
	// booked is the number of requests that routers have booked; negative where that is not known.
	booked int64
}

// memory is the state that is kept between two assignments, by worker. It belongs to one goroutine.
type memory struct {
	ready    map[string]time.Time // since when a worker is ready
	down     map[string]time.Time // when a worker was first seen down, unless it has been ready since
	outside  map[string]time.Time // since when a worker is in no slot
	assigned map[string]bool      // the workers of the last assignments
}

// newMemory returns a memory of nothing.
func newMemory() *memory {
	return &memory{ready: map[string]time.Time{}, down: map[string]time.Time{}, outside: map[string]time.Time{},
		assigned: map[string]bool{}}
}

// downLong is the time that a worker may be down before another slot is used instead, if there is
// one.
const downLong = time.Minute

// slotsKnown is after how long the slots of a new agent are known. Its workers may be known before.
const slotsKnown = 5 * time.Second

// forgetFailure is the time for which a slot whose engine has failed is the last choice.
const forgetFailure = 10 * time.Minute

// observe records the states of workers. Workers that are gone and in no slot are forgotten.
func (m *memory) observe(slots []bus.Slots, workers map[string]worker, now time.Time) {
	inSlot := map[string]bool{}
	for i := range slots {
		for k := range slots[i].Slots {
			inSlot[slots[i].Slots[k].Name] = true
		}
	}
	for name, since := range m.down {
		if _, there := workers[name]; !there && (!inSlot[name] || now.Sub(since) >= forgetFailure) {
			delete(m.down, name)
		}
	}

	for name := range m.outside {
		if _, there := workers[name]; !there || inSlot[name] {
			delete(m.outside, name)
		}
	}
	for name := range workers {
		if _, known := m.outside[name]; !known && !inSlot[name] {
			m.outside[name] = now
		}
	}

	for name := range m.ready {
		if workers[name].state != fleet.Ready {
			delete(m.ready, name)
		}
	}
	for name, w := range workers {
		switch w.state {
		case fleet.Ready:
			delete(m.down, name)
			if _, known := m.ready[name]; !known {
				m.ready[name] = now
			}
		case fleet.Down:
			if _, known := m.down[name]; !known {
				m.down[name] = now
			}
		}
	}
}

// isDownLong reports whether a worker has not been ready for a long time because it fails. One that takes long to start has not failed.
func (m *memory) isDownLong(name string, now time.Time) bool {
	since, isDown := m.down[name]
	return isDown && now.Sub(since) >= downLong
}

// The preference for slots, the best first. Running ones are kept: their caches are worth more than a better place.
const (
	preferReady    = iota
	preferStarting // started or asked for, and not known to fail
	preferDraining // it comes back with its cache
	preferDown     // for less than downLong
	preferFree
	preferDownLong
	preferDrained // the plan names it as one to end
	preferFailed  // it does not run, and has failed when it did
	preferences
)

// candidate is a slot of a pool.
type candidate struct {
	node, name string
	index      int // in the slots of its node
	preference int
	ready      time.Time // since when its worker is ready
}

// assign returns the workers that should run, by node, for a plan. Nodes are the nodes of slots. Slots whose pool is in no plan stay as
// they are.
func assign(p *plan.Plan, slots []bus.Slots, workers map[string]worker, m *memory, now time.Time) map[string][]string {
	run := make(map[string][]string, len(slots))
	for i := range slots {
		run[slots[i].Node] = nil
	}
	planned := map[string]bool{}
	for i := range p.Pools {
		pool := &p.Pools[i]
		planned[poolOf(pool.Model, pool.Role)] = true
		candidates := candidatesOf(pool, slots, workers, m, now)
		choose(candidates, replicas(pool, candidates, slots, workers, m, now), run)
	}

	for i := range slots {
		for _, s := range slots[i].Slots {
			if s.Running && !planned[poolOf(s.Model, s.Role)] {
				run[slots[i].Node] = append(run[slots[i].Node], s.Name)
			}
		}
	}
	for _, names := range run {
		slices.Sort(names)
	}
	return run
}

// poolOf names a pool.
func poolOf(model string, role fleet.Role) string { return role.String() + " " + model }

// candidatesOf returns the slots of a pool.
func candidatesOf(pool *plan.Pool, slots []bus.Slots, workers map[string]worker, m *memory, now time.Time) (all []candidate) {
	drained := drainedBy(pool)
	for i := range slots {
		for k, s := range slots[i].Slots {
			if s.Model != pool.Model || s.Role != pool.Role {
				continue
			}
			all = append(all, candidate{
				node: slots[i].Node, name: s.Name, index: k, ready: m.ready[s.Name],
				preference: m.preference(s, workers, drained[s.Name], now),
			})
		}
	}
	return all
}

// preference returns the preference for a slot.
func (m *memory) preference(s bus.Slot, workers map[string]worker, drained bool, now time.Time) int {
	w, known := workers[s.Name]
	_, failed := m.down[s.Name]
	if !s.Running && !m.assigned[s.Name] {
		if failed {
			return preferFailed
		}
		return preferFree
	}

	switch {
	case drained:
		return preferDrained
	case m.isDownLong(s.Name, now):
		return preferDownLong
	case failed:
		return preferDown
	case known && w.state == fleet.Ready:
		return preferReady
	case known && w.state == fleet.Draining:
		return preferDraining
	}
	return preferStarting
}

// drainedBy returns the workers that the plan of a pool drains.
func drainedBy(pool *plan.Pool) map[string]bool {
	out := map[string]bool{}
	for i := range pool.Workers {
		if pool.Workers[i].Drain {
			out[pool.Workers[i].Name] = true
		}
	}
	return out
}

// replicas returns how many slots of a pool should run: as many as the plan asks for, less the workers in no slot. Those may be workers
// of an agent whose slots arrive in a moment and have to end then, so for a short time no worker that runs ends because of them.
func replicas(pool *plan.Pool, candidates []candidate, slots []bus.Slots, workers map[string]worker, m *memory, now time.Time) int {
	all, settled := others(pool, slots, workers, m, now)
	running := 0
	for _, c := range candidates {
		if c.preference <= preferStarting {
			running++
		}
	}
	return max(pool.Replicas-all, min(pool.Replicas-settled, running))
}

// others returns how many workers of a pool are in no slot, and serve or will: those that the configuration lists, and the slots of
// agents whose slots are not known yet. Settled ones have been so for longer than slots take to arrive.
func others(pool *plan.Pool, slots []bus.Slots, workers map[string]worker, m *memory, now time.Time) (all, settled int) {
	inSlot, drained := map[string]bool{}, drainedBy(pool)
	for i := range slots {
		for k := range slots[i].Slots {
			inSlot[slots[i].Slots[k].Name] = true
		}
	}
	for name, w := range workers {
		if w.model == pool.Model && w.role == pool.Role && !inSlot[name] && !drained[name] && w.state != fleet.Draining &&
			!m.isDownLong(name, now) {
			all++
			if now.Sub(m.outside[name]) >= slotsKnown {
				settled++
			}
		}
	}
	return all, settled
}

// choose adds n candidates to run: by preference, and free ones on the nodes that run the fewest engines.
func choose(candidates []candidate, n int, run map[string][]string) {
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.preference, b.preference), a.ready.Compare(b.ready), strings.Compare(a.node, b.node),
			cmp.Compare(a.index, b.index))
	})
	for preference := range preferences {
		var group []candidate
		for _, c := range candidates {
			if c.preference == preference {
				group = append(group, c)
			}
		}
		for ; n > 0 && len(group) > 0; n-- {
			best := 0
			if preference == preferFree || preference == preferFailed {
				best = leastBusy(group, run)
			}
			run[group[best].node] = append(run[group[best].node], group[best].name)
			group = slices.Delete(group, best, best+1)
		}
	}
}

// leastBusy returns the index of the first candidate on the node with the fewest engines.
func leastBusy(group []candidate, run map[string][]string) (best int) {
	for i := range group {
		if len(run[group[i].node]) < len(run[group[best].node]) {
			best = i
		}
	}
	return best
}

// booked returns which of the workers that drain have requests booked by routers, and which have none. Both are sorted.
func booked(s *bus.Slots, run []string, workers map[string]worker) (busy, free []string) {
	for i := range s.Slots {
		name := s.Slots[i].Name
		w, known := workers[name]
		if !known || slices.Contains(run, name) {
			continue
		}
		switch {
		case w.booked > 0:
			busy = append(busy, name)
		case w.booked == 0:
			free = append(free, name)
		}
	}
	slices.Sort(busy)
	slices.Sort(free)
	return busy, free
}
