package kvindex

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// nodes maps sequence hashes to sets of holders. Readers take no lock.
//
// Within one table a slot's key, once set, never changes: a node without holders keeps its
// slot with a nil set until the shard is rebuilt into a new table. So a reader that found
// its key can trust the set it loads next, and an old table is still true but for what
// changed since the swap; the garbage collector frees it after its last reader.
type nodes struct {
	budget *budget
	sets   *sets
	shards [nodeShards]nodeShard
}

const nodeShards = 256

type nodeShard struct {
	table atomic.Pointer[table]

	mu   sync.Mutex
	live int // guarded by mu: slots with a set
	used int // guarded by mu: slots with a key
}

type table struct {
	slots []slot
	ages  []atomic.Uint32 // when the node was last stored or looked up, in ticks
}

type slot struct {
	key atomic.Uint64 // 0 is an empty slot
	set atomic.Pointer[set]
}

const slotBytes = int64(unsafe.Sizeof(slot{})) + 4

// Tables are rebuilt when they are fuller than maxFull and when they are emptier than
// minFull, to a fill between: 20 bytes a slot are 25 to 30 a node.
const (
	maxFull = 0.85
	minFull = 0.55
)

// newFull is the fill after a rebuild. It differs from shard to shard, or all shards, being
// equally full, would grow at the same time.
func newFull(i int) float64 { return 0.71 + 0.08*float64(i%16)/16 }

// newSize is the size of a rebuilt table of nodes. Small tables get half as many slots
// again: their nodes are mostly predictions that come and go, and each leaves a dead slot.
func newSize(live, shard int) int {
	size := int(float64(live)/newFull(shard)) + 1
	if size < smallTable {
		size += size / 2
	}
	return max(8, size)
}

const smallTable = 1024

// sparse says whether a table should shrink.
func sparse(live, size int) bool {
	if size < 2*smallTable {
		return size > 8 && float64(live) < minFull/2*float64(size)
	}
	return float64(live) < minFull*float64(size)
}

func key(seq blockhash.Sequence) uint64 {
	if seq == 0 {
		return 1 // 0 marks an empty slot; sharing 1 is no likelier than any collision
	}
	return uint64(seq)
}

func (t *table) home(key uint64) int {
	hi, _ := bits.Mul64(key<<8, uint64(len(t.slots))) // the first 8 bits chose the shard
	return int(hi)
}

// at returns the slot of key, or where it would go: the empty slot that ends its run.
func (t *table) at(key uint64) (i int, found bool) {
	for i = t.home(key); ; {
		switch t.slots[i].key.Load() {
		case key:
			return i, true
		case 0:
			return i, false
		}
		if i++; i == len(t.slots) {
			i = 0
		}
	}
}

// lookup returns the holders of a node, nil where there are none, and marks the node as used
// at now.
func (n *nodes) lookup(seq blockhash.Sequence, now uint32) *set {
	k := key(seq)
	t := n.shards[k>>56].table.Load()
	if t == nil {
		return nil
	}
	i, found := t.at(k)
	if !found {
		return nil
	}
	s := t.slots[i].set.Load()
	if s != nil && t.ages[i].Load() != now {
		t.ages[i].Store(now)
	}
	return s
}

// touch reads the slot where a node would be, to have it in the cache.
func (n *nodes) touch(seq blockhash.Sequence) uint64 {
	k := key(seq)
	t := n.shards[k>>56].table.Load()
	if t == nil {
		return 0
	}
	i := t.home(k)
	return t.slots[i].key.Load() + uint64(t.ages[i].Load())
}

// holders returns the holders of a node, nil where there are none.
func (n *nodes) holders(seq blockhash.Sequence) *set {
	k := key(seq)
	t := n.shards[k>>56].table.Load()
	if t == nil {
		return nil
	}
	if i, found := t.at(k); found {
		return t.slots[i].set.Load()
	}
	return nil
}

// age returns when the node was last used; false where it has no holders.
func (n *nodes) age(seq blockhash.Sequence) (uint32, bool) {
	k := key(seq)
	t := n.shards[k>>56].table.Load()
	if t == nil {
		return 0, false
	}
	i, found := t.at(k)
	if !found || t.slots[i].set.Load() == nil {
		return 0, false
	}
	return t.ages[i].Load(), true
}

