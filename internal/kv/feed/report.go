package feed

import (
	"fmt"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Lost says that a rank's events have stopped arriving: its socket or the bus is gone. Exact
// knowledge is stale until the next event shows that nothing was missed.
func (f *Feed) Lost(worker string, number int) {
	member, ok := f.find(worker, 0, number)
	if !ok {
		return
	}
	r := f.rank(member)
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.now(); s == Exact {
		r.resumed = s
		r.set(Stale)
	}
}

// Lifetime is how long a prediction on the rank should live. It is cheap enough for every
// decision.
func (f *Feed) Lifetime(m fleet.Rank) time.Duration {
	r := f.known(m)
	if r == nil {
		return f.cfg.Unconfirmed
	}
	switch r.now() {
	case Exact, Syncing:
		return f.cfg.Confirmed
	}
	return f.cfg.Unconfirmed
}

// States returns the knowledge of every rank of the fleet, by worker name and rank number.
func (f *Feed) States() []RankState {
	var list []RankState
	for _, m := range f.fleet.Snapshot().Ranks {
		s := RankState{Worker: m.Worker.Name, Rank: m.Number, Epoch: m.Worker.Epoch, Blocks: f.index.Blocks(m.ID)}
		if r := f.known(m); r != nil {
			r.mu.Lock()
			s.State, s.LastEvent, s.Counts = r.now(), r.last, r.counts
			if r.next > 0 {
				s.Seq = r.next - 1
			}
			r.mu.Unlock()
		}
		list = append(list, s)
	}
	return list
}

// Stats sums the counters.
func (f *Feed) Stats() Stats {
	s := Stats{UnknownWorker: f.unknownWorker.Load(), WrongEpoch: f.wrongEpoch.Load()}
	f.mu.RLock()
	s.Counts = f.past
	f.mu.RUnlock()
	for _, r := range f.States() {
		s.Ranks[r.State]++
		s.Counts.add(r.Counts)
	}
	return s
}

// String prints the table of knowledge.
func (f *Feed) String() string {
	var b strings.Builder
	for _, s := range f.States() {
		fmt.Fprintf(&b, "%s/%d %s", s.Worker, s.Rank, s.State)
		if s.Batches+s.Snapshots > 0 {
			fmt.Fprintf(&b, " seq %d", s.Seq)
		}
		fmt.Fprintf(&b, ", %d blocks\n", s.Blocks)
	}
	return b.String()
}
