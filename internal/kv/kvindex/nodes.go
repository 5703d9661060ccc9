package kvindex

import (
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

// nodeShards is the number of shards: one for each value of the first 8 bits of a key.
const nodeShards = 256

// nodeShard is the nodes whose keys begin with its number. Its position is also a part of the key.
type nodeShard struct {
	table atomic.Pointer[table]

	mu   sync.Mutex
	live int // guarded by mu: slots in use
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
