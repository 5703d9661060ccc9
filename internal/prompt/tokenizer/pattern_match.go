package tokenizer

import (
	"sync"
	"unicode/utf8"
)

// search finds the matches of a pattern in one text at a time. Its buffers are used again for the next text.
//
// A search records the pairs of instruction and position from which no match is possible, and does not try
// them again in the same text. The number of steps is therefore at most proportional to the length of the
// text times the length of the program. Plain backtracking can need an exponential number of steps, which a
// client could use as an attack.
type search struct {
	p     *pattern
	s     string
	stack []choice
	// failed holds for each unbounded loop the last range of positions from which continuing
	// after the loop failed. The range is [first, last]; it is empty if last is -1. No
	// position in it is tried again.
	failed [][2]int32
	// deadEnds has a bit for each split and position from which no match is possible. It is empty until a
	// text has cost many steps, because most texts never need it.
	deadEnds []uint64
	steps    int
}

// choice is an entry of the stack to which the search backtracks.
type choice struct {
	pc     int32
	lo, hi int32
	count  int32 // of characters that a lazy loop has matched
	kind   choiceKind
}

type choiceKind uint8

const (
	choiceResume  choiceKind = iota // go on at pc from hi
	choiceShorten                   // of a greedy loop: go on at pc from each position before hi, down to lo
	choiceExtend                    // of a lazy loop: match one more character at hi
	choiceFailed                    // no attempt: record that the loop or split at pc has failed
)

// reset prepares m for text s.
func (m *search) reset(p *pattern, s string) {
	m.p = p
	m.s = s
	m.steps = 0
	if cap(m.failed) < len(p.prog) {
		m.failed = make([][2]int32, len(p.prog))
	}

	m.failed = m.failed[:len(p.prog)]
	for i := range m.failed {
		m.failed[i] = [2]int32{0, -1}
	}
	m.deadEnds = m.deadEnds[:0]
	if cap(m.deadEnds) > 1<<16 {
		m.deadEnds = nil
	}
}

// findMatch returns the first match at or after i. Start and end are len(s) if there is none.
func (m *search) findMatch(i int) (start, end int) {
	for i < len(m.s) {
		if end := m.matchAt(0, int32(i)); end > int32(i) {
			return i, int(end)
		}
		_, n := utf8.DecodeRuneInString(m.s[i:])
		i += n
	}
	return len(m.s), len(m.s)
}

// matchAt runs the program from pc at pos and returns the end of the match, or -1. It recurses only for
// look-aheads and atomic groups, so that the depth is bounded by the nesting of the expression.
func (m *search) matchAt(pc, pos int32) int32 {
	base := len(m.stack)
	for {
		m.steps++
		i := &m.p.prog[pc]
		ok := true
		switch i.op {
		case opSet:
			n := i.set.lengthAt(m.s, int(pos))
			ok = n > 0
			pos, pc = pos+int32(n), pc+1
		case opLoop:
			pos, ok = m.runLoop(i, pc, pos)
			if ok {
				pc++
			}
		case opSplit:
			ok = !m.isDeadEnd(i, pos)
			if ok {
				m.pushSplit(i, pc, pos)
				pc = i.x
			}
		case opJump:
			pc = i.x
		case opLook:
			ok = (m.matchAt(pc+1, pos) >= 0) == (i.min == 0)
			pc = i.x
		case opAtomic:
			pos = m.matchAt(pc+1, pos)
			ok = pos >= 0
			pc = i.x
		case opAssert:
			ok = m.assertHolds(int(i.min), int(pos))
			pc++
		case opMatch:
			m.stack = m.stack[:base]
			return pos
		}
		if !ok {
			pc, pos = m.backtrack(base)
			if pc < 0 {
				return -1
			}
		}
	}
}

// runLoop matches the characters of a loop from pos on and returns their end. It pushes choices
// for the other lengths of the loop. It returns false if the loop cannot match, or if
// continuing after it has failed before.
func (m *search) runLoop(i *inst, pc, pos int32) (int32, bool) {
	at, count := pos, int32(0)
	for ; count < i.min; count++ {
		n := i.set.lengthAt(m.s, int(at))
		if n == 0 {
			return pos, false
		}
		at += int32(n)
	}

	failed := [2]int32{0, -1}
	if i.max < 0 {
		failed = m.failed[pc]
		if failed[0] <= at && at <= failed[1] && i.mode != possessive {
			return pos, false
		}
	}

	if i.mode == lazy {
		m.stack = append(m.stack, choice{pc: pc, lo: at, hi: at, count: count, kind: choiceExtend})
		return at, true
	}

	least, known := at, false
	for ; i.max < 0 || count < i.max; count++ {
		known = at == failed[0] && failed[1] >= 0 && i.mode == greedy
		if known {
			break
		}
		n := i.set.lengthAt(m.s, int(at))
		if n == 0 {
			break
		}
		at += int32(n)
	}

	m.steps += int(count) / 8
	if i.mode == greedy {
		if i.max < 0 {
			end := at
			if known {
				end = failed[1]
			}
			m.stack = append(m.stack, choice{pc: pc, lo: least, hi: end, kind: choiceFailed})
		}
		if at > least {
			m.stack = append(m.stack, choice{pc: pc + 1, lo: least, hi: at, kind: choiceShorten})
		}
	}

	return at, !known
}

