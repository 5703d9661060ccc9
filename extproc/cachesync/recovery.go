package cachesync

import (
	"context"
	"errors"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
)

// method is the way in which a recovery obtained the missing state. Metrics and logs show it.
type method string

const (
	byReplay   method = "replay"
	bySnapshot method = "snapshot"
)

var (
	// errMissing means that the agent no longer remembers the missing batches.
	errMissing = errors.New("the agent no longer has the missing batches")
	// errNotExact means that the agent itself may have missed events of its engine.
	errNotExact = errors.New("the rank is not exact at its agent")
)

// recoverRank tries to make one rank exact, once. If that fails reconcile tries again after a pause.
func (s *Syncer) recoverRank(ctx context.Context, t Transport, key rankKey, r *rank, n *node) {
	began := time.Now()
	by, err := s.attempt(ctx, t, key, r)

	// Live batches must not overtake the queued ones, so the recovery ends when there are none.
	var m fleet.Rank
	state, ok := feed.None, false
	failures := 0
	for ended := false; !ended; {
		s.applyQueued(r)
		m, ok = s.cfg.Fleet.Snapshot().Rank(key.worker, key.rank)
		if ok {
			state = s.cfg.Feed.State(m)
		}
		failures, ended = s.finish(r, n, state, err, time.Now())
	}
	if ctx.Err() != nil {
		return
	}

	duration := time.Since(began)
	s.metrics.recovered(by, state == feed.Exact, duration)
	switch {
	case state == feed.Exact:
		s.cfg.Log.Debug("cache state recovered",
			"worker", key.worker, "rank", key.rank, "from", by, "blocks", s.cfg.Feed.Blocks(m), "duration", duration)
	case ok && failures == 2: // one failure is normal for a worker that has just started
		s.cfg.Log.Warn("cache state not recovered; retrying with growing pauses",
			"worker", key.worker, "rank", key.rank, "state", state.String(), "reason", s.cfg.Feed.Reason(m).String(), "err", err)
	}
}

// attempt requests a rank's missing state from its agent. The package comment has a table of the steps.
func (s *Syncer) attempt(ctx context.Context, t Transport, key rankKey, r *rank) (method, error) {
	m, ok := s.cfg.Fleet.Snapshot().Rank(key.worker, key.rank)
	if !ok {
		return byReplay, feed.ErrGone
	}

	if s.cfg.Feed.Resume(m) > 0 {
		err := s.replay(ctx, t, key, m)
		complete := err == nil && (s.cfg.Feed.State(m) == feed.Exact || s.isSettled(r))
		if complete || err != nil && !errors.Is(err, errMissing) {
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
		batch.State = feed.None // it was the agent's when the batch was published
		gap = s.missing(batch, time.Now())
	})
	if err != nil {
		return noAnswer{err}
	}

	end := feed.Message{
		Worker: key.worker, Epoch: position.Epoch, Rank: key.rank, Seq: position.Next, Mark: true, End: true, State: position.State,
		CaughtUp: position.CaughtUp,
	}
	behind := s.missing(&end, time.Now())
	switch {
	case gap || behind:
		return errMissing
	case position.State != feed.Exact && s.cfg.Feed.State(m) != feed.Exact:
		return errNotExact
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
	if errors.Is(err, feed.ErrNoSnapshot) {
		return err
	}
	if err != nil {
		return noAnswer{err}
	}

	s.metrics.dumped.Add(float64(len(snapshot.Dump)))
	return s.cfg.Feed.Restore(snapshot, time.Now())
}

// isSettled reports whether the agent's snapshot was no help before, and nothing has changed since.
func (s *Syncer) isSettled(r *rank) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return r.settled
}

// finish ends a recovery of a rank whose state is now state, and whose error was err. It sets the pause before
// the next one, of the whole node if its agent has not answered. It returns how many in a row have failed. It
// does nothing and returns ended false while batches are queued.
func (s *Syncer) finish(r *rank, n *node, state feed.State, err error, now time.Time) (failures int, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(r.queued) > 0 {
		return 0, false
	}

	r.recovering = false
	s.running--
	n.running--
	select {
	case s.freed <- struct{}{}:
	default:
	}

	if state == feed.Exact {
		r.retryAtOnce()
		r.notBefore = now.Add(pauseAfterSuccess)
		return 0, true
	}
	if errors.As(err, new(noAnswer)) {
		n.notBefore = now.Add(n.pauses.Next())
	}
	r.settled = state == feed.Stale && (err == nil || errors.Is(err, errNotExact))
	r.failures++
	r.notBefore = now.Add(r.pauses.Next())
	return r.failures, true
}

// noAnswer is the error of a request that the agent has not answered in full.
type noAnswer struct{ error }

// Unwrap returns the transport's error.
func (e noAnswer) Unwrap() error { return e.error }
