package fleet

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Hooks are functions that the fleet calls at changes, in order, while its lock is held. They must not call
// methods that change the fleet, but they may read its snapshot.
type Hooks struct {
	// RankGone means that all state of id is void and that the id will be used again. It is called after
	// the snapshot without the rank was published. So code that checks the snapshot under a lock that the
	// hook takes too never stores state of a dead rank. It is called once more before the id is used again,
	// to clear the state that other code may have stored meanwhile. May be nil.
	RankGone func(id RankID)
}

// Fleet owns the membership. Create it with [New].
type Fleet struct {
	hooks Hooks
	snap  atomic.Pointer[Snapshot]
	// restricted counts the workers, and ranks of workers, that should not get every request: see Health.Admits.
	restricted atomic.Int64

	mu      sync.Mutex
	members map[string]*member // guarded by mu
	sorted  []*member          // guarded by mu; members by name
	planned map[string]Planned // guarded by mu; the entries of the last plan, by name
	// withheld are the workers and nodes that operators have drained.
	withheld map[string]bool // guarded by mu; replaced, not changed
	free     []RankID        // guarded by mu; oldest first
	next     RankID          // guarded by mu
	changed  chan struct{}   // guarded by mu; closed and replaced at each change
	// reshaped means that the last snapshot has other names or numbers of ranks than the members. Guarded by mu.
	reshaped bool
}

// member is a worker as its source describes it, with the id and the load of each of its ranks, by rank number.
type member struct {
	worker Worker
	shown  *Worker // in the last snapshot; the next one has it, too, if nothing has changed
	health *Health
	ids    []RankID
	loads  []*Load
}

// New returns an empty fleet.
func New(h Hooks) *Fleet {
	if h.RankGone == nil {
		h.RankGone = func(RankID) {}
	}
	f := &Fleet{hooks: h, members: map[string]*member{}, changed: make(chan struct{})}
	f.snap.Store(&Snapshot{pools: map[poolKey][]Rank{}})
	return f
}

// AnyRestricted reports whether there are workers that should not get every request.
func (f *Fleet) AnyRestricted() bool { return f.restricted.Load() > 0 }

// Snapshot returns the membership now.
func (f *Fleet) Snapshot() *Snapshot { return f.snap.Load() }

// Changed returns a channel that is closed at the next change of membership. Take it before
// the snapshot, or a change between the two is missed.
func (f *Fleet) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// Put adds the worker or replaces the one of its name, and reports whether that changed anything. The
// ranks keep their ids and loads if the epoch, the number of ranks and the model are the same:
//
//	worker of that name        ids and loads
//	none                       new
//	equal in all               kept, and nothing changes
//	same epoch, ranks, model   kept
//	otherwise                  new; RankGone is called for the old ones
//
// Its state and weight are the ones that its source reports. Snapshots have the state and weight that follow from these, from its [Health],
// and from the last plan: see [Fleet.SetPlanned].
func (f *Fleet) Put(w Worker) (changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.putLocked(w)
}

func (f *Fleet) putLocked(w Worker) (changed bool, err error) {
	w.unplanned()
	if w.Weight == 0 {
		w.Weight = DefaultWeight
	}
	if err := w.Validate(); err != nil {
		return false, err
	}
	w.place = PlaceOf(w.Taints)

	old := f.members[w.Name]
	if old != nil && old.worker == w {
		return false, nil
	}

	m := &member{worker: w}
	if old != nil && old.worker.Epoch == w.Epoch && old.worker.Ranks == w.Ranks && old.worker.Model == w.Model {
		m.ids, m.loads = old.ids, old.loads
		m.health, m.shown = old.health, old.shown
		if w.Unleased.IsZero() && !old.worker.Unleased.IsZero() {
			m.health.trust(old.worker.Unleased)
		}
		old = nil // nothing to release
	} else {
		f.reshaped = true
		m.health = newHealth(w.firstHealth(), &f.restricted)
		for range w.Ranks {
			m.ids = append(m.ids, f.allocateLocked())
			load := &Load{health: m.health}
			if w.Ranks > 1 {
				load.rank = newHealth(HealthReady, &f.restricted)
				load.rank.ofRank = true
			}
			m.loads = append(m.loads, load)
		}
	}
	f.placeLocked(w.Name, m)
	f.publishLocked()
	f.releaseLocked(old)
	return true, nil
}

// Update changes a worker by a function, which must not change its name. It returns false if there is no such worker, or nothing changes.
// Unlike Put after a look at a snapshot, it cannot undo another change.
func (f *Fleet) Update(name string, change func(w *Worker)) (changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[name]
	if m == nil {
		return false, nil
	}
	w := m.worker
	change(&w)
	return f.putLocked(w)
}

// ObserveProbe records the answer of a worker's engine when it was asked for its health, and returns the worker's health before and after.
// ok is false if there is no such worker at that address (any more).
func (f *Fleet) ObserveProbe(name, address string, p Probe, now time.Time) (before, after HealthView, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[name]
	if m == nil || m.worker.Address != address {
		return before, after, false
	}

	before = m.health.View()
	m.health.observeProbe(p, f.stayLocked(&m.worker), now)
	after = m.health.View()
	if f.shownLocked(m).State != m.shown.State {
		f.publishLocked()
	}
	return before, after, true
}

