package engine

import "github.com/stator-project/stator/internal/kv/kvevent"

// pool is the KV cache: a fixed number of blocks. Each is active, which means that requests use it, or it is free. Free blocks
// are allocated in this order:
//
//	the first of the list    blocks without useful content, the one released last first
//	those not yet in made    blocks that were never used, by number
//	the rest of the list     cached blocks, the one released first first
//
// Invariants: made has the blocks that were used, by number, after the sentinel of the list. One of them is in the list exactly
// when refs is 0. Hashed blocks and the blocks of cached are the same set. free is the number of free blocks, and useless the
// number of the first ones of the list.
type pool struct {
	made    []block
	size    int
	cached  table
	free    int
	useless int
}

// sentinel is the number of the list's sentinel.
const sentinel = -1

// block is one block. A free block keeps its hash, and can be found, until it is allocated again.
type block struct {
	hash       kvevent.EngineHash
	hashed     bool
	refs       int32 // requests that use it
	prev, next int32
}

func newPool(n int) *pool {
	p := &pool{made: make([]block, 1), size: n, free: n}
	p.link(sentinel, sentinel)
	return p
}

// at returns the block with a number. It is valid until the next block is made.
func (p *pool) at(id int32) *block { return &p.made[id+1] }

// allocate returns the next free block, for one request. If it was cached, it is evicted, and evicted is its
// hash. There must be a free block.
func (p *pool) allocate() (id int32, evicted kvevent.EngineHash, wasCached bool) {
	if made := len(p.made) - 1; p.useless == 0 && made < p.size {
		p.made = append(p.made, block{refs: 1})
		p.free--
		return int32(made), 0, false
	}

	id = p.at(sentinel).next
	p.remove(id)
	if p.useless > 0 {
		p.useless--
	}
	b := p.at(id)
	evicted, wasCached = b.hash, b.hashed
	if wasCached {
		p.cached.remove(b.hash)
		b.hashed = false
	}
	b.refs = 1
	return id, evicted, wasCached
}

// hold adds a request to the users of a cached block.
func (p *pool) hold(id int32) {
	b := p.at(id)
	if b.refs == 0 {
		p.remove(id)
	}
	b.refs++
}

// release removes a request from the users of a block. A cached block that no request uses is allocated
// last. A block without useful content is allocated first.
func (p *pool) release(id int32) {
	b := p.at(id)
	b.refs--
	switch {
	case b.refs > 0:
	case b.hashed:
		p.pushBack(id)
	default:
		p.pushFront(id)
	}
}

// commit caches the block under hash. It returns false if an equal block is cached already.
func (p *pool) commit(id int32, hash kvevent.EngineHash) bool {
	if !p.cached.add(hash, id) {
		return false
	}
	b := p.at(id)
	b.hash = hash
	b.hashed = true
	return true
}

// holds reports whether the block is cached under hash.
func (p *pool) holds(id int32, hash kvevent.EngineHash) bool {
	return p.at(id).hashed && p.at(id).hash == hash
}

// match returns how many of the first blocks of a chain are cached, and how many of these no request uses.
// The latter count as free until they are used.
func (p *pool) match(hashes []kvevent.EngineHash) (hits, inactive int) {
	for _, h := range hashes {
		id, ok := p.cached.get(h)
		if !ok {
			break
		}
		hits++
		if p.at(id).refs == 0 {
			inactive++
		}
	}
	return hits, inactive
}

// active returns the number of blocks in use.
func (p *pool) active() int { return p.size - p.free }

// clearCache removes all blocks from the cache.
func (p *pool) clearCache() {
	for i := range p.made {
		p.made[i].hashed = false
	}
	p.cached.clear()
}

func (p *pool) pushBack(id int32) {
	last := p.at(sentinel).prev
	p.link(last, id)
	p.link(id, sentinel)
	p.free++
}

func (p *pool) pushFront(id int32) {
	first := p.at(sentinel).next
	p.link(sentinel, id)
	p.link(id, first)
	p.free++
	p.useless++
}

func (p *pool) remove(id int32) {
	p.link(p.at(id).prev, p.at(id).next)
	p.free--
}

func (p *pool) link(a, b int32) { p.at(a).next, p.at(b).prev = b, a }
