package eligible

import (
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// rankSet is a set of ranks of one snapshot: a bit for each RankID.
type rankSet []uint64

// reset returns an empty set with room for ids below most, in the memory of s.
func (s rankSet) reset(most int) rankSet {
	words := (most + 63) / 64
	if cap(s) < words {
		return make(rankSet, words)
	}
	s = s[:words]
	clear(s)
	return s
}

func (s rankSet) add(id fleet.RankID)    { s[id/64] |= 1 << (id % 64) }
func (s rankSet) remove(id fleet.RankID) { s[id/64] &^= 1 << (id % 64) }

// intersects reports whether a rank is in both sets, which must be of one snapshot.
func (s rankSet) intersects(other rankSet) bool {
	for i := range s {
		if s[i]&other[i] != 0 {
			return true
		}
	}
	return false
}

// LaneRanks is the ranks that a waiting request may go to, as long as the fleet does not change. The requests of a lane have the same, so
// only requests at a lane's head need theirs.
type LaneRanks struct {
	snapshot *fleet.Snapshot
	ranks    rankSet
	isEmpty  bool
}

// resolve finds the ranks of a model that the hints allow.
func (l *LaneRanks) resolve(snap *fleet.Snapshot, m *serving.Model, h *request.Hints) {
	l.snapshot = snap
	l.ranks = l.ranks.reset(snap.MaxRank)
	l.isEmpty = true

	pool := RanksFor(m, snap, h.Role)
	if h.Worker != "" {
		pool = ranksOf(snap, h.Worker)
	}
	holders := Holders{Model: m}
	next := 0 // in h.allowed, which is sorted as the pool is
	for i := range pool {
		rank := &pool[i]
		for next < len(h.Allowed) && h.Allowed[next] < rank.Worker.Name {
			next++
		}
		if len(h.Allowed) > 0 && (next == len(h.Allowed) || h.Allowed[next] != rank.Worker.Name) {
			continue
		}
		serves := rank.Worker.Model == m.Pool && rank.Worker.Role == h.Role && holders.MayTake(rank.Worker)
		if serves && h.Excludes(rank) == request.NotExcluded {
			l.ranks.add(rank.ID)
			l.isEmpty = false
		}
	}
}

// ranksOf returns the ranks of one worker. It searches the sorted ranks and does not walk the fleet,
// because there may be many lanes.
func ranksOf(snap *fleet.Snapshot, worker string) []fleet.Rank {
	at, ok := slices.BinarySearchFunc(snap.Ranks, worker, func(r fleet.Rank, name string) int {
		return strings.Compare(r.Worker.Name, name)
	})
	if !ok {
		return nil
	}
	end := at
	for end < len(snap.Ranks) && snap.Ranks[end].Worker.Name == worker {
		end++
	}
	return snap.Ranks[at:end]
}

// OpenRanks is the ranks that are free while a queue is drained. It is found once for all lanes, because there
// may be many, and then follows the bookings.
type OpenRanks struct {
	finder   *Finder
	snapshot *fleet.Snapshot
	now      time.Time

	pool *serving.Model // whose ranks were found; nil before
	free rankSet
}

// Begin forgets the ranks that were found, and keeps the memory.
func (o *OpenRanks) Begin(e *Finder, now time.Time) {
	*o = OpenRanks{finder: e, snapshot: e.fleet.Snapshot(), now: now, free: o.free}
}

// find finds the ready ranks of a model's pool that are not busy.
func (o *OpenRanks) find(m *serving.Model) {
	o.pool = m
	o.free = o.free.reset(o.snapshot.MaxRank)
	for role := fleet.Aggregated; role <= fleet.Encode; role++ {
		ranks := o.snapshot.Pool(m.Pool, role)
		for i := range ranks {
			o.update(&ranks[i])
		}
	}
}

// update adds or removes a rank by its state and its load now.
func (o *OpenRanks) update(rank *fleet.Rank) {
	if rank.Worker.State == fleet.Ready && !o.finder.isBusy(&o.pool.Busy, rank, o.now) {
		o.free.add(rank.ID)
	} else {
		o.free.remove(rank.ID)
	}
}

// Snapshot returns the fleet in which the ranks were found.
func (o *OpenRanks) Snapshot() *fleet.Snapshot { return o.snapshot }

// Booked updates the rank of a worker on which a request was just booked.
func (o *OpenRanks) Booked(worker string, number int) {
	if rank, ok := o.snapshot.Rank(worker, number); ok && o.pool != nil {
		o.update(&rank)
	}
}

// CanGo reports whether a decision for a request for the model would be final: a rank of its lane is free, or the pool has no
// rank for it any more, so that it will be refused. It is cheaper than a decision, and is called for the head of each lane
// whenever the queue is drained.
func (o *OpenRanks) CanGo(m *serving.Model, l *LaneRanks, h *request.Hints) bool {
	if o.pool == nil || o.pool.Pool != m.Pool { // models of one pool have the same thresholds
		o.find(m)
	}
	if l.snapshot != o.snapshot {
		l.resolve(o.snapshot, m, h)
	}
	return l.isEmpty || l.ranks.intersects(o.free)
}
