package tokenizer

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// merges is the table of the pairs of symbols that byte-pair encoding joins. Each pair has a rank: pairs of
// lower rank are joined first.
type merges struct {
	// slots is a hash table with open addressing, at most half full. A slot is
	// left<<44 | right<<24 | rank+1, and 0 is an empty slot. Key and value share one word, so that a
	// look-up usually loads one cache line.
	slots []uint64
	shift uint // of a 64-bit hash, to get an index of slots
	// joined[rank] is the id of the joined pair.
	joined []uint32
	// priorities[rank] replaces the rank in the order of joining, where some ranks have the same
	// priority. Of pairs with the same priority the leftmost is joined first. It is nil where the ranks
	// themselves are the order.
	priorities []uint32
}

const (
	rankBits = 24
	noRank   = 1<<rankBits - 1
)

// maxMerges keeps rank+1 within rankBits.
const maxMerges = 1<<23 - 1

var errTooManyMerges = fmt.Errorf("more than %d merges are not supported", maxMerges)

// newMerges returns an empty table with room for n pairs.
func newMerges(n int) (*merges, error) {
	if n > maxMerges {
		return nil, errTooManyMerges
	}
	size := bits.Len(uint(2*n + 1))
	return &merges{slots: make([]uint64, 1<<size), shift: 64 - uint(size), joined: make([]uint32, 0, n)}, nil
}

func pairKey(left, right uint32) uint64 { return uint64(left)<<20 | uint64(right) }

func (m *merges) slotOf(key uint64) int { return int(key * 0x9e3779b97f4a7c15 >> m.shift) }

// add gives the next rank to a pair, which is joined to the symbol joined. A pair that is added twice has
// the later rank, as in the reference, which collects the merges of a file in a map.
func (m *merges) add(left, right, joined uint32) {
	m.joined = append(m.joined, joined)
	m.setRank(left, right, uint64(len(m.joined)-1))
}

// setRank stores the rank of a pair, and replaces the one that it has.
func (m *merges) setRank(left, right uint32, rank uint64) {
	key := pairKey(left, right)
	i := m.slotOf(key)
	for m.slots[i] != 0 && m.slots[i]>>rankBits != key {
		i = (i + 1) & (len(m.slots) - 1)
	}
	m.slots[i] = key<<rankBits | (rank + 1)
}

// rank returns the rank of a pair, or noRank for a pair that is never joined.
func (m *merges) rank(left, right uint32) uint32 {
	key := pairKey(left, right)
	for i := m.slotOf(key); ; i = (i + 1) & (len(m.slots) - 1) {
		s := m.slots[i]
		if s>>rankBits == key && s != 0 {
			return uint32(s&(1<<rankBits-1)) - 1
		}
		if s == 0 {
			return noRank
		}
	}
}

// merger joins the symbols of one piece at a time. Its fields are scratch space for mergeWithHeap.
type merger struct {
	ranks      []uint32 // rank of the pair that begins at each position
	next, prev []int32  // positions of the neighbours of each symbol that is left
	heap       []uint64 // see mergeWithHeap
}

// maxRescan is the number of symbols up to which rescanning all pairs is faster than a heap.
const maxRescan = 48

// merge joins pairs of symbols until no pair can be joined. It always joins the pair of the lowest
// priority, and of several such pairs the leftmost. It returns the symbols that are left, in the memory of
// the argument.
func (g *merger) merge(m *merges, symbols []uint32) []uint32 {
	if len(symbols) > maxRescan {
		return g.mergeWithHeap(m, symbols)
	}
	n := len(symbols)
	var buf [maxRescan]uint32

	priorities := buf[:n]
	for i := 0; i+1 < n; i++ {
		priorities[i] = m.priority(m.rank(symbols[i], symbols[i+1]))
	}

	for n > 1 {
		best, at := uint32(noRank), 0
		for i, priority := range priorities[:n-1] {
			if priority < best {
				best, at = priority, i
			}
		}
		if best == noRank {
			break
		}
		if m.priorities != nil {
			best = m.rank(symbols[at], symbols[at+1])
		}
		symbols[at] = m.joined[best]
		copy(symbols[at+1:n-1], symbols[at+2:n])
		n--
		if at+1 < n {
			copy(priorities[at+1:n-1], priorities[at+2:n])
			priorities[at] = m.priority(m.rank(symbols[at], symbols[at+1]))
		}
		if at > 0 {
			priorities[at-1] = m.priority(m.rank(symbols[at-1], symbols[at]))
		}
	}

	return symbols[:n]
}

