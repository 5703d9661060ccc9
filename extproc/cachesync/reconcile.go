package cachesync

import (
	"context"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
)

// reconcileRegularly checks all ranks until ctx ends: every reconcileEvery, when the fleet changes, when the
// transport is back, and when a recovery has ended, because others may wait for its slot.
func (s *Syncer) reconcileRegularly(ctx context.Context, t Transport) {
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()

	for {
		// Both channels are taken before the check, so that no change is missed during it.
		changed, back := s.cfg.Fleet.Changed(), t.Back()
		if t.Connected() {
			s.reconcile(ctx, t, time.Now())
		}

		select {
		case <-tick.C:
		case <-changed:
		case <-s.freed:
		case <-back:
			s.reconnected(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// reconnected lets every recovery start at once, and gives every rank time for its next message.
func (s *Syncer) reconnected(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, r := range s.ranks {
		r.retryAtOnce()
		r.lastMessage = now
	}
	for _, n := range s.nodes {
		n.retryAtOnce()
	}
}

// reconcile starts the recovery of every rank that is not exact, and marks silent ranks as stale.
func (s *Syncer) reconcile(ctx context.Context, t Transport, now time.Time) {
	snap := s.cfg.Fleet.Snapshot()
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, m := range snap.Ranks {
		if m.Worker.KVEvents == "" || m.Worker.State == fleet.Starting || s.cfg.Excluded(m.Worker.Name) {
			continue
		}

		key := rankKey{m.Worker.Name, m.Number}
		r := s.rankLocked(key)
		if r.epoch != m.Worker.Epoch {
			r.epoch = m.Worker.Epoch
			r.lastMessage = now
			r.retryAtOnce()
		}

		switch state := s.cfg.Feed.State(m); {
		case state == feed.Stale && (r.settled || s.cfg.Feed.Reason(m) == feed.PromiseMissed): // its agent knows no more
		case state != feed.Exact:
			s.startLocked(ctx, t, key, r, now)
		case now.Sub(r.lastMessage) > silenceLimit && !r.recovering:
			s.cfg.Log.Warn("no KV events of a rank; its cache state is stale",
				"worker", key.worker, "rank", key.rank, "duration", now.Sub(r.lastMessage))
			s.cfg.Feed.Lost(key.worker, key.rank)
		}
	}
	s.pruneLocked(snap)
}

// pruneLocked drops the ranks that the fleet does not have any more.
func (s *Syncer) pruneLocked(snap *fleet.Snapshot) {
	if s.pruned == snap.Version {
		return
	}
	s.pruned = snap.Version

	for key, r := range s.ranks {
		if _, ok := snap.Rank(key.worker, key.rank); !ok && !r.recovering {
			delete(s.ranks, key)
		}
	}
	present := map[string]bool{}
	for _, w := range snap.Workers {
		present[nodeOf(w.Name)] = true
	}
	for name, n := range s.nodes {
		if !present[name] && n.running == 0 {
			delete(s.nodes, name)
		}
	}
}

// startLocked starts the recovery of a rank and reports whether it did: not while one runs, during a
// pause of the rank or of its node, without a free slot, or after the end of ctx.
func (s *Syncer) startLocked(ctx context.Context, t Transport, key rankKey, r *rank, now time.Time) bool {
	if r.recovering || now.Before(r.notBefore) || ctx.Err() != nil {
		return false
	}

	n := s.nodes[nodeOf(key.worker)]
	if n == nil {
		n = &node{pauses: backoff.Backoff{Min: minPause, Max: maxPause}}
		s.nodes[nodeOf(key.worker)] = n
	}
	if s.running == maxRecoveries || n.running == maxNodeRecoveries || now.Before(n.notBefore) {
		return false
	}

	s.running++
	n.running++
	r.recovering = true
	s.recoveries.Go(func() { s.recoverRank(ctx, t, key, r, n) })
	return true
}
