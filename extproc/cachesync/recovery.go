package cachesync

import (
	"context"
	"errors"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
)

// method is how a recovery obtained the missing state. Metrics and logs show it.
type method string

const (
	byReplay   method = "replay"
	bySnapshot method = "snapshot"
)

var (
	// errMissing means that the agent no longer remembers the missing batches.
	errMissing = errors.New("the agent no longer has the missing batches")
	// errNoEngine means that the agent's position may be older than its engine's.
	errNoEngine = errors.New("the agent has no connection to its engine")
)

// recoverRank tries to make one rank exact, once. If that fails reconcile tries again after a pause.
func (s *Syncer) recoverRank(ctx context.Context, t Transport, key rankKey, r *rank) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		s.release(r)
		return
	}
	began := time.Now()
	by, err := s.attempt(ctx, t, key)
	<-s.slots

	s.release(r)
	if ctx.Err() != nil {
		return
	}

	m, ok := s.cfg.Fleet.Snapshot().Rank(key.worker, key.rank)
	exact := ok && s.cfg.Feed.State(m) == feed.Exact
	duration := time.Since(began)
	s.metrics.recovered(by, exact, duration)
	failures := s.finish(r, exact, time.Now())

	switch {
	case exact:
		s.cfg.Log.Debug("cache state recovered",
			"worker", key.worker, "rank", key.rank, "from", by, "blocks", s.cfg.Feed.Blocks(m), "duration", duration)
	case ok && failures == 2: // one failure is normal for a worker that has just started
		s.cfg.Log.Warn("cache state not recovered; retrying with growing pauses",
			"worker", key.worker, "rank", key.rank, "state", s.cfg.Feed.State(m).String(), "err", err)
	}
}

// attempt requests what a rank is missing from its agent. The package comment has a table of the steps.
func (s *Syncer) attempt(ctx context.Context, t Transport, key rankKey) (method, error) {
	m, ok := s.cfg.Fleet.Snapshot().Rank(key.worker, key.rank)
	if !ok {
		return byReplay, feed.ErrGone
	}

	if s.cfg.Feed.Resume(m) > 0 {
		err := s.replay(ctx, t, key, m)
		if err != nil && !errors.Is(err, errMissing) || s.cfg.Feed.State(m) == feed.Exact {
			return byReplay, err
		}
	}

	err := s.restore(ctx, t, key, m.Worker.Epoch)
	switch {
	case errors.Is(err, feed.ErrNoSnapshot), errors.Is(err, feed.ErrOld):
		return byReplay, s.replay(ctx, t, key, m)
	case err != nil:
		return bySnapshot, err
	}
	return bySnapshot, s.replay(ctx, t, key, m)
}

// replay applies the batches of a rank that its agent remembers, after the last one applied. The
// agent's position at the end is applied as a mark: only that proves that nothing is missing.
func (s *Syncer) replay(ctx context.Context, t Transport, key rankKey, m fleet.Rank) error {
	gap := false
	position, err := t.Replay(ctx, key.worker, m.Worker.Epoch, key.rank, s.cfg.Feed.Resume(m), func(batch *feed.Message) {
		gap = s.missing(batch, time.Now())
	})
	if err != nil {
		return err
	}
	if !position.Connected {
		return errNoEngine
	}

	end := feed.Message{Worker: key.worker, Epoch: position.Epoch, Rank: key.rank, Seq: position.Next, Mark: true}
	behind := s.missing(&end, time.Now())
	if gap || behind {
		return errMissing
	}
	return nil
}

// restore replaces a rank's cache by a snapshot from its agent.
func (s *Syncer) restore(ctx context.Context, t Transport, key rankKey, epoch uint64) error {
	size := 0
	defer func() { s.dumps.release(size) }()

	snapshot, err := t.Snapshot(ctx, key.worker, epoch, key.rank, func(ctx context.Context, n int) error {
		if err := s.dumps.acquire(ctx, n); err != nil {
			return err
		}
		size = n
		return nil
	})
	if err != nil {
		return err
	}

	s.metrics.dumped.Add(float64(len(snapshot.Dump)))
	return s.cfg.Feed.Restore(snapshot, time.Now())
}

// finish sets the pause before the rank's next recovery. It returns how many in a row have failed.
func (s *Syncer) finish(r *rank, exact bool, now time.Time) (failures int) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if exact {
		r.retryAtOnce()
		r.notBefore = now.Add(pauseAfterSuccess)
		return 0
	}
	r.failures++
	r.notBefore = now.Add(r.pauses.Next())
	return r.failures
}
