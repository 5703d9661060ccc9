package engine

import "github.com/stator-project/stator/internal/kv/kvevent"

// pool is the KV cache: a fixed number of blocks, each active (held by requests), or free and
// in the list of those to take next.
//
// Invariants: a block is in the list exactly when refs is 0; hashed blocks and the values of
// cached are the same set; free is the length of the list.
type pool struct {
	blocks []block // the last one is the list's sentinel
	cached map[kvevent.Engine]int32
	free   int
}

type block struct {
	hash       kvevent.Engine
	hashed     bool
	refs       int32
	prev, next int32
}

func newPool(n int) *pool {
	p := &pool{blocks: make([]block, n+1), cached: make(map[kvevent.Engine]int32)}
	p.link(int32(n), int32(n))
	for i := range n {
		p.pushBack(int32(i))
	}
	return p
}

func (p *pool) sentinel() int32 { return int32(len(p.blocks) - 1) }

// take gives the next free block to one holder. Where it was cached, evicted is its hash.
func (p *pool) take() (id int32, evicted kvevent.Engine, wasCached bool) {
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

// hold adds a holder to a cached block.
func (p *pool) hold(id int32) {
	b := &p.blocks[id]
	if b.refs == 0 {
		p.remove(id)
	}
	b.refs++
}

// release takes a holder away. A cached block that nobody holds is taken again last, one
// that holds nothing worth keeping first.
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

// commit caches the block under hash, unless an equal block is cached already.
func (p *pool) commit(id int32, hash kvevent.Engine) bool {
	if _, taken := p.cached[hash]; taken {
		return false
	}
	p.cached[hash] = id
	p.blocks[id].hash, p.blocks[id].hashed = hash, true
	return true
}

// holds says whether the block is what is cached under hash.
func (p *pool) holds(id int32, hash kvevent.Engine) bool {
	return p.blocks[id].hashed && p.blocks[id].hash == hash
}

// uncommit takes a block out of the cache.
func (p *pool) uncommit(id int32) {
	delete(p.cached, p.blocks[id].hash)
	p.blocks[id].hashed = false
}

// match returns how many of the chain's first blocks are cached, and how many of those
// nobody holds.
func (p *pool) match(hashes []kvevent.Engine) (hits, inactive int) {
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

func (p *pool) active() int { return len(p.blocks) - 1 - p.free }

func (p *pool) forget() {
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