// pushSplit pushes the second way of a split. If dead ends are recorded, it first pushes a choice that is
// reached only after both ways have failed.
func (m *search) pushSplit(i *inst, pc, pos int32) {
	if m.recordsDeadEnds() {
		m.stack = append(m.stack, choice{pc: pc, lo: pos, hi: pos, kind: choiceFailed})
	}
	m.stack = append(m.stack, choice{pc: i.y, lo: pos, hi: pos, kind: choiceResume})
}

// backtrack returns the place to continue from, by the last choice above base. Pc is -1 if no choice is left.
func (m *search) backtrack(base int) (pc, pos int32) {
	for len(m.stack) > base {
		c := &m.stack[len(m.stack)-1]
		switch c.kind {
		case choiceResume:
			pc, pos = c.pc, c.hi
			m.stack = m.stack[:len(m.stack)-1]
			return pc, pos
		case choiceShorten:
			_, n := utf8.DecodeLastRuneInString(m.s[:c.hi])
			c.hi -= int32(n)
			pc, pos = c.pc, c.hi
			if c.hi <= c.lo {
				m.stack = m.stack[:len(m.stack)-1]
			}
			return pc, pos
		case choiceExtend:
			if m.extendLazy(c) {
				return c.pc + 1, c.hi
			}
		case choiceFailed:
			m.recordFailure(c)
		}
		m.stack = m.stack[:len(m.stack)-1]
	}
	return -1, 0
}

// extendLazy matches one more character of a lazy loop. It returns false if the loop cannot be longer, and then records that
// all its lengths have failed.
func (m *search) extendLazy(c *choice) bool {
	i := &m.p.prog[c.pc]
	n := int32(i.set.lengthAt(m.s, int(c.hi)))
	if i.max >= 0 {
		c.hi += n
		c.count++
		return n > 0 && c.count <= i.max
	}

	f := m.failed[c.pc]
	if next := c.hi + n; n > 0 && (next < f[0] || next > f[1]) {
		c.hi = next
		return true
	} else if n > 0 {
		c.hi = f[1]
	}

	m.failed[c.pc] = [2]int32{c.lo, c.hi}
	return false
}

// recordFailure records that all ways of a loop or split have failed.
func (m *search) recordFailure(c *choice) {
	i := &m.p.prog[c.pc]
	if i.op == opLoop {
		m.failed[c.pc] = [2]int32{c.lo, c.hi}
		return
	}
	bit := int(i.splitIndex)*(len(m.s)+1) + int(c.hi)
	m.deadEnds[bit>>6] |= 1 << (bit & 63)
}

// isDeadEnd reports whether split i at pos is recorded as a dead end.
func (m *search) isDeadEnd(i *inst, pos int32) bool {
	if len(m.deadEnds) == 0 {
		return false
	}
	bit := int(i.splitIndex)*(len(m.s)+1) + int(pos)
	return m.deadEnds[bit>>6]&(1<<(bit&63)) != 0
}

// stepsPerByte is the number of steps per byte of text after which a search records dead ends.
const stepsPerByte = 64

// recordsDeadEnds reports whether dead ends are recorded. It starts the recording once the text has cost many
// steps; the table has a bit for each split and position.
func (m *search) recordsDeadEnds() bool {
	if len(m.deadEnds) > 0 {
		return true
	}
	if m.steps < stepsPerByte*(len(m.s)+16) {
		return false
	}

	m.deadEnds = append(m.deadEnds, make([]uint64, (m.p.splits*(len(m.s)+1)+63)/64)...)
	return true
}

// onigurumaWord returns the set of Oniguruma's \w.
var onigurumaWord = sync.OnceValue(func() *charset { return newCharset(shorthand('w')) })

// assertHolds reports whether the assertion is true at position i of the text.
func (m *search) assertHolds(assertion, i int) bool {
	s := m.s
	switch assertion {
	case lineStart:
		return i == 0 || s[i-1] == '\n' && i < len(s)
	case lineEnd:
		return i == len(s) || s[i] == '\n'
	case textStart:
		return i == 0
	case textEnd:
		return i == len(s)
	case textLastEnd:
		return i == len(s) || i == len(s)-1 && s[i] == '\n'
	}

	r, n := utf8.DecodeLastRuneInString(s[:i])
	before := n > 0 && onigurumaWord().has(r)
	after := onigurumaWord().lengthAt(s, i) > 0
	return (before != after) == (assertion == wordEdge)
}
