package enginesim

import (
	"context"
	"maps"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/kvbm/session"
)

// write is a computed block, or a pin of a prompt's blocks.
//
// The goroutine of passes queues the blocks of a prompt before it emits the first token of the answer, and the pin follows the answer. So
// the store has all of them when the pin comes, apart from blocks for which it had no room.
type write struct {
	block kvevent.EngineHash
	pin   []block.Key
	ttl   time.Duration
}

// computed queues blocks that the engine has computed. Blocks without room are not written.
func (k *kvStore) computed(events []kvevent.Raw) {
	for i := range events {
		if events[i].Kind != kvevent.Stored || events[i].Tier != fleet.Device {
			continue
		}
		for _, h := range events[i].Hashes {
			select {
			case k.writes <- write{block: h}:
			default:
				k.dropped.Add(1)
			}
		}
	}
}

// write writes computed blocks until the session ends.
func (k *kvStore) write(ctx context.Context, c *session.Client) {
	for {
		var next write
		select {
		case <-ctx.Done():
			return
		case <-c.Done():
			return
		case next = <-k.writes:
		}
		// The blocks that a pass has computed are written together, because each request to the store costs a round trip.
		var batch []kvevent.EngineHash
		for next.pin == nil {
			batch = append(batch, next.block)
			if len(k.writes) == 0 || len(batch) == maxBatch {
				break
			}
			next = <-k.writes
		}
		if err := k.writeBatch(ctx, c, k.unwritten(batch)); err != nil {
			return
		}
		if next.pin != nil && c.Pin(next.pin, next.ttl) != nil {
			return
		}
	}
}

// unwritten returns the keys of the blocks that host memory does not have, and remembers whose keys they are.
func (k *kvStore) unwritten(hashes []kvevent.EngineHash) (keys []block.Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.names) > maxNames {
		maps.DeleteFunc(k.names, func(key block.Key, _ kvevent.EngineHash) bool { return !k.isThere(key) })
	}
	for _, h := range hashes {
		key := k.key(h)
		k.names[key] = h
		if !k.there[fleet.Host][key] {
			keys = append(keys, key)
		}
	}
	return keys
}

// isThere reports whether any tier has a block.
//
// Requires: mu.
func (k *kvStore) isThere(key block.Key) bool {
	for _, there := range k.there {
		if there[key] {
			return true
		}
	}
	return false
}

// writeBatch writes blocks into host memory. Without room they are not written.
func (k *kvStore) writeBatch(ctx context.Context, c *session.Client, keys []block.Key) error {
	if len(keys) == 0 {
		return nil
	}
	slots, err := c.Reserve(ctx, len(keys))
	if err != nil {
		return err
	}
	if len(slots) < len(keys) {
		k.dropped.Add(uint64(len(keys)))
		return nil
	}
	for i, slot := range slots {
		fill(c.Slot(slot)[:k.layout.Bytes()], keys[i])
	}
	k.written.Add(uint64(len(keys)))
	return c.Commit(ctx, slots, keys, 0)
}

// fill writes the content of a block: its key, again and again. No two blocks have equal bytes, so one that comes back in the place of
// another is found out.
func fill(dst []byte, key block.Key) {
	for n := copy(dst, key[:]); n < len(dst); n *= 2 {
		copy(dst[n:], dst[:n])
	}
}
