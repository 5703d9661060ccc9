package object

import (
	"slices"
	"strings"
	"sync"

	"github.com/stator-project/stator/internal/kv/block"
)

// pack is a published pack.
type pack struct {
	name    string
	entries []entry // by ascending offset
}

// place locates a block: it is an entry of a pack.
type place struct {
	pack *pack
	at   int32
}

func (p place) entry() *entry { return &p.pack.entries[p.at] }

// catalog is the memory of which blocks are in which packs. The number of entries is bounded.
type catalog struct {
	max int

	mu     sync.RWMutex
	places map[block.Key]place
	packs  []*pack // by ascending name, so the oldest is first
	blocks int     // entries of all packs
	// forgotten is the greatest name of a pack that the bound had no room for. Packs up to it are not read again.
	forgotten string
	evicted   int64 // entries that the bound had no room for
}

func newCatalog(most int) *catalog {
	return &catalog{max: most, places: map[block.Key]place{}}
}

// find returns the place of a block.
func (c *catalog) find(k block.Key) (place, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()

	p, ok := c.places[k]
	return p, ok
}

// match returns how many of the keys, from the first on, are there.
func (c *catalog) match(keys []block.Key) int {
	c.mu.RLock()
	defer c.mu.RUnlock()

	for i, k := range keys {
		if _, ok := c.places[k]; !ok {
			return i
		}
	}
	return len(keys)
}

// wants reports whether the pack of a name should be read: it is neither here, nor older than the packs that the bound has room for.
func (c *catalog) wants(name string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()

	_, known := c.search(name)
	return !known && name > c.forgotten
}

func (c *catalog) search(name string) (at int, found bool) {
	return slices.BinarySearchFunc(c.packs, name, func(p *pack, name string) int { return strings.Compare(p.name, name) })
}

// addPack remembers a pack. Of a block in several packs the newest copy counts, because it is deleted last.
func (c *catalog) addPack(p *pack) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, known := c.search(p.name)
	if known {
		return
	}

	c.packs = slices.Insert(c.packs, at, p)
	c.blocks += len(p.entries)
	for i, e := range p.entries {
		if old, ok := c.places[e.key]; !ok || old.pack.name < p.name {
			c.places[e.key] = place{pack: p, at: int32(i)}
		}
	}

	for c.blocks > c.max {
		oldest := c.packs[0]
		c.forgetLocked(oldest.name, len(oldest.entries))
		c.removeAt(0)
	}
}

// forget notes that there is no room for a pack, nor for older ones.
func (c *catalog) forget(name string, entries int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetLocked(name, entries)
}

func (c *catalog) forgetLocked(name string, entries int) {
	c.forgotten = max(c.forgotten, name)
	c.evicted += int64(entries)
}

// remove forgets a pack that the store does not have any more.
func (c *catalog) remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if at, ok := c.search(name); ok {
		c.removeAt(at)
	}
}

func (c *catalog) removeAt(at int) {
	p := c.packs[at]
	for _, e := range p.entries {
		if c.places[e.key].pack == p {
			delete(c.places, e.key)
		}
	}
	c.blocks -= len(p.entries)
	c.packs = slices.Delete(c.packs, at, at+1)
}

// drop forgets one block at one place. The block may be elsewhere by now, and then stays.
func (c *catalog) drop(p place) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if key := p.entry().key; c.places[key] == p {
		delete(c.places, key)
	}
}

// keep forgets the packs with names greater than after, and at most up to, that are not in names.
func (c *catalog) keep(after, upTo string, names map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for at := len(c.packs) - 1; at >= 0; at-- {
		name := c.packs[at].name
		if name > after && name <= upTo && !names[name] {
			c.removeAt(at)
		}
	}
}

// count returns the numbers of blocks that can be found, of packs, and of entries that the bound had no room for.
func (c *catalog) count() (blocks, packs int, evicted int64) {
	c.mu.RLock()
	defer c.mu.RUnlock()

	return len(c.places), len(c.packs), c.evicted
}
