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

// The reasons for which a snapshot is not taken in.
var (
	// ErrGone says that the fleet does not have that rank in that epoch.
	ErrGone = errors.New("the rank, or its epoch, is not in the fleet")
	// ErrOld says that more is known already.
	ErrOld = errors.New("the snapshot is older than what is known exactly")
)

// Snapshot returns what is known of a rank now; false where the fleet does not have it in that
// epoch. The rank's events wait meanwhile. The caller owns the dump.
func (f *Feed) Snapshot(worker string, epoch uint64, number int) (Snapshot, bool) {
	member, r, ok := f.lock(worker, epoch, number)
	if !ok {
		return Snapshot{}, false
	}
	defer r.mu.Unlock()
	s := Snapshot{
		Worker: worker, Rank: number, Epoch: epoch,
		Next: r.next, Seconds: r.seconds, Complete: !r.partial, BlockSize: member.Worker.BlockSize,
	}
	if r.next > 0 {
		s.Dump = f.index.AppendDump(nil, r.id)
	}
	return s, true
}

// Restore replaces everything that is known of a rank by a snapshot of it, whole or not at all,
// and the next batch expected is s.Next. The rank is Syncing until that batch, or Complete, shows
// that nothing is missing behind it. Events of the rank wait meanwhile. Knowledge that is
// exact and as new is kept, with ErrOld. A dump that cannot be read leaves the rank empty and
// Syncing. A snapshot whose blocks are of another size than the router's holds nothing that could
// match: its place is taken over, its blocks are not.
func (f *Feed) Restore(s *Snapshot, now time.Time) error {
	member, r, ok := f.lock(s.Worker, s.Epoch, s.Rank)
	if !ok {
		return fmt.Errorf("restore %s/%d: %w", s.Worker, s.Rank, ErrGone)
	}
	defer r.mu.Unlock()
	if r.now() == Exact && r.next >= s.Next {
		return fmt.Errorf("restore %s/%d: %w", s.Worker, s.Rank, ErrOld)
	}
	f.forget(r)
	if err := f.load(r, member.Worker, s); err != nil {
		f.forget(r)
		r.set(Syncing)
		return fmt.Errorf("restore %s/%d: %w", s.Worker, s.Rank, err)
	}
	r.next, r.seconds, r.partial, r.last = s.Next, s.Seconds, !s.Complete, now
	r.counts.Snapshots++
	r.set(Syncing)
	if r.partial {
		r.set(Stale)
	}
	return nil
}

func (f *Feed) load(r *rank, w *fleet.Worker, s *Snapshot) error {
	if want := f.cfg.BlockSize(w); s.BlockSize != 0 && want != 0 && s.BlockSize != want {
		r.counts.WrongBlockSize++
		return nil
	}
	if len(s.Dump) == 0 {
		return nil
	}
	return f.index.Load(r.id, s.Dump)
}
