package tokenizer

import (
	"sync"
	"unicode/utf8"
)

// search is one text being searched for a pattern; it is scratch space that is used again.
//
// What it learns of a place is kept while the text lasts: that from this instruction at this
// position nothing leads to a match. So a text costs steps in proportion to its length times
// that of the program, whatever the expression, where plain backtracking may never end.
type search struct {
	p     *pattern
	s     string
	stack []choice
	// failed holds for each unbounded loop the last stretch of ends from which nothing matches;
	// where one begins that could come to that stretch, no end in it is tried again.
	failed [][2]int32
	// dead has a bit for each split and position from which nothing matches. It is kept once
	// steps are many; most texts never come to that.
	deadEnds []uint64
	steps    int
}

// choice is something to come back to.
type choice struct {
	pc     int32
	lo, hi int32
	count  int32 // of characters that a lazy loop has taken
	kind   choiceKind
}

type choiceKind uint8

const (
	choiceResume  choiceKind = iota // go on at pc from hi
	choiceShorten                   // a greedy loop's: go on at pc from hi, then from before it, down to lo
	choiceExtend                    // a lazy loop's: take one more character at hi
	choiceFailed                    // all ways of the loop or split at pc have failed
)

// begin makes ready to search s.
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

// find is the first match at or after i; start is len(s) where there is none.
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

// run is the end of the match from pc at pos, or -1. It recurses only into groups that look
// ahead or never come back, which are nested as deeply as the expression says.
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

// loop takes the characters of a loop and notes what else it could have taken.
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

func (m *search) pushSplit(i *inst, pc, pos int32) {
	if m.recordsDeadEnds() {
		m.stack = append(m.stack, choice{pc: pc, lo: pos, hi: pos, kind: choiceFailed})
	}
	m.stack = append(m.stack, choice{pc: i.y, lo: pos, hi: pos, kind: choiceResume})
}

// back takes the last choice that is left.
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

// longer takes one more character of a lazy loop, if there is one; if not, all its ends have
// failed.
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

// fail remembers that all ways of a loop or split have failed.
func (m *search) recordFailure(c *choice) {
	i := &m.p.prog[c.pc]
	if i.op == opLoop {
		m.failed[c.pc] = [2]int32{c.lo, c.hi}
		return
	}
	bit := int(i.splitIndex)*(len(m.s)+1) + int(c.hi)
	m.deadEnds[bit>>6] |= 1 << (bit & 63)
}

func (m *search) isDeadEnd(i *inst, pos int32) bool {
	if len(m.deadEnds) == 0 {
		return false
	}
	bit := int(i.splitIndex)*(len(m.s)+1) + int(pos)
	return m.deadEnds[bit>>6]&(1<<(bit&63)) != 0
}

// keepsDead says whether dead ends are remembered, from many steps on.
func (m *search) recordsDeadEnds() bool {
	if len(m.deadEnds) > 0 {
		return true
	}
	if m.steps < 64*(len(m.s)+16) {
		return false
	}

	m.deadEnds = append(m.deadEnds, make([]uint64, (m.p.splits*(len(m.s)+1)+63)/64)...)
	return true
}

// onigWord is Oniguruma's \w.
var onigurumaWord = sync.OnceValue(func() *charset { return newCharset(shorthand('w')) })

// place says whether the text at i is as an assertion asks.
func (m *search) assertHolds(what, i int) bool {
	s := m.s
	switch what {
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
	return (before != after) == (what == wordEdge)
}