// mergeWithHeap does what merge does in O(n log n). Without it a long text without spaces would cost O(n²),
// and a client could use that as an attack. The symbols form a linked list. The heap has an entry
// priority<<32 | position for each pair. Entries are not removed when a pair changes: an entry is out of
// date where its priority is not that of the pair which now begins at its position.
func (g *merger) mergeWithHeap(m *merges, symbols []uint32) []uint32 {
	n := len(symbols)
	g.next, g.prev = slices.Grow(g.next[:0], n)[:n], slices.Grow(g.prev[:0], n)[:n]
	g.ranks, g.heap = slices.Grow(g.ranks[:0], n)[:n], g.heap[:0]

	for i := range symbols {
		g.next[i] = int32(i + 1)
		g.prev[i] = int32(i - 1)
		g.ranks[i] = noRank
	}

	for i := 0; i+1 < n; i++ {
		g.pushPair(m, symbols, i)
	}
	for len(g.heap) > 0 {
		top := g.pop()
		i := int(uint32(top))
		rank := g.ranks[i]
		if rank == noRank || m.priority(rank) != uint32(top>>32) {
			continue
		}
		symbols[i] = m.joined[rank]
		right := g.next[i]
		g.ranks[right], g.ranks[i] = noRank, noRank
		g.next[i] = g.next[right]
		if after := int(g.next[i]); after < n {
			g.prev[after] = int32(i)
			g.pushPair(m, symbols, i)
		}
		if before := int(g.prev[i]); before >= 0 {
			g.pushPair(m, symbols, before)
		}
	}

	kept := 0
	for i := 0; i < n; i = int(g.next[i]) {
		symbols[kept] = symbols[i]
		kept++
	}
	g.releaseLarge()
	return symbols[:kept]
}

// pushPair sets the rank of the pair that begins at i, and adds the pair to the heap if it can be joined.
func (g *merger) pushPair(m *merges, symbols []uint32, i int) {
	g.ranks[i] = m.rank(symbols[i], symbols[g.next[i]])
	if g.ranks[i] != noRank {
		g.push(uint64(m.priority(g.ranks[i]))<<32 | uint64(i))
	}
}

// priority returns the priority of a rank; noRank stays noRank, which is greater than all priorities.
func (m *merges) priority(rank uint32) uint32 {
	if m.priorities == nil || rank == noRank {
		return rank
	}
	return m.priorities[rank]
}

// push adds v to the heap. Each node of the heap has four children, which share a cache line, so that the
// heap has half the levels of a binary one.
func (g *merger) push(v uint64) {
	h := append(g.heap, v)
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if h[parent] <= v {
			break
		}
		h[i] = h[parent]
		i = parent
	}

	h[i] = v
	g.heap = h
}

// pop removes the least entry from the heap, which must not be empty, and returns it.
func (g *merger) pop() uint64 {
	h := g.heap
	top, v := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	g.heap = h

	for i := 0; len(h) > 0; {
		child := 4*i + 1
		if child >= len(h) {
			h[i] = v
			break
		}
		least := child
		for k := child + 1; k < min(child+4, len(h)); k++ {
			if h[k] < h[least] {
				least = k
			}
		}
		if h[least] >= v {
			h[i] = v
			break
		}
		h[i] = h[least]
		i = least
	}

	return top
}

// releaseLarge drops the scratch space after a very large piece, so that one request does not occupy that
// memory for ever.
func (g *merger) releaseLarge() {
	if cap(g.ranks) > maxKeptSymbols {
		*g = merger{}
	}
}

// maxKeptSymbols is the size up to which a merger keeps its scratch space.
const maxKeptSymbols = 1 << 16

// readMerges reads the merges of a tokenizer.json. Each is written as "left right" or ["left", "right"]. It
// calls onMerge, where that is set, with the text and id of each left and right symbol.
func readMerges(src []byte, spell *alphabet, v *vocabulary, onMerge func(left, right []byte, l, r uint32)) (*merges, error) {
	n := 0
	t := jsonReader{src: src}
	if err := t.readArray(func() error { n++; _, err := t.skipValue(); return err }); err != nil {
		return nil, err
	}

	m, err := newMerges(n)
	if err != nil {
		return nil, err
	}

	t = jsonReader{src: src}
	var line, left, right, both []byte
	err = t.readArray(func() (err error) {
		l, r := left[:0], right[:0]
		if t.skipSpace() == '"' {
			line, err = t.appendString(line[:0])
			if err != nil || strings.HasPrefix(string(line), "#version") {
				return err
			}
			l, r, err = splitPair(line)
		} else {
			l, r, err = t.appendPair(l, r)
			left, right = l, r
		}
		if err != nil {
			return fmt.Errorf("merge %d: %w", len(m.joined), err)
		}
		both = append(append(both[:0], l...), r...)
		a, b := v.idOfSpelling(spell, l), v.idOfSpelling(spell, r)
		joined := v.idOfSpelling(spell, both)
		if a == none || b == none || joined == none {
			return fmt.Errorf("merge %d: the vocabulary lacks %q, %q or their concatenation", len(m.joined), l, r)
		}
		m.add(a, b, joined)
		if onMerge != nil {
			onMerge(l, r, a, b)
		}
		return nil
	})

	return m, err
}

// splitPair splits "left right" at its space.
func splitPair(line []byte) (left, right []byte, err error) {
	at := slices.Index(line, ' ')
	if at < 0 || slices.Contains(line[at+1:], ' ') {
		return nil, nil, fmt.Errorf("%q is not two tokens separated by one space", line)
	}
	return line[:at], line[at+1:], nil
}

// appendPair reads ["left", "right"] and appends the two strings to left and right.
func (t *jsonReader) appendPair(left, right []byte) (l, r []byte, err error) {
	i := 0
	err = t.readArray(func() (err error) {
		switch i++; i {
		case 1:
			left, err = t.appendString(left)
		case 2:
			right, err = t.appendString(right)
		default:
			err = t.syntaxError()
		}
		return err
	})

	if err == nil && i != 2 {
		err = t.syntaxError()
	}
	return left, right, err
}
