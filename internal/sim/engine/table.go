package engine

import "github.com/stator-project/stator/internal/kv/kvevent"

// table maps the hashes of cached blocks to their numbers, by open addressing: a hash is at the place that its lowest bits name,
// or at one of the next places, without an empty one in between. Hashes are uniform, so a search looks at few places, next to each
// other. A map would look at three times as many lines of memory.
//
// Invariants: at most half of the places are in use; n is their number. A place in use has the block's number and 1, so that an
// empty place is zero.
type table struct {
	places []place
	n      int
}

type place struct {
	hash  kvevent.EngineHash
	block int32 // and 1; 0 is empty
}

// smallestTable is the number of places of the first table. It is a power of two, as all sizes are.
const smallestTable = 64

// home returns the place at which the search for a hash begins.
func (t *table) home(h kvevent.EngineHash) int { return int(uint64(h) & uint64(len(t.places)-1)) }

// find returns the place of a hash, or the empty place for it.
func (t *table) find(h kvevent.EngineHash) *place {
	mask := len(t.places) - 1
	for i := t.home(h); ; i = (i + 1) & mask {
		p := &t.places[i]
		if p.block == 0 || p.hash == h {
			return p
		}
	}
}

// get returns the number of the block with a hash.
func (t *table) get(h kvevent.EngineHash) (block int32, ok bool) {
	if t.n == 0 {
		return 0, false
	}
	p := t.find(h)
	return p.block - 1, p.block != 0
}

// add adds a block, unless there is one with its hash. It returns false then.
func (t *table) add(h kvevent.EngineHash, block int32) bool {
	if 2*(t.n+1) > len(t.places) {
		t.grow()
	}
	p := t.find(h)
	if p.block != 0 {
		return false
	}
	*p = place{h, block + 1}
	t.n++
	return true
}

// grow doubles the number of places.
func (t *table) grow() {
	old := t.places
	t.places = make([]place, max(smallestTable, 2*len(old)))
	for _, p := range old {
		if p.block != 0 {
			*t.find(p.hash) = p
		}
	}
}

// remove removes the block with a hash, if there is one.
func (t *table) remove(h kvevent.EngineHash) {
	if t.n == 0 {
		return
	}
	mask := len(t.places) - 1
	hole := t.home(h)
	for t.places[hole].hash != h || t.places[hole].block == 0 {
		if t.places[hole].block == 0 {
			return
		}
		hole = (hole + 1) & mask
	}
	t.n--

	// Entries behind the hole move into it, unless that is before their home. So no search meets an empty place too early.
	for i := (hole + 1) & mask; t.places[i].block != 0; i = (i + 1) & mask {
		fromHome := (i - t.home(t.places[i].hash)) & mask
		if fromHome >= (i-hole)&mask {
			t.places[hole] = t.places[i]
			hole = i
		}
	}
	t.places[hole] = place{}
}

// clear removes all blocks.
func (t *table) clear() {
	clear(t.places)
	t.n = 0
}
