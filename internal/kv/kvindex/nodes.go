package kvindex

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prefetch"
)

// nodes maps sequence hashes to runs, and so to sets of holders. Readers take no lock.
//
// It is an open-addressing hash table in 256 shards. A removal closes its gap at once: a later node that
// probed past the slot moves there. So a table has no dead slots, and is rebuilt only when it grows or
// shrinks. Dead slots until a rebuild would be simpler. But predictions come and go all the time, and made
// tables of two million nodes be rebuilt for nothing else: 150 bytes and 50 ns a block.
//
// Nodes therefore move while readers search. Two rules keep searches right:
//
//   - A reader loads the slot's word before and after its run. If the word is the same, the run belongs to
//     the word's key: the word changes only while run is nil.
//   - A reader that does not find its key searches once more, from the end of the row of slots back to the
//     key's home. A node that moves is copied towards its home before it is removed, so a search in that
//     direction meets at least one copy.
//
// A reader of a table that was just replaced misses only the changes since then. The garbage collector frees
// the old table after its last reader.
//
// Four slots are a cache line, and a key's home is the beginning of a line. So most nodes are found in the
// first line that is read.
type nodes struct {
	budget *budget
	sets   *sets
	shards [nodeShards]nodeShard
}

const nodeShards = 256

// nodeShard is the nodes whose keys begin with its number. Its position is also a part of the key.
type nodeShard struct {
	table atomic.Pointer[table]

	mu   sync.Mutex
	live int // guarded by mu: slots in use
}

// table is the nodes of a shard. Its size is a multiple of lineSlots and never changes; a shard that grows
// or shrinks gets another table.
type table struct{ slots []slot }

// slot is a node, or empty.
type slot struct {
	// word has the key without its first 8 bits, which chose the shard, and below them the node's position in
	// its chunk. 0 is an empty slot. It changes only while run is nil.
	word atomic.Uint64
	run  atomic.Pointer[holderRun]
}

const (
	lineSlots = 4
	slotBytes = int64(unsafe.Sizeof(slot{}))
	posBits   = 8
)

// word is the word of a slot.
func word(key uint64, pos uint8) uint64 { return key<<posBits | uint64(pos) }

// where returns the run and the position of the node of key. False means that the slot is of another key, or
// has become so meanwhile.
func (s *slot) where(key uint64) (r *holderRun, pos uint8, ok bool) {
	w := s.word.Load()
	r = s.run.Load()
	return r, uint8(w), r != nil && w>>posBits == key<<posBits>>posBits && s.word.Load() == w
}

// Tables are rebuilt when they are fuller than maxFull or emptier than minFull, to a fill between. So 16
// bytes a slot are 21 to 26 bytes a node. In a table that is about to grow, the node stored last is in its
// first cache line nearly four times in five at 0.78, and less than every second time at 0.85.
const (
	maxFull = 0.78
	minFull = 0.50
)

// newFull is the fill after a rebuild. It differs by shard: equally full shards would all grow at the same
// time.
func newFull(i int) float64 { return 0.62 + 0.08*float64(i%16)/16 }

// newSize is the size of a rebuilt table of nodes.
func newSize(live, shard int) int {
	size := int(float64(live)/newFull(shard)) + 1
	return (max(2*lineSlots, size) + lineSlots - 1) / lineSlots * lineSlots
}

// smallTable is the size below which tables shrink later, because little is gained.
const smallTable = 1024

// sparse reports whether a table should shrink.
func sparse(live, size int) bool {
	if size < 2*smallTable {
		return size > 8 && float64(live) < minFull/2*float64(size)
	}
	return float64(live) < minFull*float64(size)
}

// key is a sequence hash as tables use it.
func key(seq blockhash.Sequence) uint64 {
	if uint64(seq)<<posBits == 0 {
		return uint64(seq) | 1 // 0 marks an empty slot; sharing is no likelier than any collision
	}
	return uint64(seq)
}

// home returns the first slot of a search for a key: the first of a cache line.
func (t *table) home(key uint64) int { return t.homeOf(key << posBits) }

// homeOf is home for a key that has lost the bits that chose the shard, as in a word.
func (t *table) homeOf(rest uint64) int {
	hi, _ := bits.Mul64(rest, uint64(len(t.slots)))
	return int(hi) &^ (lineSlots - 1)
}

// at returns the slot of key, or the empty slot that ends its row. The shard is locked.
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
		i++
		if i == len(t.slots) {
			i = 0
		}
	}
}

