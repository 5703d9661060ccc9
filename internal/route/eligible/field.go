package eligible

import (
	"fmt"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// Field is the ranks that may take a request, and why the others of its pool may not.
type Field struct {
	// Ranks are ready and not excluded by a hint. The first free of them are not busy.
	Ranks []fleet.Rank
	Free  int
	// Facts lie beside ranks: the facts that judging needs of each rank's worker.
	Facts []workerFacts
	// Nodes has the number of each rank's node, or NoNode. It is empty until NumberNodes was called.
	Nodes   []int32
	numbers map[string]int32 // of nodes
	// Sites has the number of each rank's site. It is empty until NumberSites was called.
	Sites    []int32
	distinct []fleet.Site // by number
	sited    map[fleet.Site]int32
	// Fleet is the snapshot from which they are.
	Fleet *fleet.Snapshot
	// Admitted is true if ranks has only ranks whose workers' health admits another request.
	Admitted bool

	pool   int               // ranks in the pool, whatever their state; for an adapter, only the ranks that have it
	states [fleet.States]int // how many ranks that no hint excludes are in each state
	hint   request.Exclusion // the hint that excluded the ranks that came furthest; notExcluded if a rank passed
	cached poolMoment        // names the contents, if the next request may find the same
}

// poolMoment names the ready ranks of a pool at one moment. Most requests may go to all of
// them, and between most decisions nothing changes, so the field of the decision before can be used.
type poolMoment struct {
	snapshot *fleet.Snapshot
	pool     string
	role     fleet.Role
	adapter  *serving.Model // nil for a base model, whose requests may go to the whole pool
}

// workerFacts has the facts that judging needs of a worker. Workers lie apart in memory, and these do not.
type workerFacts struct {
	Class  *learned.Class
	Blocks int // capacity of a rank
	Slots  int // requests that run at once by the engine's options; 0 if they are not known
}

// Usable returns the number of ranks to judge: the free ones, or all ranks if all are busy. A request that waits is
// judged too, for its expected wait.
func (f *Field) Usable() int {
	if f.Free > 0 {
		return f.Free
	}
	return len(f.Ranks)
}

// Finder finds the ranks that may take a request. It is safe for concurrent use.
type Finder struct {
	fleet   *fleet.Fleet
	speeds  *learned.Speeds
	latches latches
}

// NewFinder returns a finder of the ranks of a fleet. Each field has the learned values of its ranks' workers from speeds.
func NewFinder(f *fleet.Fleet, speeds *learned.Speeds) *Finder {
	return &Finder{fleet: f, speeds: speeds}
}

// Forget forgets a rank whose epoch is over, because its id will be used for another rank.
func (e *Finder) Forget(rank fleet.RankID) { e.latches.reset(rank) }

// Find finds the field of a request, in the memory of f. A rank must pass the request's hints, be ready, and not be busy.
func (e *Finder) Find(f *Field, q *request.Prepared, now time.Time) *Field {
	m := q.Model
	snap := e.fleet.Snapshot()
	name := poolMoment{snap, m.Pool, q.Role, nil}
	if m.Adapter != "" {
		name.adapter = m
	}
	restricted := q.IsRestricted()
	inDoubt := e.fleet.AnyRestricted()
	cacheable := m != serving.Any && !restricted && !m.Busy.IsSet() && !inDoubt
	if cacheable && f.cached == name {
		return f
	}

	e.fill(f, snap, q, now, inDoubt)
	if len(f.Ranks) == 0 && inDoubt { // all of them, and one may be back
		e.fill(f, snap, q, now, false)
	}
	f.loadFacts(e.speeds)
	if cacheable && f.Free > 0 {
		f.cached = name
	}
	return f
}

// fill finds the ranks of a field: all, or only ranks whose workers' health admits another request.
func (e *Finder) fill(f *Field, snap *fleet.Snapshot, q *request.Prepared, now time.Time, onlyAdmitted bool) {
	m, restricted := q.Model, q.IsRestricted()
	*f = Field{
		Ranks: f.Ranks[:0], Facts: f.Facts[:0], Nodes: f.Nodes[:0], numbers: f.numbers, Fleet: snap, Admitted: onlyAdmitted,
		Sites: f.Sites[:0], distinct: f.distinct, sited: f.sited,
	}
	holders := Holders{Model: m}
	for _, rank := range RanksFor(m, snap, q.Role) {
		if m == serving.Any && rank.Worker.Role != q.Role || !holders.MayTake(rank.Worker) {
			continue
		}
		f.pool++
		hint := request.NotExcluded
		if restricted {
			hint = q.Excludes(&rank)
		}
		f.hint = max(f.hint, hint)
		if hint != request.NotExcluded {
			continue
		}

		f.states[min(rank.Worker.State, fleet.States-1)]++
		if rank.Worker.State != fleet.Ready || onlyAdmitted && !Admits(&rank, rank.Load.Booked().Requests, now) {
			continue
		}
		f.addRank(rank, !e.isBusy(&m.Busy, &rank, now))
	}
}

// Admits reports whether the health of a rank's worker admits another request beside the booked ones.
func Admits(rank *fleet.Rank, booked int64, now time.Time) bool {
	return rank.Load.Admits(booked, now)
}

// Keep leaves the ranks for which keep returns true.
func (f *Field) Keep(keep func(rank *fleet.Rank) bool) {
	kept, free := 0, 0
	for i := range f.Ranks {
		if !keep(&f.Ranks[i]) {
			continue
		}
		if i < f.Free {
			free++
		}
		f.Ranks[kept] = f.Ranks[i]
		f.Facts[kept] = f.Facts[i]
		kept++
	}
	f.Ranks = f.Ranks[:kept]
	f.Facts = f.Facts[:kept]
	f.Free = free
	f.Nodes, f.Sites = f.Nodes[:0], f.Sites[:0]
	f.cached = poolMoment{} // the next request finds its own
}

// addRank appends a ready rank. Free ranks stand in front of busy ones.
func (f *Field) addRank(rank fleet.Rank, free bool) {
	f.Ranks = append(f.Ranks, rank)
	if !free {
		return
	}
	last := len(f.Ranks) - 1
	f.Ranks[f.Free], f.Ranks[last] = f.Ranks[last], f.Ranks[f.Free]
	f.Free++
}

// loadFacts fills facts for the ranks. Neighbours are mostly of one class, so the look-up of the class
// before is used again.
func (f *Field) loadFacts(s *learned.Speeds) {
	f.Facts = slices.Grow(f.Facts, len(f.Ranks))[:len(f.Ranks)]
	for i := range f.Ranks {
		worker := f.Ranks[i].Worker
		f.Facts[i].Blocks, f.Facts[i].Slots = worker.Blocks, worker.Slots()
		if i > 0 && learned.ClassOf(f.Ranks[i-1].Worker) == learned.ClassOf(worker) {
			f.Facts[i].Class = f.Facts[i-1].Class
			continue
		}
		f.Facts[i].Class = s.Of(worker)
	}
}

// NoNode is the number of a rank whose worker's name has no node.
const NoNode = -1

// NumberNodes numbers the nodes of the ranks from 0 on, and returns their number. Only requests whose prompt is in a
// store of KV blocks need them.
func (f *Field) NumberNodes() int {
	if len(f.Nodes) == len(f.Ranks) {
		return len(f.numbers)
	}
	if f.numbers == nil {
		f.numbers = map[string]int32{}
	}
	clear(f.numbers)
	for i := range f.Ranks {
		node := fleet.NodeOf(f.Ranks[i].Worker.Name)
		number, known := f.numbers[node]
		switch {
		case node == "":
			number = NoNode
		case !known:
			number = int32(len(f.numbers))
			f.numbers[node] = number
		}
		f.Nodes = append(f.Nodes, number)
	}
	return len(f.numbers)
}

// NumberSites numbers the sites of the ranks from 0 on, and returns them. Only requests whose KV cache may come from another worker need
// them.
func (f *Field) NumberSites() []fleet.Site {
	if len(f.Sites) == len(f.Ranks) {
		return f.distinct
	}
	if f.sited == nil {
		f.sited = map[fleet.Site]int32{}
	}
	clear(f.sited)
	f.Sites, f.distinct = f.Sites[:0], f.distinct[:0]
	for i := range f.Ranks {
		site := f.Ranks[i].Worker.Site()
		if i > 0 && site == f.distinct[f.Sites[i-1]] { // neighbours often share their site
			f.Sites = append(f.Sites, f.Sites[i-1])
			continue
		}
		number, known := f.sited[site]
		if !known {
			number = int32(len(f.distinct))
			f.sited[site] = number
			f.distinct = append(f.distinct, site)
		}
		f.Sites = append(f.Sites, number)
	}
	return f.distinct
}

// SitesMatter reports whether it depends on the ranks which others they exchange KV caches with, or in which time: a place is known, or
// they are of several revisions.
func (f *Field) SitesMatter() bool {
	sites := f.NumberSites()
	return len(sites) > 1 || len(sites) == 1 && sites[0].Place.IsKnown()
}

// leastWait returns the time that the quickest of the ranks needs for the prefills that are booked there.
func (f *Field) leastWait(now time.Time) time.Duration {
	least := time.Duration(-1)
	for i := range f.Ranks {
		if wait := f.Ranks[i].Load.Wait(now); least < 0 || wait < least {
			least = wait
		}
	}
	return least
}

// stateSummary counts the ranks that no hint excludes by state, such as "2 starting, 1 down".
func (f *Field) stateSummary() string {
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

// RanksFor returns the ranks that serve a model in a role, whatever their state.
func RanksFor(m *serving.Model, snap *fleet.Snapshot, role fleet.Role) []fleet.Rank {
	if m == serving.Any {
		return snap.Ranks
	}
	return snap.Pool(m.Pool, role)
}
