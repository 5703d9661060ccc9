package cachesync

import (
	"time"

	"github.com/stator-project/stator/internal/kv/feed"
)

// queueLocked copies a live batch into its rank's queue. Beyond the bounds the batch is dropped: the
// next message shows the gap. Marks are not queued, because another follows within a second.
func (s *Syncer) queueLocked(r *rank, m *feed.Message) {
	if m.Mark {
		return
	}
	size := m.Batch.CloneBytes()
	if len(r.queued) >= maxQueuedBatches || s.queuedBytes+size > maxQueuedBytes {
		s.metrics.dropped.Inc()
		return
	}

	s.queuedBytes += size
	queued := *m
	queued.Batch = m.Batch.Clone()
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
			s.queuedBytes -= queued[i].Batch.CloneBytes()
		}
		s.mu.Unlock()

		for i := range queued {
			s.missing(&queued[i], time.Now())
		}
	}
}
