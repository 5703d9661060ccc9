package engine

import "github.com/stator-project/stator/internal/kv/kvevent"

// pool is the KV cache: a fixed number of blocks. Each is active, which means that requests use it, or it is in
// the list of free blocks, in the order in which they are allocated.
//
// Invariants: a block is in the list exactly when refs is 0. Hashed blocks and the values of cached are the same
// set. free is the length of the list.
type pool struct {
	blocks []block // the last one is the sentinel of the list
	cached map[kvevent.EngineHash]int32
	free   int
}

// block is one block. A free block keeps its hash, and can be found, until it is allocated again.
type block struct {
	hash       kvevent.EngineHash
	hashed     bool
	refs       int32 // requests that use it
	prev, next int32
}

func newPool(n int) *pool {
	p := &pool{blocks: make([]block, n+1), cached: make(map[kvevent.EngineHash]int32)}
	p.link(int32(n), int32(n))
	for i := range n {
		p.pushBack(int32(i))
	}
	return p
}

func (p *pool) sentinel() int32 { return int32(len(p.blocks) - 1) }

// allocate returns the next free block, for one request. If it was cached, it is evicted, and evicted is its
// hash. There must be a free block.
func (p *pool) allocate() (id int32, evicted kvevent.EngineHash, wasCached bool) {
	id = p.blocks[p.sentinel()].next
	p.remove(id)
	b := &p.blocks[id]
	evicted, wasCached = b.hash, b.hashed
	if wasCached {
		delete(p.cached, b.hash)
		b.hashed = false
	}
	b.refs = 1
	return id, evicted, wasCached
}

// hold adds a request to those that use a cached block.
func (p *pool) hold(id int32) {
	b := &p.blocks[id]
	if b.refs == 0 {
		p.remove(id)
	}
	b.refs++
}

// release removes a request from those that use a block. A cached block that no request uses is allocated
// last. A block without useful content is allocated first.
func (p *pool) release(id int32) {
	b := &p.blocks[id]
	b.refs--
	switch {
	case b.refs > 0:
	case b.hashed:
		p.pushBack(id)
	default:
		p.pushFront(id)
	}
}

// commit caches the block under hash. It returns false where an equal block is cached already.
func (p *pool) commit(id int32, hash kvevent.EngineHash) bool {
	if _, taken := p.cached[hash]; taken {
		return false
	}
	p.cached[hash] = id
	b := &p.blocks[id]
	b.hash = hash
	b.hashed = true
	return true
}

// holds reports whether the block is cached under hash.
func (p *pool) holds(id int32, hash kvevent.EngineHash) bool {
	return p.blocks[id].hashed && p.blocks[id].hash == hash
}

// match returns how many of the first blocks of a chain are cached, and how many of these no request uses.
// The latter count as free until they are used.
func (p *pool) match(hashes []kvevent.EngineHash) (hits, inactive int) {
	for _, h := range hashes {
		id, ok := p.cached[h]
		if !ok {
			break
		}
		hits++
		if p.blocks[id].refs == 0 {
			inactive++
		}
	}
	return hits, inactive
}

// active returns the number of blocks in use.
func (p *pool) active() int { return len(p.blocks) - 1 - p.free }

// clearCache removes all blocks from the cache.
func (p *pool) clearCache() {
	for _, id := range p.cached {
		p.blocks[id].hashed = false
	}
	clear(p.cached)
}

func (p *pool) pushBack(id int32) {
	last := p.blocks[p.sentinel()].prev
	p.link(last, id)
	p.link(id, p.sentinel())
	p.free++
}

func (p *pool) pushFront(id int32) {
	first := p.blocks[p.sentinel()].next
	p.link(p.sentinel(), id)
	p.link(id, first)
	p.free++
}

func (p *pool) remove(id int32) {
	p.link(p.blocks[id].prev, p.blocks[id].next)
	p.free--
}

func (p *pool) link(a, b int32) { p.blocks[a].next, p.blocks[b].prev = b, a }