// edit is one writer's change of many nodes: it remembers the last transition from set to
// set, because neighbours in a prompt have the same holders. The writer calls done at its
// end.
type edit struct {
	n        *nodes
	holder   uint32
	set      uint8 // bits to set
	clear    uint8 // bits to clear
	unless   uint8 // where the holder has one of these, nothing changes
	age      uint32
	from, to *set // to has a reference of ours
	cached   bool
}

func (e *edit) done() {
	if e.cached {
		e.n.sets.release(e.to, 1)
	}
	*e = edit{}
}

// apply changes the holder's tiers on one node. It returns the tiers that the holder had
// before; ok is false where there was no room, and then nothing changed.
func (e *edit) apply(seq blockhash.Sequence) (before uint8, ok bool) {
	k := key(seq)
	shard := &e.n.shards[k>>56]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	t := shard.table.Load()
	i, found := 0, false
	if t != nil {
		i, found = t.at(k)
	}
	if !found {
		if e.set == 0 {
			return 0, true
		}
		if t, i = e.n.insertLocked(shard, k); t == nil {
			return 0, false
		}
	}
	old := t.slots[i].set.Load()
	before = old.tiers(e.holder)
	if before&e.unless != 0 {
		return before, true
	}
	if after := before&^e.clear | e.set; after != before {
		now, ok := e.transition(old, after)
		if !ok && e.set != 0 {
			return before, false
		}
		// Without room for the smaller set the node is forgotten: fewer holders is true.
		t.slots[i].set.Store(now)
		e.n.sets.release(old, 1)
		e.n.countLocked(shard, old, now)
	}
	if e.set != 0 {
		t.ages[i].Store(e.age)
	}
	return before, true
}

// transition returns old with the holder's tiers replaced, with a reference.
func (e *edit) transition(old *set, tiers uint8) (*set, bool) {
	if e.cached && e.from == old && e.to.tiers(e.holder) == tiers {
		if e.to != nil {
			e.to.refs.Add(1)
		}
		return e.to, true
	}
	now, ok := e.n.sets.change(old, e.holder, tiers)
	if !ok {
		return nil, false
	}
	if e.cached {
		e.n.sets.release(e.to, 1)
	}
	if now != nil {
		now.refs.Add(1)
	}
	e.from, e.to, e.cached = old, now, true
	return now, true
}

func (n *nodes) countLocked(s *nodeShard, old, now *set) {
	switch {
	case old == nil && now != nil:
		s.live++
	case old != nil && now == nil:
		s.live--
		if sparse(s.live, len(s.table.Load().slots)) {
			n.rebuildLocked(s, 0)
		}
	}
}

// insertLocked gives key a slot without holders. A nil table means that there is no room.
func (n *nodes) insertLocked(s *nodeShard, key uint64) (*table, int) {
	t := s.table.Load()
	if t == nil || float64(s.used+1) > maxFull*float64(len(t.slots)) {
		if !n.rebuildLocked(s, 1) {
			return nil, 0
		}
		t = s.table.Load()
	}
	i, _ := t.at(key)
	t.slots[i].key.Store(key)
	s.used++
	return t, i
}

// rebuildLocked copies the live nodes into a table with room for extra more. Where the
// bigger table has no room in the budget it tries one of the old size, which helps if
// enough of the slots were dead.
func (n *nodes) rebuildLocked(s *nodeShard, extra int) bool {
	old := s.table.Load()
	size := newSize(s.live+extra, n.number(s))
	was := 0
	if old != nil {
		was = len(old.slots)
	}
	if !n.budget.reserve(int64(size) * slotBytes) {
		if size <= was || float64(s.live+extra) > (maxFull-0.05)*float64(was) || !n.budget.reserve(int64(was)*slotBytes) {
			return false
		}
		size = was
	}
	t := &table{slots: make([]slot, size), ages: make([]atomic.Uint32, size)}
	for i := range was {
		if holders := old.slots[i].set.Load(); holders != nil {
			k := old.slots[i].key.Load()
			at, _ := t.at(k)
			t.slots[at].key.Store(k)
			t.slots[at].set.Store(holders)
			t.ages[at].Store(old.ages[i].Load())
		}
	}
	s.table.Store(t)
	s.used = s.live
	n.budget.release(int64(was) * slotBytes)
	return true
}

func (n *nodes) number(s *nodeShard) int {
	return int((uintptr(unsafe.Pointer(s)) - uintptr(unsafe.Pointer(&n.shards[0]))) / unsafe.Sizeof(*s))
}
