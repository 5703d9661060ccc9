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
// A node without holders gives its slot up at once, and one that probed past it moves there: so
// a table holds no dead slots, however much comes and goes, and is rebuilt only when it grows or
// shrinks. A reader that found its key sees by the word, before and after it loads the run, that
// the slot was not given to another meanwhile. One that does not find its key looks again from
// the end of the row of slots back to the key's home: what moves is copied towards its home
// before it is taken away, so that way it cannot be missed. An old table is still true but for
// what changed since the swap; the garbage collector frees it after its last reader.
//
// Dead slots that stay until the table is rebuilt are simpler. Then predictions, which come and
// go, had tables of two million nodes rebuilt for nothing else: 150 bytes and 50 ns a block.
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
	live int // guarded by mu: slots in use
}

type table struct{ slots []slot } // a multiple of lineSlots

type slot struct {
	// word is the key, whose first 8 bits chose the shard, and in their place at the end the
	// node's position in its stretch; 0 is an empty slot. It changes only while run is nil.
	word atomic.Uint64
	run  atomic.Pointer[run]
}

const (
	lineSlots = 4
	slotBytes = int64(unsafe.Sizeof(slot{}))
	posBits   = 8
)

func word(key uint64, pos uint8) uint64 { return key<<posBits | uint64(pos) }

// where returns the run and the position there of the node of key; false where the slot is not
// the key's, or not any more.
func (s *slot) where(key uint64) (r *run, pos uint8, ok bool) {
	w := s.word.Load()
	r = s.run.Load()
	return r, uint8(w), r != nil && w>>posBits == key<<posBits>>posBits && s.word.Load() == w
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

// newSize is the size of a rebuilt table of nodes.
func newSize(live, shard int) int {
	size := int(float64(live)/newFull(shard)) + 1
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

func (t *table) home(key uint64) int { return t.homeOf(key << posBits) }

// homeOf is the home of a key of which the bits are gone that chose the shard.
func (t *table) homeOf(rest uint64) int {
	hi, _ := bits.Mul64(rest, uint64(len(t.slots)))
	return int(hi) &^ (lineSlots - 1)
}

// at returns the slot of key, or where it would go: the empty slot that ends its row. The shard
// is locked.
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

// search is at for readers.
func (t *table) search(key uint64) (r *run, pos uint8) {
	home := t.home(key)
	end := home
	for t.slots[end].word.Load() != 0 {
		if r, pos, ok := t.slots[end].where(key); ok {
			return r, pos
		}
		if end++; end == len(t.slots) {
			end = 0
		}
		if end == home {
			break
		}
	}
	for end != home {
		if end--; end < 0 {
			end = len(t.slots) - 1
		}
		if r, pos, ok := t.slots[end].where(key); ok {
			return r, pos
		}
	}
	return nil, 0
}

// fill copies the slots in use into an empty table that nobody sees yet, and so without the
// barriers of atomic stores, which are two thirds of the time else. Homes are in the order of
// keys, whatever the size: both tables are gone through once, from one end to the other.
func (t *table) fill(from []slot) {
	to := unsafe.Slice((*plainSlot)(unsafe.Pointer(&t.slots[0])), len(t.slots))
	for i := range from {
		w := from[i].word.Load()
		if w == 0 {
			continue
		}
		at := t.homeOf(w >> posBits << posBits)
		for to[at].word != 0 {
			if at++; at == len(to) {
				at = 0
			}
		}
		to[at] = plainSlot{w, from[i].run.Load()}
	}
}

// plainSlot is a slot by shape.
type plainSlot struct {
	word uint64
	run  *run
}

// remove empties a slot and closes the gap: with the last of those behind it that may lie
// there, then the gap that this leaves. The shard is locked.
func (t *table) remove(at *slot) {
	size := len(t.slots)
	hole := int((uintptr(unsafe.Pointer(at)) - uintptr(unsafe.Pointer(&t.slots[0]))) / unsafe.Sizeof(*at))
	for {
		last := -1
		for i, far := hole+1, 1; ; i, far = i+1, far+1 {
			if i == size {
				i = 0
			}
			w := t.slots[i].word.Load()
			if w == 0 {
				break
			}
			fromHome := i - t.homeOf(w>>posBits<<posBits)
			if fromHome < 0 {
				fromHome += size
			}
			if fromHome >= far {
				last = i
			}
		}
		gap := &t.slots[hole]
		gap.run.Store(nil)
		if last < 0 {
			gap.word.Store(0)
			return
		}
		gap.word.Store(t.slots[last].word.Load())
		gap.run.Store(t.slots[last].run.Load())
		hole = last
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

// fetch asks for the first cache lines of the first 16 nodes.
func (n *nodes) fetch(seqs []blockhash.Sequence) {
	if len(seqs) == 0 {
		return
	}
	var lines [prefetches]uintptr
	count := min(len(seqs), prefetches)
	for i, seq := range seqs[:count] {
		lines[i] = uintptr(unsafe.Pointer(n.line(key(seq))))
	}
	prefetch(&lines, count)
}

// find returns where the node of a key is: its run and its position there; nil where nobody
// holds it.
func (n *nodes) find(key uint64) (r *run, pos uint8) {
	t := n.shards[key>>56].table.Load()
	if t == nil {
		return nil, 0
	}
	at, _ := (*line)(t.slots[t.home(key):]).find(key)
	if r, pos, ok := at.where(key); ok {
		return r, pos
	}
	return t.search(key)
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
	r, _ := n.find(key(seq))
	return r.holders()
}

// age returns when the node's stretch was last used; false where the node has no holders.
func (n *nodes) age(seq blockhash.Sequence) (uint8, bool) {
	r, _ := n.find(key(seq))
	if r == nil {
		return 0, false
	}
	return r.stretch.used(), true
}

// roomLocked makes sure that the shard has room for one more node, of a key, and returns its
// slot, which is empty; nil where there is none in the budget. at is where it would go now.
func (n *nodes) roomLocked(s *nodeShard, at *slot, key uint64) *slot {
	if t := s.table.Load(); t != nil && float64(s.live+1) <= maxFull*float64(len(t.slots)) {
		return at
	}
	if !n.rebuildLocked(s, 1) {
		return nil
	}
	at, _ = s.table.Load().at(key)
	return at
}

// leftLocked gives up the slot of a node that has no holders any more.
func (n *nodes) leftLocked(s *nodeShard, at *slot) {
	t := s.table.Load()
	t.remove(at)
	if s.live--; sparse(s.live, len(t.slots)) {
		n.rebuildLocked(s, 0)
	}
}

// rebuildLocked copies the nodes into a table with room for extra more. False means that the
// budget has none for it.
func (n *nodes) rebuildLocked(s *nodeShard, extra int) bool {
	old := s.table.Load()
	shard := n.number(s)
	size := newSize(s.live+extra, shard)
	was := 0
	if old != nil {
		was = len(old.slots)
	}
	if !n.budget.reserve(int64(size) * slotBytes) {
		return false
	}
	t := &table{slots: make([]slot, size)}
	if was > 0 {
		t.fill(old.slots)
	}
	s.table.Store(t)
	n.budget.release(int64(was) * slotBytes)
	return true
}

func (n *nodes) number(s *nodeShard) int {
	return int((uintptr(unsafe.Pointer(s)) - uintptr(unsafe.Pointer(&n.shards[0]))) / unsafe.Sizeof(*s))
}
