package tokenizer

import (
	"strings"
	"unicode/utf8"
	"unsafe"
)

// stage is one step of a pre-tokenizer. It cuts each piece of the step before it, and may put
// a space before it or write it in another alphabet.
type stage struct {
	kind stageKind

	// stageSplit: the scanner, and whether it sees the text as llama.cpp does.
	split   splitter
	asLlama bool

	// stageMatch: what is found, and what becomes of it and of what stands between.
	finder   finder
	behavior behavior
	invert   bool

	// stageMetaspace
	scheme prependScheme
	cut    bool
}

type stageKind uint8

const (
	stageSplit     stageKind = iota // by a scanner written by hand: pieces cover the text
	stageMatch                      // by matches, with a behavior
	stagePrefix                     // a space before a piece that does not begin with one
	stageMetaspace                  // spaces become ▁, with one before, and begin pieces
	stageSpell                      // bytes become the characters that stand for them
	stageUnspell                    // and back, last
)

// finder finds the first match at or after i < len(s): an empty one at the end for none.
type finder interface {
	findMatch(m *search, s string, i int) (start, end int)
}

// behavior is what becomes of matches.
type behavior uint8

const (
	isolated behavior = iota
	removed
	contiguous
	mergedWithPrevious
	mergedWithNext
)

var behaviors = map[string]behavior{
	"Isolated": isolated, "Removed": removed, "Contiguous": contiguous, "MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext": mergedWithNext,
}

type prependScheme uint8

const (
	prependNever prependScheme = iota
	prependFirst
	prependAlways
)

// find for a pattern searches on in the text that m has begun, or begins it.
func (p *pattern) findMatch(m *search, s string, i int) (start, end int) {
	if i == 0 || m.p != p || m.s != s {
		m.reset(p, s)
	}
	return m.findMatch(i)
}

// literal finds a string.
type literal string

func (l literal) findMatch(_ *search, s string, i int) (start, end int) {
	k := strings.Index(s[i:], string(l))
	if k < 0 {
		return len(s), len(s)
	}
	return i + k, i + k + len(l)
}

// oneOf finds single characters.
type oneOf struct{ *charset }

func (c oneOf) findMatch(_ *search, s string, i int) (start, end int) {
	for i < len(s) {
		if n := c.lengthAt(s, i); n > 0 {
			return i, i + n
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		i += n
	}
	return len(s), len(s)
}

// fixedLength finds stretches of so many characters.
type fixedLength int

func (n fixedLength) findMatch(_ *search, s string, i int) (start, end int) {
	start = i
	for k := 0; k < int(n) && i < len(s); k++ {
		_, size := utf8.DecodeRuneInString(s[i:])
		i += size
	}
	return start, i
}

// stage cuts s by the first stage and each piece by the rest.
func (e *encoder) runStages(s string, stages []stage) {
	if len(stages) == 0 {
		e.encodeWord(s)
		return
	}

	st, rest := &stages[0], stages[1:]
	switch st.kind {
	case stageSplit:
		seen := s
		if st.asLlama {
			seen = e.replaceForLlama(s, len(rest))
		}
		for i := 0; i < len(s); {
			j := st.split(seen, i)
			if len(rest) == 0 {
				e.encodeWord(s[i:j])
			} else {
				e.runStages(s[i:j], rest)
			}
			i = j
		}
	case stageMatch:
		e.splitByMatches(s, st, rest)
	case stagePrefix:
		if s[0] != ' ' {
			s = e.writeStage(len(rest), func(dst []byte) []byte { return append(append(dst, ' '), s...) })
		}
		e.runStages(s, rest)
	case stageMetaspace:
		e.splitMetaspace(s, st, rest)
	case stageSpell:
		e.runStages(e.writeStage(len(rest), func(dst []byte) []byte { return byteLevel.encode(dst, s) }), rest)
	case stageUnspell:
		e.encodeWord(e.writeStage(len(rest), func(dst []byte) []byte {
			dst, _ = byteLevel.decode(dst, bytesOf(s))
			return dst
		}))
	}
}

// rewrite is a text that write writes, in the buffer of the stage that has left more after it:
// a piece may be rewritten again while the rest of an earlier one is still needed.
func (e *encoder) writeStage(stagesLeft int, write func([]byte) []byte) string {
	for len(e.stageBuffers) <= stagesLeft {
		e.stageBuffers = append(e.stageBuffers, nil)
	}
	b := write(e.stageBuffers[stagesLeft][:0])
	e.stageBuffers[stagesLeft] = b
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// matched cuts s at matches. A part is a match or what stands between two; with invert they
// change places. Held is a part that waits for its neighbour.
func (e *encoder) splitByMatches(s string, st *stage, rest []stage) {
	m := e.acquireSearch()
	heldFrom := 0
	heldTo := 0
	held := false
	previous := false // whether the last part was a match
	flush := func() {
		if held {
			e.runStages(s[heldFrom:heldTo], rest)
		}
		held = false
	}

	part := func(from, to int, match bool) {
		match = match != st.invert
		join := false
		switch st.behavior {
		case removed:
			if match {
				return
			}
		case contiguous:
			join = held && match == previous
		case mergedWithPrevious:
			join = held && match && !previous
		case mergedWithNext:
			join = held && !match && previous
		}
		previous = match
		if !join {
			flush()
			heldFrom, held = from, true
		}
		heldTo = to
	}

	for i := 0; i < len(s); {
		start, end := st.finder.findMatch(m, s, i)
		if start > i {
			part(i, start, false)
		}
		if end > start {
			part(start, end, true)
		}
		i = end
	}

	flush()
	e.releaseSearch(m)
}

// takeSearch and giveSearch keep one search for each stage that is at work.
func (e *encoder) acquireSearch() *search {
	if n := len(e.searches); n > 0 {
		m := e.searches[n-1]
		e.searches = e.searches[:n-1]
		m.p = nil
		return m
	}
	return &search{}
}

func (e *encoder) releaseSearch(m *search) {
	m.s = ""
	e.searches = append(e.searches, m)
}

// metaspace writes ▁ for spaces, puts one before s as the scheme says, and cuts before each.
func (e *encoder) splitMetaspace(s string, st *stage, rest []stage) {
	marked := s[0] == ' ' || strings.HasPrefix(s, lowerBlock)
	prepend := !marked && (st.scheme == prependAlways || st.scheme == prependFirst && e.first)
	e.first = false

	if folded := e.t.alphabet == markedText; prepend || !folded {
		s = e.writeStage(len(rest), func(dst []byte) []byte {
			if folded {
				return append(append(dst, ' '), s...)
			}
			if prepend {
				dst = append(dst, lowerBlock...)
			}
			return appendMarked(dst, s)
		})
	}

	if !st.cut {
		e.runStages(s, rest)
		return
	}

	start := 0
	for i := 1; i < len(s); i++ {
		if s[i] == ' ' || s[i] == lowerBlock[0] && strings.HasPrefix(s[i:], lowerBlock) {
			e.runStages(s[start:i], rest)
			start = i
		}
	}

	e.runStages(s[start:], rest)
}
