package cachesync

import (
	"time"

	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// queueLocked copies a live batch into its rank's queue. Beyond the bounds the batch is dropped: the
// next message shows the gap. Marks are not queued, because another follows within a second.
func (s *Syncer) queueLocked(r *rank, m *feed.Message) {
	if m.Mark {
		return
	}
	size := m.Size()
	if len(r.queued) >= maxQueuedBatches || s.queuedHashes+size > maxQueuedHashes {
		s.metrics.dropped.Inc()
		return
	}

	s.queuedHashes += size
	queued := *m
	queued.Batch = &kvevent.Batch{Rank: m.Batch.Rank, Seconds: m.Batch.Seconds, Unknown: m.Batch.Unknown}
	queued.Batch.Events = append(queued.Batch.Events, m.Batch.Events...) // see Transport: hashes may be kept
	r.queued = append(r.queued, queued)
}

// release ends a recovery: it applies the queued batches until there are none. The queue is taken in
// rounds, because the subscriber queues more while a round is applied without the lock.
func (s *Syncer) release(r *rank) {
	for {
		s.mu.Lock()
		queued := r.queued
		r.queued = nil
		if len(queued) == 0 {
			r.recovering = false
			s.mu.Unlock()
			return
		}
		for i := range queued {
			s.queuedHashes -= queued[i].Size()
		}
		s.mu.Unlock()

		for i := range queued {
			s.missing(&queued[i], time.Now())
		}
	}
}
