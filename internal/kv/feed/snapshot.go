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
	// Complete is false if the dump may differ from the engine's cache: the agent has a [Reason] to doubt
	// its own index, or that index was full and blocks were evicted from it.
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
	// ErrOld means that the snapshot is no better than what the rank has.
	ErrOld = errors.New("the snapshot is no better than the state of the rank")
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
		Next: r.next, Seconds: r.seconds, Complete: r.doubt == Sound && !f.index.Evicted(r.id), BlockSize: member.Worker.TokensPerBlock(),
	}
	if r.next > 0 {
		s.Dump = f.index.AppendDump(nil, r.id)
	}
	return s, true
}

// Restore replaces a rank's cache by a snapshot, in one step: lookups find the old blocks or the new
// ones. The next batch expected is s.Next. The rank is Syncing until a message with its agent's exact state
// proves that no events are missing after the snapshot; it is Stale if the snapshot is incomplete. The
// rank's events wait meanwhile.
//
// A snapshot that is no better changes nothing, and the error is [ErrOld]: it does not reach beyond the
// rank's last batch, and the rank's own blocks are right or the snapshot is incomplete. A dump that cannot be
// read changes nothing either. A snapshot with a block size other than the router's cannot match any prompt:
// Restore then takes its position and not its blocks.
func (f *Feed) Restore(s *Snapshot, now time.Time) error {
	member, r, ok := f.lock(s.Worker, s.Epoch, s.Rank)
	if !ok {
		return fmt.Errorf("restore %s/%d: %w", s.Worker, s.Rank, ErrGone)
	}
	defer r.mu.Unlock()
	if r.next > 0 && r.next >= s.Next && (r.doubt == Sound || !s.Complete) {
		return fmt.Errorf("restore %s/%d: %w", s.Worker, s.Rank, ErrOld)
	}

	doubt, err := f.loadDump(r, member.Worker, s)
	if err != nil {
		return fmt.Errorf("restore %s/%d: %w", s.Worker, s.Rank, err)
	}

	r.next = s.Next
	r.seconds, r.first = s.Seconds, 0
	r.lastApplied = now
	r.closeGap()
	r.doubt = doubt
	r.tail = tailUnproved
	r.counts.Snapshots++
	r.settle()
	return nil
}

// loadDump replaces a rank's blocks by a snapshot's, or by none if they are of another size than the
// router's. It returns why the result may differ from the engine's cache. After an error nothing has changed.
func (f *Feed) loadDump(r *rank, w *fleet.Worker, s *Snapshot) (Reason, error) {
	if want := f.cfg.BlockSize(w); s.BlockSize != 0 && want != 0 && s.BlockSize != want {
		r.counts.WrongBlockSize++
		f.index.Clear(r.id)
		r.skipped = s.BlockSize
		return OtherBlockSize, nil
	}

	if len(s.Dump) == 0 {
		f.index.Clear(r.id)
	} else if err := f.index.Load(r.id, s.Dump); err != nil {
		return Sound, err
	}
	if !s.Complete {
		return PartialSnapshot, nil
	}
	return Sound, nil
}
