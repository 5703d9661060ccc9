package tokenizer

import (
	"strings"
	"unicode/utf8"
	"unsafe"
)

// stage is one step of a pre-tokenizer. It cuts each piece of the stage before it. Some stages also rewrite
// the piece.
type stage struct {
	kind stageKind

	// For stageSplit: the scanner, and whether the text must be replaced for llama.cpp's expressions.
	split   splitter
	asLlama bool

	// For stageMatch: the finder of matches, and how pieces are made of matches and the text between.
	// Invert exchanges matches and text between.
	finder   finder
	behavior behavior
	invert   bool

	// For stageMetaspace: when to put ▁ before the text, and whether to cut before each ▁.
	scheme prependScheme
	cut    bool
}

type stageKind uint8

const (
	stageSplit     stageKind = iota // cut with a handwritten scanner
	stageMatch                      // cut at matches
	stagePrefix                     // put a space before a piece that does not begin with one
	stageMetaspace                  // write ▁ for spaces and before the text, and cut before each
	stageSpell                      // write bytes in the alphabet of ByteLevel
	stageUnspell                    // undo stageSpell; always the last stage
)

// finder finds the first match at or after i < len(s). It returns an empty match at the end if there is none. M
// is scratch space for patterns.
type finder interface {
	findMatch(m *search, s string, i int) (start, end int)
}

// behavior is the way in which pieces are made of the matches and the text between them.
type behavior uint8

const (
	isolated           behavior = iota // each match is a piece
	removed                            // matches are dropped
	contiguous                         // adjacent matches are one piece
	mergedWithPrevious                 // a match joins the text before it
	mergedWithNext                     // a match joins the text after it
)

var behaviors = map[string]behavior{
	"Isolated": isolated, "Removed": removed, "Contiguous": contiguous, "MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext": mergedWithNext,
}

// prependScheme sets the texts before which a Metaspace puts ▁.
type prependScheme uint8

const (
	prependNever  prependScheme = iota
	prependFirst                // only at the beginning of the prompt
	prependAlways               // also after added tokens
)

// findMatch continues the search of s where m has begun it, so that its recorded failures are used. Otherwise
// it begins the search.
func (p *pattern) findMatch(m *search, s string, i int) (start, end int) {
	if i == 0 || m.p != p || m.s != s {
		m.reset(p, s)
	}
	return m.findMatch(i)
}

// literal finds a string.
type literal string

// findMatch returns the first occurrence of l.
func (l literal) findMatch(_ *search, s string, i int) (start, end int) {
	k := strings.Index(s[i:], string(l))
	if k < 0 {
		return len(s), len(s)
	}
	return i + k, i + k + len(l)
}

// oneOf finds single characters of a set.
type oneOf struct{ *charset }

// findMatch returns the first character of the set.
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

// fixedLength finds pieces of that many characters.
type fixedLength int

// findMatch returns the n characters from i on, or fewer at the end of s.
func (n fixedLength) findMatch(_ *search, s string, i int) (start, end int) {
	start = i
	for k := 0; k < int(n) && i < len(s); k++ {
		_, size := utf8.DecodeRuneInString(s[i:])
		i += size
	}
	return start, i
}

// runStages cuts s by the first of stages, and each piece by the others. It encodes the final pieces.
func (e *encoder) runStages(s string, stages []stage) {
	if e.stopped() {
		return
	}
	if len(stages) == 0 {
		e.encodeWord(s)
		return
	}

	st, rest := &stages[0], stages[1:]
	switch st.kind {
	case stageSplit:
		scanned := s
		if st.asLlama {
			scanned = e.replaceForLlama(s, len(rest))
		}
		if len(rest) == 0 && e.t.chars == nil {
			e.encodeSplit(s, scanned, st.split)
			return
		}
		for i := 0; i < len(s) && !e.stopped(); {
			j := st.split(scanned, i)
			e.runStages(s[i:j], rest)
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

// writeStage returns the text that write appends to the buffer of a stage. StagesLeft, the number of stages
// after it, identifies the buffer. Each stage needs its own, because a stage still reads the rest of its text
// while later stages rewrite a piece of it.
func (e *encoder) writeStage(stagesLeft int, write func([]byte) []byte) string {
	for len(e.stageBuffers) <= stagesLeft {
		e.stageBuffers = append(e.stageBuffers, nil)
	}
	b := write(e.stageBuffers[stagesLeft][:0])
	e.stageBuffers[stagesLeft] = b
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// splitByMatches cuts s at the matches of st and runs the stages rest on the pieces. A part is a match or the
// text between two matches. The last part is held back until the next one shows whether they are joined.
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

	for i := 0; i < len(s) && !e.stopped(); {
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

// acquireSearch returns an unused search. Stages are nested, so each running stage needs its own search.
func (e *encoder) acquireSearch() *search {
	if n := len(e.searches); n > 0 {
		m := e.searches[n-1]
		e.searches = e.searches[:n-1]
		m.p = nil
		return m
	}
	return &search{}
}

// releaseSearch keeps m for a later acquireSearch.
func (e *encoder) releaseSearch(m *search) {
	m.s = ""
	e.searches = append(e.searches, m)
}

// splitMetaspace writes ▁ for each space of s and before s, as the scheme requires. If st.cut is set it cuts
// before each ▁. With a folded vocabulary it leaves spaces as they are, because they mean ▁.
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
	for i := 1; i < len(s) && !e.stopped(); i++ {
		if s[i] == ' ' || s[i] == lowerBlock[0] && strings.HasPrefix(s[i:], lowerBlock) {
			e.runStages(s[start:i], rest)
			start = i
		}
	}

	e.runStages(s[start:], rest)
}
