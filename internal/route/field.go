package route

import (
	"fmt"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// field is the ranks that may take a request, and why the others of its pool may not.
type field struct {
	// ranks are ready and not excluded by a hint. The first free of them are not busy.
	ranks []fleet.Rank
	free  int
	// facts lie beside ranks: the facts that judging needs of each rank's worker.
	facts []workerFacts
	// nodes has the number of each rank's node, or noNode. It is empty until numberNodes was called.
	nodes   []int32
	numbers map[string]int32 // of nodes
	// admitted is true if ranks has only ranks whose workers' health admits another request.
	admitted bool

	pool   int               // ranks in the pool, whatever their state; for an adapter, only the ranks that have it
	states [fleet.States]int // how many ranks that no hint excludes are in each state
	hint   exclusion         // the hint that excluded the ranks that came furthest; notExcluded if a rank passed
	cached poolMoment        // names the contents, if the next request may find the same
}

// poolMoment names the ready ranks of a pool at one moment. Most requests may go to all of
// them, and between most decisions nothing changes, so the field of the decision before can be used.
type poolMoment struct {
	snapshot *fleet.Snapshot
	pool     string
	role     fleet.Role
	adapter  *model // nil for a base model, whose requests may go to the whole pool
}

// workerFacts has the facts that judging needs of a worker. Workers lie apart in memory, and these do not.
type workerFacts struct {
	class  *learned
	blocks int // capacity of a rank
}

// usable returns the number of ranks to judge: the free ones, or all ranks if all are busy. A request that waits is
// judged too, for its expected wait.
func (f *field) usable() int {
	if f.free > 0 {
		return f.free
	}
	return len(f.ranks)
}

// finder finds the ranks that may take a request. It is safe for concurrent use.
type finder struct {
	fleet   *fleet.Fleet
	speeds  *speeds
	latches latches
}

// find finds the field of a request, in the memory of f. A rank must pass the request's hints, be ready, and not be busy.
func (e *finder) find(f *field, q *asked, now time.Time) *field {
	m := q.model
	snap := e.fleet.Snapshot()
	name := poolMoment{snap, m.Pool, q.role, nil}
	if m.Adapter != "" {
		name.adapter = m
	}
	restricted := q.isRestricted()
	inDoubt := e.fleet.AnyRestricted()
	cacheable := m != anyModel && !restricted && !m.Busy.isSet() && !inDoubt
	if cacheable && f.cached == name {
		return f
	}

	e.fill(f, snap, q, now, inDoubt)
	if len(f.ranks) == 0 && inDoubt { // all of them, and one may be back
		e.fill(f, snap, q, now, false)
	}
	f.loadFacts(e.speeds)
	if cacheable && f.free > 0 {
		f.cached = name
	}
	return f
}

// fill finds the ranks of a field: all, or only ranks whose workers' health admits another request.
func (e *finder) fill(f *field, snap *fleet.Snapshot, q *asked, now time.Time, onlyAdmitted bool) {
	m, restricted := q.model, q.isRestricted()
	*f = field{ranks: f.ranks[:0], facts: f.facts[:0], nodes: f.nodes[:0], numbers: f.numbers, admitted: onlyAdmitted}
	holders := loaded{model: m}
	for _, rank := range ranksFor(m, snap, q.role) {
		if m == anyModel && rank.Worker.Role != q.role || !holders.mayTake(rank.Worker) {
			continue
		}
		f.pool++
		hint := notExcluded
		if restricted {
			hint = q.excludes(&rank)
		}
		f.hint = max(f.hint, hint)
		if hint != notExcluded {
			continue
		}

		f.states[min(rank.Worker.State, fleet.States-1)]++
		if rank.Worker.State != fleet.Ready || onlyAdmitted && !admits(&rank, rank.Load.Booked().Requests, now) {
			continue
		}
		f.add(rank, !e.isBusy(&m.Busy, &rank, now))
	}
}

// admits reports whether the health of a rank's worker admits another request beside the booked ones.
func admits(rank *fleet.Rank, booked int64, now time.Time) bool {
	return rank.Load.Health().Admits(booked, now)
}

// add appends a ready rank. Free ranks stand in front of busy ones.
func (f *field) add(rank fleet.Rank, free bool) {
	f.ranks = append(f.ranks, rank)
	if !free {
		return
	}
	last := len(f.ranks) - 1
	f.ranks[f.free], f.ranks[last] = f.ranks[last], f.ranks[f.free]
	f.free++
}

// loadFacts fills facts for the ranks. Neighbours are mostly of one class, so the look-up of the class
// before is used again.
func (f *field) loadFacts(s *speeds) {
	f.facts = slices.Grow(f.facts, len(f.ranks))[:len(f.ranks)]
	for i := range f.ranks {
		worker := f.ranks[i].Worker
		f.facts[i].blocks = worker.Blocks
		if i > 0 && classOf(f.ranks[i-1].Worker) == classOf(worker) {
			f.facts[i].class = f.facts[i-1].class
			continue
		}
		f.facts[i].class = s.of(worker)
	}
}

// noNode is the number of a rank whose worker's name has no node.
const noNode = -1

// numberNodes numbers the nodes of the ranks from 0 on, and returns their number. Only requests whose prompt is in a
// store of KV blocks need them.
func (f *field) numberNodes() int {
	if len(f.nodes) == len(f.ranks) {
		return len(f.numbers)
	}
	if f.numbers == nil {
		f.numbers = map[string]int32{}
	}
	clear(f.numbers)
	for i := range f.ranks {
		node := fleet.NodeOf(f.ranks[i].Worker.Name)
		number, known := f.numbers[node]
		switch {
		case node == "":
			number = noNode
		case !known:
			number = int32(len(f.numbers))
			f.numbers[node] = number
		}
		f.nodes = append(f.nodes, number)
	}
	return len(f.numbers)
}

// leastWait returns the time that the quickest of the ranks needs for the prefills that are booked there.
func (f *field) leastWait(now time.Time) time.Duration {
	least := time.Duration(-1)
	for i := range f.ranks {
		if wait := f.ranks[i].Load.Wait(now); least < 0 || wait < least {
			least = wait
		}
	}
	return least
}

// stateSummary counts the ranks that no hint excludes by state, such as "2 starting, 1 down".
func (f *field) stateSummary() string {
	text := ""
	for state, n := range f.states {
		if n > 0 {
			text += fmt.Sprintf(", %d %s", n, fleet.State(state))
		}
	}
	if text == "" {
		return ""
	}
	return text[len(", "):]
}

// ranksFor returns the ranks that serve a model in a role, whatever their state.
func ranksFor(m *model, snap *fleet.Snapshot, role fleet.Role) []fleet.Rank {
	if m == anyModel {
		return snap.Ranks
	}
	return snap.Pool(m.Pool, role)
}
