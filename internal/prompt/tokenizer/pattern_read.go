package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// patternReader parses an expression from front to back.
type patternReader struct {
	src string
	at  int
	// foldCase is set if case is ignored, as after (?i).
	foldCase bool
	// lastLiteral is the literal character before the current one while foldCase is set, 0 for none.
	lastLiteral rune
}

// maxDepth bounds the nesting of groups and classes.
const maxDepth = 100

// peek returns the next byte without reading it, or 0 at the end.
func (r *patternReader) peek() byte {
	if r.at < len(r.src) {
		return r.src[r.at]
	}
	return 0
}

// accept reads s if it comes next, and reports whether it did.
func (r *patternReader) accept(s string) bool {
	if strings.HasPrefix(r.src[r.at:], s) {
		r.at += len(s)
		return true
	}
	return false
}

// readRune reads one character.
func (r *patternReader) readRune() (rune, error) {
	c, n := utf8.DecodeRuneInString(r.src[r.at:])
	if n == 0 {
		return 0, errors.New("it is incomplete")
	}
	r.at += n
	return c, nil
}

// readChoice reads alternatives up to a closing parenthesis or the end.
func (r *patternReader) readChoice(depth int) (*expr, error) {
	if depth > maxDepth {
		return nil, errors.New("it is nested too deeply")
	}
	n := &expr{kind: nodeChoice}
	for {
		s, err := r.readSequence(depth)
		if err != nil {
			return nil, err
		}
		n.subs = append(n.subs, s)
		if !r.accept("|") {
			break
		}
	}

	if len(n.subs) == 1 {
		return n.subs[0], nil
	}
	return n, nil
}

// readSequence reads one alternative: atoms with their quantifiers.
func (r *patternReader) readSequence(depth int) (*expr, error) {
	n := &expr{kind: nodeSequence}
	r.lastLiteral = 0

	for r.at < len(r.src) && r.peek() != '|' && r.peek() != ')' {
		if r.at == 0 && r.accept("(?i)") {
			r.foldCase = true
			continue
		}
		s, err := r.readAtom(depth)
		if err != nil {
			return nil, err
		}
		for more := true; more; {
			s, more, err = r.readQuantifier(s)
			if err != nil {
				return nil, err
			}
		}
		n.subs = append(n.subs, s)
	}

	if len(n.subs) == 1 {
		return n.subs[0], nil
	}
	return n, nil
}

// readAtom reads a character, a class, a group or an assertion.
func (r *patternReader) readAtom(depth int) (*expr, error) {
	switch c := r.peek(); c {
	case '(':
		return r.readGroup(depth)
	case '[':
		r.at++
		s, err := r.readClass(depth)
		if err == nil && r.foldCase {
			s, err = foldClass(s)
		}
		return &expr{kind: nodeSet, chars: s}, err
	case '.':
		r.at++
		return &expr{kind: nodeSet, chars: runs{{'\n', '\n'}}.not()}, nil
	case '^', '$':
		r.at++
		r.lastLiteral = 0
		return &expr{kind: nodeAssert, min: map[byte]int{'^': lineStart, '$': lineEnd}[c]}, nil
	case '*', '+', '?':
		return nil, fmt.Errorf("a %c without an operand", c)
	case '\\':
		if r.at+1 < len(r.src) && assertEscapes[r.src[r.at+1]] != 0 {
			r.at += 2
			r.lastLiteral = 0
			return &expr{kind: nodeAssert, min: assertEscapes[r.src[r.at-1]]}, nil
		}
		s, single, err := r.readEscape()
		if err == nil && r.foldCase {
			if !single {
				return nil, errors.New("a class under (?i)")
			}
			s, err = r.foldRune(s[0][0])
		}
		return &expr{kind: nodeSet, chars: s}, err
	}

	c, err := r.readRune()
	if err != nil {
		return nil, err
	}

	s := runs{{c, c}}
	if r.foldCase {
		s, err = r.foldRune(c)
	}
	return &expr{kind: nodeSet, chars: s}, err
}

// readGroup reads a group from its opening parenthesis on. Captures are ignored, because only the bounds of
// the whole match matter.
func (r *patternReader) readGroup(depth int) (*expr, error) {
	kind, fold := nodeSequence, r.foldCase
	switch {
	case r.accept("(?:"):
	case r.accept("(?i:"):
		r.foldCase = true
	case r.accept("(?-i:"):
		r.foldCase = false
	case r.accept("(?="):
		kind = nodeLook
	case r.accept("(?!"):
		kind = nodeLookNot
	case r.accept("(?>"):
		kind = nodeAtomic
	case strings.HasPrefix(r.src[r.at:], "(?"):
		return nil, fmt.Errorf("the group %.5s… is not supported", r.src[r.at:])
	default:
		r.at++
	}

	n, err := r.readChoice(depth + 1)
	if err != nil {
		return nil, err
	}
	if !r.accept(")") {
		return nil, errors.New("unmatched (")
	}

	r.foldCase, r.lastLiteral = fold, 0
	return &expr{kind: kind, subs: []*expr{n}}, nil
}

// readQuantifier reads a quantifier after n and returns the repetition of n. It returns n and
// false if there is no quantifier.
func (r *patternReader) readQuantifier(n *expr) (*expr, bool, error) {
	q := &expr{kind: nodeRepeat, subs: []*expr{n}, max: -1}
	counted := false
	switch r.peek() {
	case '*':
	case '+':
		q.min = 1
	case '?':
		q.max = 1
	case '{':
		var ok bool
		q.min, q.max, ok = r.readCounts()
		if !ok {
			return nil, false, errors.New("a { that does not begin a quantifier")
		}
		counted = true
	default:
		return n, false, nil
	}

	if !counted {
		r.at++
	}

	switch {
	case counted && q.min == q.max && r.peek() == '?':
		// In Oniguruma {n}? is not lazy. It means an optional {n}, so ? is left for the next call.
	case r.accept("?"):
		q.mode = lazy
	case !counted && r.accept("+"):
		q.mode = possessive
	}

	if n.kind == nodeLook || n.kind == nodeLookNot || n.kind == nodeAssert {
		return nil, false, errors.New("a repeated look-ahead or assertion")
	}
	if n.minLength() == 0 && q.max != 1 {
		return nil, false, errors.New("a repetition of a part that can match the empty string")
	}
	return q, true, nil
}

// readCounts reads {n}, {n,}, {n,m} or {,m}. Most is -1 if there is no upper bound.
func (r *patternReader) readCounts() (least, most int, ok bool) {
	end := strings.IndexByte(r.src[r.at:], '}')
	if end < 0 {
		return 0, 0, false
	}

	low, high, comma := strings.Cut(r.src[r.at+1:r.at+end], ",")
	number := func(s string) int {
		n := 0
		for _, c := range []byte(s) {
			if c < '0' || c > '9' || n > maxInst {
				return -1
			}
			n = n*10 + int(c-'0')
		}
		return n
	}

	least, most = number(low), number(high)
	if !comma {
		most = least
	} else if high == "" {
		most = -1
	}

	if low == "" && high == "" || least < 0 || comma && high != "" && most < least || least > maxInst || most > maxInst {
		return 0, 0, false
	}

	r.at += end + 1
	return least, most, true
}
