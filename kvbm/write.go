package kvbm

import (
	"context"
	"slices"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/pool"
)

// Reserve takes slots for blocks that an engine is going to write. Their caller ends each with Commit, Drop or Quarantine. The error is
// [ErrNoRoom] if not all are there; then none is taken.
func (s *Store) Reserve(n int) (slots []int, err error) {
	s.mu.Lock()
	slots, gone, err := s.take(n)
	s.mu.Unlock()

	s.left(gone)
	return slots, err
}

// take takes slots, and returns the keys of the blocks that left them.
//
// Requires: mu.
func (s *Store) take(n int) (slots []int, gone []block.Key, err error) {
	now := s.cfg.Now()
	for range n {
		i, evicted, err := s.pool.Take(now, s.copies)
		if evicted.Valid {
			gone = append(gone, evicted.Key)
		}
		if err != nil {
			for _, i := range slots {
				_ = s.pool.Drop(i) // it was just taken
			}
			s.counts.refused.Add(uint64(n))
			return nil, gone, ErrNoRoom
		}
		slots = append(slots, i)
	}
	return slots, gone, nil
}

// left reports blocks that have left host memory.
func (s *Store) left(keys []block.Key) {
	if len(keys) > 0 {
		s.cfg.Changed(fleet.Host, false, keys)
	}
}

// Lost reports that a slower tier has dropped blocks by itself.
func (s *Store) Lost(tier fleet.Tier, keys ...block.Key) { s.cfg.Changed(tier, false, keys) }

// Commit registers slots that an engine has written, under their keys. A block whose key is there already is dropped. The error wraps
// [pool.ErrState] for a slot that is not reserved.
func (s *Store) Commit(slots []int, keys []block.Key, priority uint8) error {
	stored, err := s.commit(slots, keys, priority)
	if len(stored) > 0 {
		s.cfg.Changed(fleet.Host, true, stored)
	}
	return err
}

func (s *Store) commit(slots []int, keys []block.Key, priority uint8) (stored []block.Key, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for k, i := range slots {
		if err := s.pool.Complete(i); err != nil {
			return stored, err
		}
		registered, err := s.pool.Register(i, keys[k], priority)
		if err != nil {
			return stored, err
		}
		s.seen.Add(keys[k])
		if registered == i {
			stored = append(stored, keys[k])
		}
		s.counts.committed.Add(1)
		s.copySoon(keys[k], priority)
	}

	// The end of a prefix is released first, so that it leaves first: it is useless without the beginning.
	for _, key := range slices.Backward(keys) {
		s.release(key)
	}
	return stored, nil
}

// release gives the reference to the block of a key back.
//
// Requires: mu.
func (s *Store) release(key block.Key) {
	if i, ok := s.pool.Find(key); ok {
		_ = s.pool.Release(i) // it has a reference
	}
}

// Drop gives reserved slots back that were not written.
func (s *Store) Drop(slots []int) error { return s.each(slots, (*pool.Pool).Drop) }

// Quarantine keeps reserved slots from use, because there may still be writes to them: of a transfer that was given up, or an engine that
// has not ended. Lift ends it, when that is certain to be over.
func (s *Store) Quarantine(slots []int) error { return s.each(slots, (*pool.Pool).Quarantine) }

// Lift makes slots free that were quarantined.
func (s *Store) Lift(slots []int) error { return s.each(slots, (*pool.Pool).Lift) }

// each applies an operation to slots, and returns the first error.
func (s *Store) each(slots []int, operation func(p *pool.Pool, i int) error) (first error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range slots {
		if err := operation(s.pool, i); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// copySoon queues a block for the tiers whose policy takes it. Whether they have it is checked later, because that may take a while.
//
// Requires: mu.
func (s *Store) copySoon(key block.Key, priority uint8) {
	for _, t := range s.tiers {
		wanted := true
		switch t.Write {
		case WriteReused:
			wanted = s.seen.Seen(key) >= 2
		case WriteNever:
			wanted = false
		}
		if wanted {
			s.enqueue(t, key, priority)
		}
	}
}

// enqueue queues a block for a tier, or counts it if the queue is full.
func (s *Store) enqueue(t *tier, key block.Key, priority uint8) {
	t.pending.Add(1)
	select {
	case t.queue <- copyJob{key, priority}:
	default:
		t.pending.Add(-1)
		t.counts.dropped.Add(1)
	}
}

// copyAll copies the blocks of a tier's queue until ctx ends.
func (s *Store) copyAll(ctx context.Context, t *tier) {
	for {
		select {
		case <-ctx.Done():
			return
		case job := <-t.queue:
			s.copy(ctx, t, job)
			t.pending.Add(-1)
		}
	}
}

// copy copies a block to a tier, unless that has it or host memory has not.
func (s *Store) copy(ctx context.Context, t *tier, job copyJob) {
	if t.Has(job.key) {
		return
	}
	s.mu.Lock()
	i, ok := s.pool.Acquire(job.key)
	s.mu.Unlock()
	if !ok {
		return
	}

	ctx, cancel := context.WithTimeout(ctx, s.cfg.WriteTimeout)
	defer cancel()
	err := t.Store(ctx, job.key, s.cfg.Memory.Slot(i)[:s.cfg.Layout.Bytes()], job.priority)
	s.mu.Lock()
	_ = s.pool.Release(i) // acquired above
	s.mu.Unlock()

	if err != nil {
		t.counts.failed.Add(1)
		return
	}
	t.counts.copied.Add(1)
	s.cfg.Changed(t.Tier.Tier, true, []block.Key{job.key})
}
