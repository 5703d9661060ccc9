package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// pattern is a regular expression with the meaning that Oniguruma gives it, for the
// expressions of pre-tokenizers that are not among those written by hand. It backtracks,
// because its answers must be those of an engine that does: the first alternative that leads
// to a match counts, not the longest. What it has not the exact meaning of is refused when the
// expression is read.
type pattern struct {
	prog []inst
	// splits counts the choices that a text may come back to.
	splits int
}

// instOp is what an instruction does.
type instOp uint8

const (
	opSet    instOp = iota // one character of set
	opLoop                 // characters of set, min to max times (max < 0: any number)
	opSplit                // try x, then y
	opJump                 // go on at x
	opLook                 // look ahead with what stands up to x; negated where min is 1
	opAtomic               // match what stands up to x, and never come back to it
	opAssert               // the place is what min says
	opMatch
)

// greed is how a repetition chooses.
type greed uint8

const (
	greedy greed = iota
	lazy
	possessive
)

type inst struct {
	op       instOp
	mode     greed
	set      *charset
	min, max int32
	x, y     int32
	index    int32 // of a split, for what is known to fail
}

// maxInst bounds a program: counted repetitions are written out.
const maxInst = 4096

// expr is an expression as it was read.
type expr struct {
	kind     nodeKind
	chars    runs
	subs     []*expr
	min, max int
	mode     greed
}

type nodeKind uint8

const (
	nodeSet nodeKind = iota
	nodeSequence
	nodeChoice
	nodeRepeat
	nodeLook
	nodeLookNot
	nodeAtomic
	nodeAssert // min says which
)

// shortest is the length in characters of the shortest match.
func (n *expr) shortest() int {
	switch n.kind {
	case nodeSet:
		return 1
	case nodeSequence:
		sum := 0
		for _, s := range n.subs {
			sum += s.shortest()
		}
		return min(sum, maxInst)
	case nodeChoice:
		least := maxInst
		for _, s := range n.subs {
			least = min(least, s.shortest())
		}
		return least
	case nodeRepeat:
		return min(n.min*n.subs[0].shortest(), maxInst)
	case nodeAtomic:
		return n.subs[0].shortest()
	}
	return 0
}

// parsePattern reads an expression.
func parsePattern(source string) (*pattern, error) {
	r := patternReader{src: source}
	root, err := r.choice(0)
	if err == nil && r.at < len(r.src) {
		err = errors.New("unmatched )")
	}
	if err == nil && root.shortest() == 0 {
		err = errors.New("it may match nothing at all")
	}
	if err == nil {
		p := &pattern{}
		p.emit(root)
		p.add(inst{op: opMatch})
		if len(p.prog) <= maxInst {
			return p, nil
		}
		err = errors.New("it is too long")
	}
	return nil, fmt.Errorf("the expression %s is not supported: %w", source, err)
}

func (p *pattern) add(i inst) int32 {
	if len(p.prog) <= maxInst {
		p.prog = append(p.prog, i)
	}
	return int32(len(p.prog) - 1)
}

func (p *pattern) here() int32 { return int32(len(p.prog)) }

// emit writes the instructions of n.
func (p *pattern) emit(n *expr) {
	switch n.kind {
	case nodeSet:
		p.add(inst{op: opSet, set: newCharset(n.chars)})
	case nodeSequence:
		for _, s := range n.subs {
			p.emit(s)
		}
	case nodeChoice:
		p.emitChoice(n.subs)
	case nodeRepeat:
		p.emitRepeat(n)
	case nodeAssert:
		p.add(inst{op: opAssert, min: int32(n.min)})
	default:
		i := inst{op: opLook}
		if n.kind == nodeLookNot {
			i.min = 1
		} else if n.kind == nodeAtomic {
			i.op = opAtomic
		}
		p.emitInside(i, n.subs[0])
	}
}

// emitInside writes an instruction that runs what follows it up to x on its own.
func (p *pattern) emitInside(i inst, n *expr) {
	at := p.add(i)
	p.emit(n)
	p.add(inst{op: opMatch})
	p.prog[at].x = p.here()
}

func (p *pattern) emitChoice(subs []*expr) {
	var ends []int32
	for i, s := range subs {
		if i == len(subs)-1 {
			p.emit(s)
			break
		}
		at := p.split()
		p.prog[at].x = p.here()
		p.emit(s)
		ends = append(ends, p.add(inst{op: opJump}))
		p.prog[at].y = p.here()
	}
	for _, e := range ends {
		p.prog[e].x = p.here()
	}
}

func (p *pattern) split() int32 {
	p.splits++
	return p.add(inst{op: opSplit, index: int32(p.splits - 1)})
}

// emitRepeat writes a repetition: of single characters as one instruction, of others written
// out as often as they must and may come.
func (p *pattern) emitRepeat(n *expr) {
	body := n.subs[0]
	if body.kind == nodeSet {
		p.add(inst{op: opLoop, mode: n.mode, set: newCharset(body.chars), min: int32(n.min), max: int32(n.max)})
		return
	}
	if n.mode == possessive {
		once := *n
		once.mode = greedy
		p.emitInside(inst{op: opAtomic}, &once)
		return
	}
	for range n.min {
		p.emit(body)
	}
	var ends []int32
	leave := func(at int32) { // at has two ways: into the body, and out
		if n.mode == lazy {
			p.prog[at].y = p.here()
		} else {
			p.prog[at].x = p.here()
		}
		ends = append(ends, at)
	}
	if n.max < 0 {
		at := p.split()
		leave(at)
		p.emit(body)
		p.add(inst{op: opJump, x: at})
	}
	for range n.max - n.min {
		leave(p.split())
		p.emit(body)
	}
	for _, at := range ends {
		if n.mode == lazy {
			p.prog[at].x = p.here()
		} else {
			p.prog[at].y = p.here()
		}
	}
}

