package tokenizer

import "slices"

// mergeLong is merge for long pieces. Without it a long text without spaces would cost O(n²), and a client could use that as an attack. It
// needs about nine bytes for each symbol:
//
//   - The symbols are also the list of their neighbours; see pieceList.
//   - A queue holds the places of the pairs that may be joined, by priority; see pairQueue. Places are not
//     removed when a pair changes. A place is out of date if the pair that begins there now has
//     another priority.
//
// It leaves the symbols as they are when g.done is closed.
func (g *merger) mergeLong(m *merges, symbols []uint32) []uint32 {
	list, q := pieceList(symbols), &g.queue
	q.reset()
	for i := range len(list) - 1 {
		q.push(m.priority(m.rank(list[i], list[i+1])), uint32(i))
	}

	for steps := 1; ; steps++ {
		if steps%stopInterval == 0 && isClosed(g.done) {
			break
		}
		priority, place, ok := q.next()
		if !ok {
			break
		}

		i := int(place)
		rank := list.rankAt(m, i)
		if rank == noRank || m.priority(rank) != priority {
			continue
		}
		list.join(i, m.joined[rank])
		q.push(m.priority(list.rankAt(m, i)), uint32(i))
		if before := list.before(i); before >= 0 {
			q.push(m.priority(list.rankAt(m, before)), uint32(before))
		}
	}

	q.releaseLarge()
	return list.compact()
}

// stopInterval is the number of joins between two checks of merger.done.
const stopInterval = 1 << 16

// pieceList is a list of symbols in which two neighbours can be joined. A symbol that was joined occupies the
// places of all symbols that it was made of: its id with the flag wide stands at the first place, and
// its width with the flag inner at the second place and at the last place. All its places but the
// first have the flag inner. So no second array is needed to find the neighbours.
type pieceList []uint32

const (
	inner = 1 << 31
	wide  = 1 << 30
	// idMask removes the flags. Ids are below maxTokens.
	idMask = wide - 1
)

// after returns the place of the symbol after the one at i, or len(l).
func (l pieceList) after(i int) int {
	if l[i]&wide == 0 {
		return i + 1
	}
	return i + int(l[i+1]&^inner)
}

// before returns the place of the symbol before the one at i, or -1.
func (l pieceList) before(i int) int {
	if i == 0 || l[i-1]&inner == 0 {
		return i - 1
	}
	return i - int(l[i-1]&^inner)
}

// rankAt returns the rank of the pair that begins at i. It is noRank if no symbol begins at i, or none follows,
// or the pair is never joined.
func (l pieceList) rankAt(m *merges, i int) uint32 {
	if l[i]&inner != 0 {
		return noRank
	}
	next := l.after(i)
	if next == len(l) {
		return noRank
	}
	return m.rank(l[i]&idMask, l[next]&idMask)
}

// join replaces the symbol at i and the one after it by id.
func (l pieceList) join(i int, id uint32) {
	next := l.after(i)
	end := l.after(next)
	width := uint32(end - i)
	l[next] |= inner
	l[i] = id | wide
	l[i+1] = inner | width
	l[end-1] = inner | width
}

// compact moves the symbols to the front and returns them without flags.
func (l pieceList) compact() []uint32 {
	kept := 0
	for i := 0; i < len(l); {
		id, next := l[i]&idMask, l.after(i)
		l[kept] = id
		kept++
		i = next
	}
	return l[:kept]
}

// pairQueue returns places by priority, and places of one priority from left to right. It has a list of places for each
// priority. That is faster than a heap of places, because a long piece has many places and few priorities, and places are
// mostly added from left to right.
type pairQueue struct {
	lists []placeList
	// index holds the position in lists of each priority that has waiting places. The entry of lastPriority
	// is lastIndex; it saves most look-ups.
	index                   map[uint32]uint32
	lastPriority, lastIndex uint32
	// waiting is a heap of the priorities in index. Once a list is taken, now is its priority, current holds
	// its places, and all priorities in index are greater.
	waiting binaryHeap[uint32]
	taken   bool
	now     uint32
	current placeList
	// read is the number of places of the first block of current that were returned.
	read uint32
	// late holds priority<<32 | place for the pairs that were added with a priority of at most now. Most
	// vocabularies have none.
	late binaryHeap[uint64]

	slabs  [][]placeBlock
	free   uint32 // the first unused block, 0 for none
	used   uint32 // blocks that were ever used, the one at 0 included, which stays unused
	sorted []uint32
}

// placeList is a list of places in blocks. First is 0 for an empty list. Unordered is set if the
// places are not in ascending order.
type placeList struct {
	first, last uint32
	highest     uint32
	unordered   bool
}

// placeBlock holds some places of a list in a cache line.
type placeBlock struct {
	places [14]uint32
	n      uint32
	next   uint32 // the next block of the list, 0 for none
}

// slabBlocks is the number of blocks that are allocated together.
const slabBlocks = 256

// reset empties the queue and keeps its memory.
func (q *pairQueue) reset() {
	if q.index == nil {
		q.index = map[uint32]uint32{}
	}
	clear(q.index) // a piece whose merging was stopped leaves some
	q.lists, q.lastPriority = q.lists[:0], noRank
	q.waiting, q.late = q.waiting[:0], q.late[:0]
	q.taken, q.read = false, 0
	q.current = placeList{}
	q.free, q.used = 0, 1
}

