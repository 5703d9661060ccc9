package feed

import (
	"fmt"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// State returns the state of m. It locks only the table of ranks.
func (f *Feed) State(m fleet.Rank) State {
	if r := f.existing(m); r != nil {
		return r.currentState()
	}
	return None
}

// CaughtUp reports whether every batch that the engine of m has published since some number was applied or is on its way, whatever m's
// state is: earlier ones may be missing.
func (f *Feed) CaughtUp(m fleet.Rank) (caughtUp bool) {
	f.view(m, func(r *rank) { caughtUp = r.tail == tailProved && !r.away && r.gapSince.IsZero() })
	return caughtUp
}

// Reason returns why m is stale; Sound if it is not.
func (f *Feed) Reason(m fleet.Rank) (why Reason) {
	f.view(m, func(r *rank) { why = r.reason() })
	return why
}

// Skipped returns the block size in tokens of events of m that were skipped because its cache is searched by another size; 0 for none.
func (f *Feed) Skipped(m fleet.Rank) (tokens int) {
	f.view(m, func(r *rank) {
		if r.doubt == OtherBlockSize {
			tokens = r.skipped
		}
	})
	return tokens
}

// Resume returns the number at which a replay for m has to begin; 0 before its first batch.
func (f *Feed) Resume(m fleet.Rank) (number uint64) {
	f.view(m, func(r *rank) { number = r.resume() })
	return number
}

// view calls read with the record of m, whose lock is held; not for a rank without a record.
func (f *Feed) view(m fleet.Rank, read func(r *rank)) {
	r := f.existing(m)
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	read(r)
}

// Blocks returns how many blocks the index stores for m.
func (f *Feed) Blocks(m fleet.Rank) int { return f.index.Blocks(m.ID) }

// Lifetime returns how long a prediction on m lasts. It is cheap enough to be called for every
// decision.
func (f *Feed) Lifetime(m fleet.Rank) time.Duration {
	r := f.existing(m)
	if r == nil {
		return f.cfg.Unconfirmed
	}

	switch r.currentState() {
	case Exact, Syncing:
		return f.cfg.Confirmed
	}
	return f.cfg.Unconfirmed
}

// States returns every rank of the fleet, sorted by worker name and rank number.
func (f *Feed) States() []RankState {
	var list []RankState
	for _, m := range f.fleet.Snapshot().Ranks {
		s := RankState{Worker: m.Worker.Name, Rank: m.Number, Epoch: m.Worker.Epoch, Blocks: f.Blocks(m)}
		if r := f.existing(m); r != nil {
			r.mu.Lock()
			s.State = r.currentState()
			s.Reason = r.reason()
			s.LastEvent = r.lastApplied
			s.Counts = r.counts
			if r.next > 0 {
				s.Seq = r.next - 1
			}
			r.mu.Unlock()
		}
		list = append(list, s)
	}
	return list
}

// Stats sums the counters of all ranks.
func (f *Feed) Stats() Stats {
	s := Stats{UnknownWorker: f.unknownWorker.Load(), WrongEpoch: f.wrongEpoch.Load()}

	f.mu.RLock()
	s.Counts = f.past
	f.mu.RUnlock()

	for _, r := range f.States() {
		s.Ranks[r.State]++
		if r.State == Stale {
			s.Stale[r.Reason]++
		}
		s.Counts.add(r.Counts)
	}
	return s
}

// String prints one line per rank.
func (f *Feed) String() string {
	var b strings.Builder
	for _, s := range f.States() {
		fmt.Fprintf(&b, "%s/%d %s", s.Worker, s.Rank, s.State)
		if s.Reason != Sound {
			fmt.Fprintf(&b, " (%s)", s.Reason)
		}
		if s.Batches+s.Snapshots > 0 {
			fmt.Fprintf(&b, " seq %d", s.Seq)
		}
		fmt.Fprintf(&b, ", %d blocks\n", s.Blocks)
	}
	return b.String()
}
