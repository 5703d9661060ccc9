package engine

import (
	"container/list"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// SharedCache is one prefix cache for several engines: what one has computed, all find at once and without a
// transfer. No real fleet has it. It shows how much more routing could reuse at best, because with it every
// engine is the right one for a cache. What running requests use still takes room on each engine. It keeps the
// latest blocks, up to a number. It belongs to one goroutine.
type SharedCache struct {
	blocks int
	byHash map[kvevent.EngineHash]*list.Element
	recent *list.List // of hashes, the latest first
	// evicted are the blocks that were evicted since the last call of Evicted.
	evicted []kvevent.EngineHash
}

// NewSharedCache returns an empty cache of so many blocks. Its engines must have equal hash seeds.
func NewSharedCache(blocks int) *SharedCache {
	return &SharedCache{blocks: blocks, byHash: map[kvevent.EngineHash]*list.Element{}, recent: list.New()}
}

// match returns how many of the first blocks are cached. It accepts nil.
func (c *SharedCache) match(hashes []kvevent.EngineHash) int {
	if c == nil {
		return 0
	}
	for i, h := range hashes {
		at, ok := c.byHash[h]
		if !ok {
			return i
		}
		c.recent.MoveToFront(at)
	}
	return len(hashes)
}

// add adds blocks. It accepts nil.
func (c *SharedCache) add(hashes []kvevent.EngineHash) {
	if c == nil {
		return
	}
	for _, h := range hashes {
		if at, ok := c.byHash[h]; ok {
			c.recent.MoveToFront(at)
			continue
		}
		c.byHash[h] = c.recent.PushFront(h)
		if len(c.byHash) > c.blocks {
			oldest := c.recent.Back()
			hash := oldest.Value.(kvevent.EngineHash)
			delete(c.byHash, hash)
			c.recent.Remove(oldest)
			c.evicted = append(c.evicted, hash)
		}
	}
}

// Evicted returns the blocks that were evicted since the last call. The slice is valid until the next pass of an
// engine ends.
func (c *SharedCache) Evicted() []kvevent.EngineHash {
	list := c.evicted
	c.evicted = c.evicted[:0]
	return list
}