// block returns a block by its number.
func (q *pairQueue) block(n uint32) *placeBlock { return &q.slabs[n/slabBlocks][n%slabBlocks] }

// newBlock returns the number of an empty block.
func (q *pairQueue) newBlock() uint32 {
	n := q.free
	if n != 0 {
		q.free = q.block(n).next
	} else {
		n = q.used
		q.used++
		if int(n/slabBlocks) == len(q.slabs) {
			q.slabs = append(q.slabs, make([]placeBlock, slabBlocks))
		}
	}

	b := q.block(n)
	b.n, b.next = 0, 0
	return n
}

// freeBlock makes a block available and returns the number of the block after it.
func (q *pairQueue) freeBlock(n uint32) (next uint32) {
	b := q.block(n)
	next, b.next = b.next, q.free
	q.free = n
	return next
}

// push adds a place. The priority noRank means that there is nothing to join.
func (q *pairQueue) push(priority, place uint32) {
	if priority == noRank {
		return
	}
	if q.taken && priority <= q.now {
		q.late.push(uint64(priority)<<32 | uint64(place))
		return
	}

	l := q.list(priority)
	b := q.block(l.last)
	if int(b.n) == len(b.places) {
		n := q.newBlock()
		b.next, l.last = n, n
		b = q.block(n)
	}
	b.places[b.n] = place
	b.n++

	l.unordered = l.unordered || place < l.highest
	l.highest = max(l.highest, place)
}

// list returns the list of a priority, and makes it if there is none.
func (q *pairQueue) list(priority uint32) *placeList {
	if priority == q.lastPriority {
		return &q.lists[q.lastIndex]
	}
	i, ok := q.index[priority]
	if !ok {
		i = uint32(len(q.lists))
		q.index[priority] = i
		q.waiting.push(priority)
		block := q.newBlock()
		q.lists = append(q.lists, placeList{first: block, last: block})
	}
	q.lastPriority, q.lastIndex = priority, i
	return &q.lists[i]
}

// next removes the next place and returns it with the priority under which it was added.
func (q *pairQueue) next() (priority, place uint32, ok bool) {
	if q.current.first == 0 && len(q.late) == 0 && !q.takeList() {
		return 0, 0, false
	}

	if q.current.first != 0 {
		b := q.block(q.current.first)
		place = b.places[q.read]
		if len(q.late) == 0 || q.late[0] > uint64(q.now)<<32|uint64(place) {
			q.read++
			if q.read == b.n {
				q.current.first, q.read = q.freeBlock(q.current.first), 0
			}
			return q.now, place, true
		}
	}

	entry := q.late.pop()
	return uint32(entry >> 32), uint32(entry), true
}

// takeList makes the list of the least priority the current one. It returns false if no list is left.
func (q *pairQueue) takeList() bool {
	if len(q.waiting) == 0 {
		return false
	}
	q.taken, q.now = true, q.waiting.pop()
	q.current = q.lists[q.index[q.now]]
	delete(q.index, q.now)
	if q.current.unordered {
		q.sortCurrent()
	}
	return true
}

// sortCurrent puts the places of the current list in ascending order.
func (q *pairQueue) sortCurrent() {
	q.sorted = q.sorted[:0]
	for n := q.current.first; n != 0; n = q.block(n).next {
		q.sorted = append(q.sorted, q.block(n).places[:q.block(n).n]...)
	}
	slices.Sort(q.sorted)

	rest := q.sorted
	for n := q.current.first; n != 0; n = q.block(n).next {
		b := q.block(n)
		rest = rest[copy(b.places[:b.n], rest):]
	}
}

// releaseLarge drops the memory of the queue after a very large piece, so that one request does not occupy
// that memory for ever.
func (q *pairQueue) releaseLarge() {
	if len(q.slabs) > maxKeptSlabs || cap(q.sorted) > maxKeptPlaces || cap(q.waiting) > maxKeptLists || cap(q.late) > maxKeptPlaces {
		*q = pairQueue{}
	}
}

// These bound the memory that an idle queue keeps, to about half a MiB.
const (
	maxKeptSlabs  = 16
	maxKeptLists  = 1 << 12
	maxKeptPlaces = 1 << 14
)

// binaryHeap is a heap whose least element is at 0.
type binaryHeap[T uint32 | uint64] []T

// push adds v.
func (h *binaryHeap[T]) push(v T) {
	s := append(*h, v)
	i := len(s) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if s[parent] <= v {
			break
		}
		s[i] = s[parent]
		i = parent
	}

	s[i] = v
	*h = s
}

// pop removes the least element, of which there must be one, and returns it.
func (h *binaryHeap[T]) pop() T {
	s := *h
	top, v := s[0], s[len(s)-1]
	s = s[:len(s)-1]
	*h = s

	for i := 0; len(s) > 0; {
		child := 2*i + 1
		if child+1 < len(s) && s[child+1] < s[child] {
			child++
		}
		if child >= len(s) || s[child] >= v {
			s[i] = v
			break
		}
		s[i] = s[child]
		i = child
	}

	return top
}
