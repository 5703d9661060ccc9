package feed

import (
	"errors"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Snapshot is what is known of one rank at one place in the order of its events: as good as all
// batches before Next, and smaller, because evicted blocks are not in it.
type Snapshot struct {
	// Next is the number of the batch that comes after it.
	Next uint64
	// Seconds is the engine's clock in the batch before Next; 0 is unknown. With it a restart is
	// told from a duplicate.
	Seconds float64
	// Whole is false where a gap was given up before it: it is true then, but not all there is.
	Whole bool
	// BlockSize is the engine's, in tokens; 0 is unknown.
	BlockSize int
	// Dump is the rank's part of the index, as kvindex writes it; empty where it holds nothing.
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
	s := Snapshot{Next: r.next, Seconds: r.seconds, Whole: !r.partial, BlockSize: member.Worker.BlockSize}
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
func (f *Feed) Restore(worker string, epoch uint64, number int, s *Snapshot, now time.Time) error {
	member, r, ok := f.lock(worker, epoch, number)
	if !ok {
		return fmt.Errorf("restore %s/%d: %w", worker, number, ErrGone)
	}
	defer r.mu.Unlock()
	if r.now() == Exact && r.next >= s.Next {
		return fmt.Errorf("restore %s/%d: %w", worker, number, ErrOld)
	}
	f.forget(r)
	if err := f.load(r, member.Worker, s); err != nil {
		f.forget(r)
		r.set(Syncing)
		return fmt.Errorf("restore %s/%d: %w", worker, number, err)
	}
	r.next, r.seconds, r.partial, r.last = s.Next, s.Seconds, !s.Whole, now
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