// What an assertion asks of a place.
const (
	lineStart = 1 + iota
	lineEnd
	textStart
	textEnd
	textLastEnd
	wordEdge
	noWordEdge
)

var places = map[byte]int{'A': textStart, 'z': textEnd, 'Z': textLastEnd, 'b': wordEdge, 'B': noWordEdge}

// patternReader reads an expression front to back.
type patternReader struct {
	src string
	at  int
	// fold says that case does not matter here.
	fold bool
	// last is the last literal character read where case does not matter.
	last rune
}

// maxNested bounds groups in groups.
const maxNested = 100

func (r *patternReader) peek() byte {
	if r.at < len(r.src) {
		return r.src[r.at]
	}
	return 0
}

func (r *patternReader) take(s string) bool {
	if strings.HasPrefix(r.src[r.at:], s) {
		r.at += len(s)
		return true
	}
	return false
}

func (r *patternReader) rune() (rune, error) {
	c, n := utf8.DecodeRuneInString(r.src[r.at:])
	if n == 0 {
		return 0, errors.New("it ends in the middle")
	}
	r.at += n
	return c, nil
}

// choice reads alternatives up to ) or the end.
func (r *patternReader) choice(depth int) (*expr, error) {
	if depth > maxNested {
		return nil, errors.New("it is nested too deeply")
	}
	n := &expr{kind: nodeChoice}
	for {
		s, err := r.sequence(depth)
		if err != nil {
			return nil, err
		}
		n.subs = append(n.subs, s)
		if !r.take("|") {
			break
		}
	}
	if len(n.subs) == 1 {
		return n.subs[0], nil
	}
	return n, nil
}

func (r *patternReader) sequence(depth int) (*expr, error) {
	n := &expr{kind: nodeSequence}
	r.last = 0
	for r.at < len(r.src) && r.peek() != '|' && r.peek() != ')' {
		if r.at == 0 && r.take("(?i)") {
			r.fold = true
			continue
		}
		s, err := r.atom(depth)
		if err != nil {
			return nil, err
		}
		for more := true; more; {
			if s, more, err = r.quantified(s); err != nil {
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

func (r *patternReader) atom(depth int) (*expr, error) {
	switch c := r.peek(); c {
	case '(':
		return r.group(depth)
	case '[':
		r.at++
		s, err := r.class(depth)
		if err == nil && r.fold {
			s, err = foldClass(s)
		}
		return &expr{kind: nodeSet, chars: s}, err
	case '.':
		r.at++
		return &expr{kind: nodeSet, chars: runs{{'\n', '\n'}}.not()}, nil
	case '^', '$':
		r.at++
		r.last = 0
		return &expr{kind: nodeAssert, min: map[byte]int{'^': lineStart, '$': lineEnd}[c]}, nil
	case '*', '+', '?':
		return nil, fmt.Errorf("%c with nothing before it", c)
	case '\\':
		if r.at+1 < len(r.src) && places[r.src[r.at+1]] != 0 {
			r.at += 2
			r.last = 0
			return &expr{kind: nodeAssert, min: places[r.src[r.at-1]]}, nil
		}
		s, single, err := r.escape()
		if err == nil && r.fold {
			if !single {
				return nil, errors.New("a class where case does not matter")
			}
			s, err = r.foldRune(s[0][0])
		}
		return &expr{kind: nodeSet, chars: s}, err
	}
	c, err := r.rune()
	if err != nil {
		return nil, err
	}
	s := runs{{c, c}}
	if r.fold {
		s, err = r.foldRune(c)
	}
	return &expr{kind: nodeSet, chars: s}, err
}

func (r *patternReader) group(depth int) (*expr, error) {
	kind, fold := nodeSequence, r.fold
	switch {
	case r.take("(?:"):
	case r.take("(?i:"):
		r.fold = true
	case r.take("(?-i:"):
		r.fold = false
	case r.take("(?="):
		kind = nodeLook
	case r.take("(?!"):
		kind = nodeLookNot
	case r.take("(?>"):
		kind = nodeAtomic
	case strings.HasPrefix(r.src[r.at:], "(?"):
		return nil, fmt.Errorf("the group %.5s… is not supported", r.src[r.at:])
	default:
		r.at++
	}
	n, err := r.choice(depth + 1)
	if err != nil {
		return nil, err
	}
	if !r.take(")") {
		return nil, errors.New("unmatched (")
	}
	r.fold, r.last = fold, 0
	return &expr{kind: kind, subs: []*expr{n}}, nil
}

// quantified reads one quantifier after n.
func (r *patternReader) quantified(n *expr) (*expr, bool, error) {
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
		if q.min, q.max, ok = r.counts(); !ok {
			return nil, false, errors.New("a { that is no quantifier")
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
		// Here {n}? is not lazy but {n}, or nothing.
	case r.take("?"):
		q.mode = lazy
	case !counted && r.take("+"):
		q.mode = possessive
	}
	if n.kind == nodeLook || n.kind == nodeLookNot || n.kind == nodeAssert {
		return nil, false, errors.New("a look-ahead or a place that is repeated")
	}
	if n.shortest() == 0 && q.max != 1 {
		return nil, false, errors.New("a repetition of what may be nothing")
	}
	return q, true, nil
}

// counts reads {n}, {n,}, {n,m} or {,m}.
func (r *patternReader) counts() (least, most int, ok bool) {
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
	if least, most = number(low), number(high); !comma {
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
