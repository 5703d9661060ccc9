package kvbm

import "github.com/stator-project/stator/internal/kv/block"

// Acquire holds the given blocks that are in host memory, and returns their bytes; data[i] is nil if keys[i] is not there. The bytes stay
// the same until release is called, which counts once. It waits for no transfer.
func (s *Store) Acquire(keys []block.Key) (data [][]byte, release func()) {
	slots, release := s.AcquireSlots(keys)
	data = make([][]byte, len(keys))
	for k, i := range slots {
		if i >= 0 {
			data[k] = s.cfg.Memory.Slot(i)[:s.cfg.Layout.Bytes()]
		}
	}
	return data, release
}

// AcquireSlots is Acquire with the slots of the blocks in place of their bytes, and -1 for blocks that are not there.
func (s *Store) AcquireSlots(keys []block.Key) (slots []int, release func()) {
	slots = make([]int, len(keys))
	l := &Lease{store: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, key := range keys {
		i, ok := s.pool.Acquire(key)
		if !ok {
			slots[k] = -1
			continue
		}
		slots[k] = i
		l.Slots = append(l.Slots, i)
	}
	return slots, l.Release
}

// keysAtOnce is the number of slots that Keys reads before it lets other calls go on.
const keysAtOnce = 4096

// Keys returns the blocks in host memory. Blocks that come or leave meanwhile may be missing.
func (s *Store) Keys() (keys []block.Key) {
	slots := s.cfg.Memory.Slots()
	for from := 0; from < slots; from += keysAtOnce {
		s.mu.Lock()
		keys = s.pool.AppendKeys(keys, from, min(from+keysAtOnce, slots))
		s.mu.Unlock()
	}
	return keys
}