// search is at for readers, which hold no lock: forward, then back. See nodes.
func (t *table) search(key uint64) (r *holderRun, pos uint8) {
	home := t.home(key)
	end := home
	for t.slots[end].word.Load() != 0 {
		if r, pos, ok := t.slots[end].where(key); ok {
			return r, pos
		}
		end++
		if end == len(t.slots) {
			end = 0
		}
		if end == home {
			break
		}
	}

	for end != home {
		end--
		if end < 0 {
			end = len(t.slots) - 1
		}
		if r, pos, ok := t.slots[end].where(key); ok {
			return r, pos
		}
	}
	return nil, 0
}

// fill copies the slots in use into an empty table that no reader has seen. So it needs no atomic stores,
// whose barriers would be two thirds of its time. Homes are ordered by key, whatever the size, so it walks
// both tables once, in order.
func (t *table) fill(from []slot) {
	to := unsafe.Slice((*plainSlot)(unsafe.Pointer(&t.slots[0])), len(t.slots))
	for i := range from {
		w := from[i].word.Load()
		if w == 0 {
			continue
		}
		at := t.homeOf(w >> posBits << posBits)
		for to[at].word != 0 {
			at++
			if at == len(to) {
				at = 0
			}
		}
		to[at] = plainSlot{w, from[i].run.Load()}
	}
}

// plainSlot has the memory layout of a slot, without atomic operations.
type plainSlot struct {
	word uint64
	run  *holderRun
}

// remove empties a slot and closes the gap. The last node behind it that may lie there moves into it, and
// then the gap that this leaves is closed in the same way. The shard is locked.
//
// Readers rely on the order of stores: run is nil while word changes, and the copy in the gap is complete before
// the original slot is emptied.
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

// line is the cache line in which a search begins.
type line [lineSlots]slot

// emptyLine is the line of every key in a shard that has no table yet.
var emptyLine line

// line returns the cache line in which a search for a key begins.
func (n *nodes) line(key uint64) *line {
	t := n.shards[key>>56].table.Load()
	if t == nil {
		return &emptyLine
	}
	return (*line)(t.slots[t.home(key):])
}

// prefetch loads the first cache lines of the first 16 nodes, so that their latencies overlap. The index reads many
// words that are spread over its tables, and computes early which. Waiting for one after the other would take most
// of the time of a look-up.
func (n *nodes) prefetch(seqs []blockhash.Sequence) {
	if len(seqs) == 0 {
		return
	}
	var lines [prefetch.Most]uintptr
	count := min(len(seqs), prefetch.Most)
	for i, seq := range seqs[:count] {
		lines[i] = uintptr(unsafe.Pointer(n.line(key(seq))))
	}
	prefetch.Lines(&lines, count)
}

// find returns the run of the node of a key, and its position there; nil if the node has no holders.
func (n *nodes) find(key uint64) (r *holderRun, pos uint8) {
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

// find returns the slot of a key in the line. It compares all slots and does not branch. The node's place in
// the line is random, and mispredicted branches of a loop would cost as much as all the rest.
func (l *line) find(key uint64) (s *slot, found bool) {
	tag := key << posBits >> posBits
	d1 := l[1].word.Load()>>posBits ^ tag
	d2 := l[2].word.Load()>>posBits ^ tag
	d3 := l[3].word.Load()>>posBits ^ tag
	// Subtracting 1 sets the highest bit of 0 only. So at is the slot whose difference is 0, else 0.
	at := (d1-1)>>63 | (d2-1)>>63*2 | (d3-1)>>63*3
	s = &l[at&(lineSlots-1)]
	return s, s.word.Load()>>posBits == tag
}

// holders returns the holders of a node; nil, the empty set, if there is no node.
func (n *nodes) holders(seq blockhash.Sequence) *set {
	r, _ := n.find(key(seq))
	return r.holders()
}

// age returns the tick at which the node's chunk was last used; false if there is no node.
func (n *nodes) age(seq blockhash.Sequence) (uint8, bool) {
	r, _ := n.find(key(seq))
	if r == nil {
		return 0, false
	}
	return r.chunk.used(), true
}

// roomLocked makes room for one more node, of a key, and returns its empty slot; nil if the budget has no room. at is the empty slot
// for it in the present table.
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

// leftLocked removes the slot of a node that has no holders any more.
func (n *nodes) leftLocked(s *nodeShard, at *slot) {
	t := s.table.Load()
	t.remove(at)
	s.live--
	if sparse(s.live, len(t.slots)) {
		n.rebuildLocked(s, 0)
	}
}

// rebuildLocked copies the nodes into a table with room for extra more. False means that the budget has no
// room for both tables.
func (n *nodes) rebuildLocked(s *nodeShard, extra int) bool {
	old := s.table.Load()
	shard := n.shardNumber(s)
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

// shardNumber is the position of a shard.
func (n *nodes) shardNumber(s *nodeShard) int {
	return int((uintptr(unsafe.Pointer(s)) - uintptr(unsafe.Pointer(&n.shards[0]))) / unsafe.Sizeof(*s))
}