// stayLocked reports whether a silent worker must stay, by the others of the same model and role. Workers that are
// starting or draining do not count.
func (f *Fleet) stayLocked(w *Worker) stay {
	all, ready := 1, 0
	for _, r := range f.snap.Load().Pool(w.Model, w.Role) {
		if r.Number > 0 || r.Worker.Name == w.Name {
			continue
		}
		switch r.Worker.State {
		case Ready:
			all++
			ready++
		case Down:
			all++
		}
	}

	switch {
	case ready == 0:
		return staysLast
	case 2*ready < all:
		return staysAside
	}
	return mayLeave
}

// SetState changes only the state of a worker; false means that there is no such worker or
// that it was in that state already.
func (f *Fleet) SetState(name string, s State) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[name]
	if m == nil || m.worker.State == s {
		return false
	}
	m.worker.State = s
	f.publishLocked()
	return true
}

// Remove forgets the worker; false means that there was none of that name.
func (f *Fleet) Remove(name string) bool { return f.removeIf(name, func(*Worker) bool { return true }) }

// RemoveUnleased forgets the worker unless its lease is current; false means that it stays, or that there was none.
func (f *Fleet) RemoveUnleased(name string) bool {
	return f.removeIf(name, func(w *Worker) bool { return !w.Unleased.IsZero() })
}

// removeIf forgets a worker that match accepts.
func (f *Fleet) removeIf(name string, match func(w *Worker) bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[name]
	if m == nil || !match(&m.worker) {
		return false
	}
	f.placeLocked(name, nil)
	f.reshaped = true
	f.publishLocked()
	f.releaseLocked(m)
	return true
}

// releaseLocked returns the ids of a member that is gone; nil for none.
func (f *Fleet) releaseLocked(m *member) {
	if m == nil {
		return
	}
	m.health.retire()
	for _, l := range m.loads {
		if l.rank != nil {
			l.rank.retire()
		}
	}
	for _, id := range m.ids {
		f.hooks.RankGone(id)
		f.free = append(f.free, id)
	}
}

// allocateLocked returns the id that has been free for the longest time, or a new one. Late messages about
// its former rank are then least likely.
func (f *Fleet) allocateLocked() RankID {
	if len(f.free) > 0 {
		id := f.free[0]
		f.free = f.free[1:]
		f.hooks.RankGone(id)
		return id
	}
	f.next++
	return f.next - 1
}

// refreshLocked brings the workers that snapshots have up to date, and reports whether that changed any. Workers without a change
// keep their address in memory, so that readers can find the others by comparing pointers.
func (f *Fleet) refreshLocked() (changed bool) {
	for _, m := range f.sorted {
		if w := f.shownLocked(m); m.shown == nil || *m.shown != w {
			shown := w // a copy, so that w itself needs no memory on the heap
			m.shown = &shown
			changed = true
		}
	}
	return changed
}

// publishLocked makes the snapshot of the members, and ends the waits on Changed.
func (f *Fleet) publishLocked() {
	f.refreshLocked()
	f.assembleLocked()
}

// assembleLocked makes the snapshot of the members as the last refresh left them, and ends the waits on Changed.
func (f *Fleet) assembleLocked() {
	last := f.snap.Load()
	s := &Snapshot{
		Version: last.Version + 1, Workers: make([]*Worker, 0, len(f.sorted)), Ranks: make([]Rank, 0, len(last.Ranks)),
		pools: make(map[poolKey][]Rank, len(last.pools)), first: last.first,
	}
	if f.reshaped {
		s.first = make(map[string]int, len(f.sorted))
	}

	for _, m := range f.sorted {
		s.Workers = append(s.Workers, m.shown)
		if f.reshaped {
			s.first[m.shown.Name] = len(s.Ranks)
		}

		key := poolKey{m.shown.Model, m.shown.Role}
		from := len(s.Ranks)
		for i, id := range m.ids {
			s.Ranks = append(s.Ranks, Rank{ID: id, Number: i, Worker: m.shown, Load: m.loads[i]})
			s.MaxRank = max(s.MaxRank, int(id)+1)
		}
		s.pools[key] = append(s.pools[key], s.Ranks[from:]...)
	}

	f.reshaped = false
	f.snap.Store(s)
	close(f.changed)
	f.changed = make(chan struct{})
}

// placeLocked puts a member in the place of the one of its name, or adds it. Nil removes the one of that name.
func (f *Fleet) placeLocked(name string, m *member) {
	i, found := slices.BinarySearchFunc(f.sorted, name, func(m *member, name string) int { return strings.Compare(m.worker.Name, name) })
	switch {
	case m == nil && found:
		f.sorted = slices.Delete(f.sorted, i, i+1)
		delete(f.members, name)
	case m == nil:
	case found:
		f.sorted[i] = m
		f.members[name] = m
	default:
		f.sorted = slices.Insert(f.sorted, i, m)
		f.members[name] = m
	}
}
