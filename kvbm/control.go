package kvbm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
)

// pinner is a backend that can keep blocks from eviction.
type pinner interface {
	Pin(key block.Key, until time.Time) bool
}

// flusher is a backend that can drop all its blocks.
type flusher interface {
	Flush() (blocks int, err error)
}

// Pin keeps blocks until a time, or until the ends of their pins if these are later. They leave host memory after all others, and are
// copied to the slower tiers before Pin returns, and pinned there, so that they are somewhere even then. A zero time ends their pins. It
// returns how many of them are anywhere. When ctx ends, blocks that are not copied yet are pinned on the tier that has them.
func (s *Store) Pin(ctx context.Context, keys []block.Key, until time.Time) (pinned int) {
	here := make([]bool, len(keys))
	for k, key := range keys {
		s.mu.Lock()
		here[k] = s.pool.Pin(key, until)
		s.mu.Unlock()
	}
	if !until.IsZero() {
		s.copyPinned(ctx, keys, here)
	}

	for k, key := range keys {
		there := here[k]
		for _, t := range s.tiers {
			if p, ok := t.Backend.(pinner); ok && p.Pin(key, until) {
				there = true
			}
		}
		if there {
			pinned++
		}
	}
	return pinned
}

// copyPinned copies those blocks that are in host memory to the slower tiers, several at once. It does not use their queues, because
// pinned blocks that a full queue drops would be lost once host memory has no room for them.
func (s *Store) copyPinned(ctx context.Context, keys []block.Key, here []bool) {
	for _, t := range s.tiers {
		if t.Write == WriteNever {
			continue
		}
		atOnce(s.cfg.Writers, len(keys), func(k int) {
			if here[k] && ctx.Err() == nil {
				s.copy(ctx, t, copyJob{keys[k], s.priority(keys[k])})
			}
		})
	}
}

// priority returns the priority of a block in host memory.
func (s *Store) priority(key block.Key) uint8 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.pool.Find(key); ok {
		return s.pool.Slot(i).Priority
	}
	return 0
}

// Prefetch brings blocks into host memory, and returns how many of the first ones are there.
func (s *Store) Prefetch(ctx context.Context, keys []block.Key) int {
	l := s.Fetch(ctx, keys)
	defer l.Release()
	return len(l.Slots)
}

// ErrNoFlush is the error of a flush of a tier that is not there, or keeps its blocks.
var ErrNoFlush = errors.New("this tier cannot be flushed")

// Flush drops all blocks, pinned ones too, in host memory and in the slower tiers that can drop them; or only the blocks of the given
// tiers. Blocks in use leave when they are released. An object store keeps its blocks, because other nodes have them too. It returns how
// many left each tier. The error wraps [ErrNoFlush] before anything was dropped, or is the error of a tier.
func (s *Store) Flush(only ...fleet.Tier) (blocks map[fleet.Tier]int, err error) {
	for _, tier := range only {
		if !s.flushes(tier) {
			return nil, fmt.Errorf("%w: %v", ErrNoFlush, tier)
		}
	}
	wanted := func(tier fleet.Tier) bool { return len(only) == 0 || slices.Contains(only, tier) }
	blocks = map[fleet.Tier]int{}
	if wanted(fleet.Host) {
		blocks[fleet.Host] = s.flushHost()
	}

	for _, t := range s.tiers {
		f, ok := t.Backend.(flusher)
		if !ok || !wanted(t.Tier.Tier) {
			continue
		}
		n, err := f.Flush()
		if err != nil {
			return blocks, err
		}
		blocks[t.Tier.Tier] = n
		s.cfg.Changed(t.Tier.Tier, false, nil)
	}
	return blocks, nil
}

// flushes reports whether a tier can be flushed.
func (s *Store) flushes(name fleet.Tier) bool {
	return name == fleet.Host || slices.ContainsFunc(s.tiers, func(t *tier) bool {
		_, ok := t.Backend.(flusher)
		return ok && t.Tier.Tier == name
	})
}

// flushHost drops all blocks in host memory.
func (s *Store) flushHost() (blocks int) {
	s.mu.Lock()
	var gone []block.Key
	for _, key := range s.pool.All() {
		gone = append(gone, key)
	}
	blocks = s.pool.Flush()
	s.mu.Unlock()
	s.left(gone)
	return blocks
}
