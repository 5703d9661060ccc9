package feed

import (
	"errors"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Snapshot is the cache of one rank at one position in the order of its events. Restoring it has
// the same effect as applying every batch before Next, but it is smaller: evicted blocks are not
// in it.
type Snapshot struct {
	Worker string
	Rank   int
	// Epoch identifies the engine process.
	Epoch uint64
	// ID identifies these bytes while their owner keeps them, so that a router can pull them in
	// several pages. It is 0 outside of agents and transports.
	ID uint64
	// Next is the number of the first batch that is not part of the snapshot.
	Next uint64
	// Seconds is the engine's clock in the batch before Next; 0 is unknown. It distinguishes a
	// restarted engine from a duplicate.
	Seconds float64
	// Complete is false after a gap was given up: every block in the snapshot is right, but
	// blocks may be missing from it.
	Complete bool
	// BlockSize is the engine's, in tokens; 0 is unknown.
	BlockSize int
	// Dump is the rank's part of the index in kvindex's format; empty for an empty cache.
	Dump []byte
}

// The errors of [Feed.Restore].
var (
	// ErrGone means that the fleet does not have the rank in the snapshot's epoch.
	ErrGone = errors.New("the rank, or its epoch, is not in the fleet")
	// ErrOld means that the rank is exact and at least as far as the snapshot.
	ErrOld = errors.New("the snapshot is older than the exact state of the rank")
)

// Snapshot returns a copy of a rank's cache; false if the fleet does not have the rank in that
// epoch. The rank's events wait while the copy is made. The caller owns the dump.
func (f *Feed) Snapshot(worker string, epoch uint64, number int) (Snapshot, bool) {
	member, r, ok := f.lock(worker, epoch, number)
	if !ok {
		return Snapshot{}, false
	}
	defer r.mu.Unlock()

	s := Snapshot{
		Worker: worker, Rank: number, Epoch: epoch,
		Next: r.next, Seconds: r.seconds, Complete: !r.incomplete, BlockSize: member.Worker.BlockSize,
	}
	if r.next > 0 {
		s.Dump = f.index.AppendDump(nil, r.id)
	}
	return s, true
}

// Restore replaces a rank's cache by a snapshot. The next batch expected is s.Next. The rank is
// Syncing until that batch, or a mark, proves that no events are missing after the snapshot; it
// is Stale if the snapshot is incomplete. The rank's events wait meanwhile.
//
// An exact rank that is at least as far as the snapshot stays as it is, and the error is [ErrOld].
// A dump that cannot be read leaves the rank empty and Syncing. A snapshot with a block size other
// than the router's cannot match any prompt: Restore then takes its position and not its blocks.
func (f *Feed) Restore(s *Snapshot, now time.Time) error {
	member, r, ok := f.lock(s.Worker, s.Epoch, s.Rank)
	if !ok {
		return fmt.Errorf("restore %s/%d: %w", s.Worker, s.Rank, ErrGone)
	}
	defer r.mu.Unlock()
	if r.currentState() == Exact && r.next >= s.Next {
		return fmt.Errorf("restore %s/%d: %w", s.Worker, s.Rank, ErrOld)
	}

	f.empty(r)
	if err := f.loadDump(r, member.Worker, s); err != nil {
		f.empty(r) // the dump may have been loaded in part
		r.setState(Syncing)
		return fmt.Errorf("restore %s/%d: %w", s.Worker, s.Rank, err)
	}

	r.next, r.seconds = s.Next, s.Seconds
	r.incomplete = !s.Complete
	r.lastApplied = now
	r.counts.Snapshots++
	r.setState(Syncing)
	if r.incomplete {
		r.setState(Stale)
	}
	return nil
}

// loadDump stores a snapshot's blocks, unless they are of another size than the router's.
func (f *Feed) loadDump(r *rank, w *fleet.Worker, s *Snapshot) error {
	if want := f.cfg.BlockSize(w); s.BlockSize != 0 && want != 0 && s.BlockSize != want {
		r.counts.WrongBlockSize++
		return nil
	}
	if len(s.Dump) == 0 {
		return nil
	}
	return f.index.Load(r.id, s.Dump)
}
