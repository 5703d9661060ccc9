package tokenizer

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/jsonscan"
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
	// priorities[rank] replaces the rank in the order of joining, if some ranks have the same
	// priority. Of pairs with the same priority the leftmost is joined first. It is nil if the
	// ranks themselves are the order.
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

// addMerge gives the next rank to a pair, which is joined to the symbol joined. A pair that is added twice has
// the later rank, as in the reference, which collects the merges of a file in a map.
func (m *merges) addMerge(left, right, joined uint32) {
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

// merger joins the symbols of one piece at a time. Its queue is scratch space for mergeLong.
type merger struct {
	queue pairQueue
	// done is closed when the result is no longer wanted. It may be nil.
	done <-chan struct{}
}

// maxRescan is the number of symbols up to which rescanning all pairs is faster than a queue.
const maxRescan = 48

// merge joins pairs of symbols until no pair can be joined. It always joins the pair of the lowest
// priority, and of several such pairs the leftmost. It returns the symbols that are left, in the memory of
// the argument.
func (g *merger) merge(m *merges, symbols []uint32) []uint32 {
	if len(symbols) > maxRescan {
		return g.mergeLong(m, symbols)
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

// priority returns the priority of a rank; noRank stays noRank, which is greater than all priorities.
func (m *merges) priority(rank uint32) uint32 {
	if m.priorities == nil || rank == noRank {
		return rank
	}
	return m.priorities[rank]
}

// readMerges reads the merges of a tokenizer.json. Each is written as "left right" or ["left", "right"]. It
// calls onMerge, if that is set, with the text and id of each left and right symbol.
func readMerges(src []byte, spell *alphabet, v *vocabulary, onMerge func(left, right []byte, l, r uint32)) (*merges, error) {
	n := 0
	t := newJSONReader(src)
	if err := t.readArray(func() error { n++; _, err := t.skipValue(); return err }); err != nil {
		return nil, err
	}

	m, err := newMerges(n)
	if err != nil {
		return nil, err
	}

	t = newJSONReader(src)
	var line, left, right, both []byte
	err = t.readArray(func() (err error) {
		l, r := left[:0], right[:0]
		if t.Peek() == jsonscan.String {
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
		m.addMerge(a, b, joined)
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
			t.Fail("a merge of more than two tokens")
		}
		return err
	})
	if i < 2 {
		t.Fail("a merge of fewer than two tokens")
	}
	return left, right, cmp.Or(err, t.failure())
}
