package route

import (
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
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

// laneRanks is the ranks that a waiting request may go to, as long as the fleet does not change. The requests of a lane have the same, so
// only requests at a lane's head need theirs.
type laneRanks struct {
	snapshot *fleet.Snapshot
	ranks    rankSet
	isEmpty  bool
}

// resolve finds the ranks of a model that the hints allow.
func (l *laneRanks) resolve(snap *fleet.Snapshot, m *model, h *hints) {
	l.snapshot = snap
	l.ranks = l.ranks.reset(snap.MaxRank)
	l.isEmpty = true

	pool := m.ranks(snap, h.role)
	if h.worker != "" {
		pool = ranksOf(snap, h.worker)
	}
	holders := loaded{model: m}
	next := 0 // in h.allowed, which is sorted as the pool is
	for i := range pool {
		rank := &pool[i]
		for next < len(h.allowed) && h.allowed[next] < rank.Worker.Name {
			next++
		}
		if len(h.allowed) > 0 && (next == len(h.allowed) || h.allowed[next] != rank.Worker.Name) {
			continue
		}
		if rank.Worker.Model == m.Pool && rank.Worker.Role == h.role && h.excludes(rank) == notExcluded && holders.mayTake(rank.Worker) {
			l.ranks.add(rank.ID)
			l.isEmpty = false
		}
	}
}

// openRanks is the ranks that are free while a queue is drained. It is found once for all lanes, because there
// may be many, and then follows the bookings.
type openRanks struct {
	router   *Router
	models   map[string]*model
	snapshot *fleet.Snapshot
	now      time.Time

	pool *model // whose ranks were found; nil before
	free rankSet
}

// openRanks returns the free ranks of a queue's pool, in the queue's memory. wt.mu is held.
func (r *Router) openRanks(wt *waiting, now time.Time) *openRanks {
	o := &wt.open
	*o = openRanks{router: r, models: *r.models.Load(), snapshot: r.fleet.Snapshot(), now: now, free: o.free}
	return o
}

// find finds the ready ranks of a model's pool that are not busy.
func (o *openRanks) find(m *model) {
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
func (o *openRanks) update(rank *fleet.Rank) {
	if rank.Worker.State == fleet.Ready && !o.router.isBusy(&o.pool.Busy, rank, o.now) {
		o.free.add(rank.ID)
	} else {
		o.free.remove(rank.ID)
	}
}

// booked updates the rank of a decision that was just made.
func (o *openRanks) booked(d *Decision) {
	if rank, ok := o.snapshot.Rank(d.Worker, d.Rank); ok && o.pool != nil {
		o.update(&rank)
	}
}

// canGo reports whether a decision for the request would be final: a rank is free, or the pool has no rank
// for it any more, so that it will be refused. It is cheaper than resume, and is called for the head of
// each lane at each Wake.
func (o *openRanks) canGo(t *Ticket) bool {
	m := o.models[t.decision.Model]
	if m == nil {
		return true
	}
	if o.pool == nil || o.pool.Pool != m.Pool { // models of one pool have the same thresholds
		o.find(m)
	}
	if t.lane.snapshot != o.snapshot {
		t.lane.resolve(o.snapshot, m, &t.hints)
	}
	return t.lane.isEmpty || t.lane.ranks.intersects(o.free)
}

// lane names the set of ranks that may take the request: requests with the same lane may go to the same
// ranks. Names of workers cannot hold a comma, so lanes of different sets differ.
func (h *hints) lane() string {
	if !h.isRestricted() {
		if h.role == fleet.Aggregated {
			return ""
		}
		return h.role.String()
	}

	workers := strings.Join(h.allowed, ",")
	if h.worker != "" {
		workers = h.worker
	}
	lane := strings.Join(append([]string{h.role.String(), workers + "/" + strconv.Itoa(h.rank)}, h.required...), ",")
	return keptLabel(lane)
}
