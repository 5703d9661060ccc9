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

// applyQueued applies the batches that are queued now. The subscriber queues more meanwhile.
func (s *Syncer) applyQueued(r *rank) {
	s.mu.Lock()
	queued := r.queued
	r.queued = nil
	for i := range queued {
		s.queuedBytes -= queued[i].Batch.CloneBytes()
	}
	s.mu.Unlock()

	for i := range queued {
		s.missing(&queued[i], time.Now())
	}
}
