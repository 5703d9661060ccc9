package kvindex

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// nodes maps sequence hashes to runs, and so to sets of holders. Readers take no lock.
//
// Within one table a slot's key, once set, never changes: a node without holders keeps its
// slot with a nil run until the shard is rebuilt into a new table. So a reader that found
// its key can trust the run it loads next, and an old table is still true but for what
// changed since the swap; the garbage collector frees it after its last reader.
//
// Four slots are a cache line, and a key's home is the beginning of one: most nodes are found in
// the first line that is read.
type nodes struct {
	budget *budget
	sets   *sets
	shards [nodeShards]nodeShard
}

const nodeShards = 256

type nodeShard struct {
	table atomic.Pointer[table]

	mu   sync.Mutex
	live int // guarded by mu: slots with a run
	used int // guarded by mu: slots with a key
}

type table struct{ slots []slot } // a multiple of lineSlots

type slot struct {
	// word is the key, whose first 8 bits chose the shard, and in their place at the end the
	// node's position in its stretch; 0 is an empty slot. The position changes only while run
	// is nil.
	word atomic.Uint64
	run  atomic.Pointer[run] // nil where nobody holds the node
}

const (
	lineSlots = 4
	slotBytes = int64(unsafe.Sizeof(slot{}))
	posBits   = 8
)

func word(key uint64, pos uint8) uint64 { return key<<posBits | uint64(pos) }

// where returns the node's run and its position there; nil where nobody holds it.
func (s *slot) where() (r *run, pos uint8) {
	for r = s.run.Load(); r != nil; {
		pos = uint8(s.word.Load())
		// A node that left and came back has another run: it is never twice in one stretch.
		again := s.run.Load()
		if again == r {
			return r, pos
		}
		r = again
	}
	return nil, 0
}

// Tables are rebuilt when they are fuller than maxFull and when they are emptier than
// minFull, to a fill between: 16 bytes a slot are 21 to 26 a node. A node that was stored last
// is found in its first cache line, in a table that is about to be rebuilt, nearly four times in
// five at 0.78, and less than every second time at 0.85.
const (
	maxFull = 0.78
	minFull = 0.50
)

// newFull is the fill after a rebuild. It differs from shard to shard, or all shards, being
// equally full, would grow at the same time.
func newFull(i int) float64 { return 0.62 + 0.08*float64(i%16)/16 }

// newSize is the size of a rebuilt table of nodes. Small tables get half as many slots
// again: their nodes are mostly predictions that come and go, and each leaves a dead slot.
func newSize(live, shard int) int {
	size := int(float64(live)/newFull(shard)) + 1
	if size < smallTable {
		size += size / 2
	}
	return (max(2*lineSlots, size) + lineSlots - 1) / lineSlots * lineSlots
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
	if uint64(seq)<<posBits == 0 {
		return uint64(seq) | 1 // 0 marks an empty slot; sharing is no likelier than any collision
	}
	return uint64(seq)
}

func (t *table) home(key uint64) int {
	hi, _ := bits.Mul64(key<<8, uint64(len(t.slots))) // the first 8 bits chose the shard
	return int(hi) &^ (lineSlots - 1)
}

// at returns the slot of key, or where it would go: the empty slot that ends its run.
func (t *table) at(key uint64) (s *slot, found bool) {
	tag := key << posBits >> posBits
	for i := t.home(key); ; {
		s = &t.slots[i]
		switch w := s.word.Load(); {
		case w>>posBits == tag:
			return s, true
		case w == 0:
			return s, false
		}
		if i++; i == len(t.slots) {
			i = 0
		}
	}
}

// line is the cache line in which a node is looked for first.
type line [lineSlots]slot

// nowhere is the line of a node in a shard that has no table.
var nowhere line

func (n *nodes) line(key uint64) *line {
	t := n.shards[key>>56].table.Load()
	if t == nil {
		return &nowhere
	}
	return (*line)(t.slots[t.home(key):])
}

// find returns the slot of a key, nil where there is none.
func (n *nodes) find(key uint64) *slot {
	t := n.shards[key>>56].table.Load()
	if t == nil {
		return nil
	}
	if at, found := (*line)(t.slots[t.home(key):]).find(key); found {
		return at
	}
	if at, found := t.at(key); found {
		return at
	}
	return nil
}

// find finds a key in the line. It looks at all slots and does not branch: where in the line a
// node lies is random, and the branches that a loop takes wrong cost as much as all the rest.
func (l *line) find(key uint64) (s *slot, found bool) {
	tag := key << posBits >> posBits
	d1 := l[1].word.Load()>>posBits ^ tag
	d2 := l[2].word.Load()>>posBits ^ tag
	d3 := l[3].word.Load()>>posBits ^ tag
	// Of these only 0 borrows, so at is 0 unless one of them is the key's.
	at := (d1-1)>>63 | (d2-1)>>63*2 | (d3-1)>>63*3
	s = &l[at&(lineSlots-1)]
	return s, s.word.Load()>>posBits == tag
}

// holders returns the holders of a node, nil where there are none.
func (n *nodes) holders(seq blockhash.Sequence) *set {
	if at := n.find(key(seq)); at != nil {
		return at.run.Load().holders()
	}
	return nil
}

// age returns when the node's stretch was last used; false where the node has no holders.
func (n *nodes) age(seq blockhash.Sequence) (uint8, bool) {
	at := n.find(key(seq))
	if at == nil {
		return 0, false
	}
	r := at.run.Load()
	if r == nil {
		return 0, false
	}
	return r.stretch.used(), true
}

func (n *nodes) countLocked(s *nodeShard, old, now *run) {
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

// insertLocked gives key a slot without holders; nil where there is no room.
func (n *nodes) insertLocked(s *nodeShard, key uint64) *slot {
	t := s.table.Load()
	if t == nil || float64(s.used+1) > maxFull*float64(len(t.slots)) {
		if !n.rebuildLocked(s, 1) {
			return nil
		}
		t = s.table.Load()
	}
	at, _ := t.at(key)
	at.word.Store(word(key, 0))
	s.used++
	return at
}

// rebuildLocked copies the live nodes into a table with room for extra more. Where the
// bigger table has no room in the budget it tries one of the old size, which helps if
// enough of the slots were dead.
func (n *nodes) rebuildLocked(s *nodeShard, extra int) bool {
	old := s.table.Load()
	shard := n.number(s)
	size := newSize(s.live+extra, shard)
	was := 0
	if old != nil {
		was = len(old.slots)
	}
	if !n.budget.reserve(int64(size) * slotBytes) {
		if size <= was || float64(s.live+extra) > (maxFull-0.03)*float64(was) || !n.budget.reserve(int64(was)*slotBytes) {
			return false
		}
		size = was
	}
	t := &table{slots: make([]slot, size)}
	for i := range was {
		if r := old.slots[i].run.Load(); r != nil {
			w := old.slots[i].word.Load()
			at, _ := t.at(uint64(shard)<<56 | w>>posBits)
			at.word.Store(w)
			at.run.Store(r)
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
