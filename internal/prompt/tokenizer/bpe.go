package tokenizer

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// merges is the table of pairs that byte-pair encoding joins: which pair of symbols becomes
// which, and in what order.
type merges struct {
	// slots is open addressing, at most half full. A slot is left<<44 | right<<24 | rank+1, so
	// that a look-up touches one word: a 32-bit key would collide, a wider slot would halve
	// what a cache line holds.
	slots []uint64
	shift uint
	// becomes[rank] is the id of the joined pair.
	joined []uint32
	// turns[rank] is when a pair is joined, where some ranks share a turn; else nil, and every
	// rank has its own.
	priorities []uint32
}

const (
	rankBits = 24
	noRank   = 1<<rankBits - 1
)

var errTooManyMerges = errors.New("it has more than 8 million merges")

func newMerges(n int) (*merges, error) {
	if n >= 1<<23 {
		return nil, errTooManyMerges
	}
	size := bits.Len(uint(2*n + 1))
	return &merges{slots: make([]uint64, 1<<size), shift: 64 - uint(size), joined: make([]uint32, 0, n)}, nil
}

func pairKey(left, right uint32) uint64 { return uint64(left)<<20 | uint64(right) }

func (m *merges) slotOf(key uint64) int { return int(key * 0x9e3779b97f4a7c15 >> m.shift) }

// add gives the next rank to a pair. Of a pair that comes twice the later rank counts, as in
// the reference, which collects them into a map.
func (m *merges) add(left, right, becomes uint32) {
	m.joined = append(m.joined, becomes)
	m.setRank(left, right, uint64(len(m.joined)-1))
}

// put gives a pair a rank.
func (m *merges) setRank(left, right uint32, rank uint64) {
	key := pairKey(left, right)
	i := m.slotOf(key)
	for m.slots[i] != 0 && m.slots[i]>>rankBits != key {
		i = (i + 1) & (len(m.slots) - 1)
	}
	m.slots[i] = key<<rankBits | (rank + 1)
}

// rank is the rank of a pair, noRank where it does not join.
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

// merger joins the symbols of one piece; it holds only scratch space.
type merger struct {
	ranks      []uint32
	next, prev []int32
	heap       []uint64
}

// few is up to how many symbols rescanning beats keeping a heap.
const maxRescan = 48

// merge joins symbols until no pair joins, always the pair of lowest rank and of those the
// leftmost, and returns what is left, in symbols' own memory.
func (g *merger) merge(m *merges, symbols []uint32) []uint32 {
	if len(symbols) > maxRescan {
		return g.mergeWithHeap(m, symbols)
	}
	n := len(symbols)
	var buf [maxRescan]uint32

	turns := buf[:n]
	for i := 0; i+1 < n; i++ {
		turns[i] = m.priority(m.rank(symbols[i], symbols[i+1]))
	}

	for n > 1 {
		best, at := uint32(noRank), 0
		for i, turn := range turns[:n-1] {
			if turn < best {
				best, at = turn, i
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
			copy(turns[at+1:n-1], turns[at+2:n])
			turns[at] = m.priority(m.rank(symbols[at], symbols[at+1]))
		}
		if at > 0 {
			turns[at-1] = m.priority(m.rank(symbols[at-1], symbols[at]))
		}
	}

	return symbols[:n]
}

// mergeMany does the same in n log n, so that a megabyte without a space is no attack. The
// symbols form a list; the heap holds turn<<32 | position, and an entry whose turn is not the
// position's any more is out of date.
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
		gone := g.next[i]
		g.ranks[gone], g.ranks[i] = noRank, noRank
		g.next[i] = g.next[gone]
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

// join notes the rank of the pair that begins at i.
func (g *merger) pushPair(m *merges, symbols []uint32, i int) {
	g.ranks[i] = m.rank(symbols[i], symbols[g.next[i]])
	if g.ranks[i] != noRank {
		g.push(uint64(m.priority(g.ranks[i]))<<32 | uint64(i))
	}
}

func (m *merges) priority(rank uint32) uint32 {
	if m.priorities == nil || rank == noRank {
		return rank
	}
	return m.priorities[rank]
}

// push and pop keep a heap of four children each: half the levels of a binary one, and the
// children share a cache line.
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

// shrink gives back what a huge piece needed.
func (g *merger) releaseLarge() {
	if cap(g.ranks) > 1<<16 {
		*g = merger{}
	}
}

// readMerges reads the merges of a tokenizer.json, as "left right" or as ["left", "right"], and
// shows each to see.
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
			return fmt.Errorf("merge %d: %q and %q are not all in the vocabulary, joined and apart", len(m.joined), l, r)
		}
		m.add(a, b, joined)
		if onMerge != nil {
			onMerge(l, r, a, b)
		}
		return nil
	})

	return m, err
}

// cutPair reads "left right".
func splitPair(line []byte) (left, right []byte, err error) {
	at := slices.Index(line, ' ')
	if at < 0 || slices.Contains(line[at+1:], ' ') {
		return nil, nil, fmt.Errorf("%q is not two tokens with a space between", line)
	}
	return line[:at], line[at+1:], nil
}

// pair reads ["left", "right"].
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
