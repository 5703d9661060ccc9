package tokenizer

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// pattern is a compiled regular expression with the semantics of Oniguruma. It runs the expressions of pre-tokenizers
// for which there is no handwritten scanner. It backtracks, because it must find the matches of a backtracking
// engine: the first alternative that leads to a match counts, not the longest. parsePattern refuses expressions whose
// exact meaning is not implemented.
type pattern struct {
	prog []inst
	// splits is the number of opSplit instructions.
	splits int
	// sets are the character sets of the program by their content, so that equal sets are built once.
	sets map[string]*charset
}

// instOp is the operation of an instruction.
type instOp uint8

const (
	opSet    instOp = iota // one character of set
	opLoop                 // characters of set, min to max times (max < 0: any number)
	opSplit                // try x, then y
	opJump                 // go on at x
	opLook                 // look ahead with the instructions before x; negated if min is 1
	opAtomic               // match with the instructions before x, without backtracking into them
	opAssert               // the position meets the assertion min
	opMatch                // the match ends here
)

// greed is the order in which a repetition tries its lengths.
type greed uint8

const (
	greedy     greed = iota // the longest first
	lazy                    // the shortest first
	possessive              // only the longest
)

// inst is an instruction. The constants of instOp describe its operands.
type inst struct {
	op         instOp
	mode       greed
	set        *charset
	min, max   int32
	x, y       int32
	splitIndex int32 // number of an opSplit, for search.deadEnds
}

// These constants bound the memory of an expression. Counted repetitions are written out, and a set has about
// 35 KB.
const (
	maxInst   = 4096
	maxSets   = 256
	maxSource = 8192
)

// expr is a node of a parsed expression.
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
	nodeAssert // min is the assertion
)

// minLength returns the length in characters of the shortest match, at most maxInst.
func (n *expr) minLength() int {
	switch n.kind {
	case nodeSet:
		return 1
	case nodeSequence:
		sum := 0
		for _, s := range n.subs {
			sum += s.minLength()
		}
		return min(sum, maxInst)
	case nodeChoice:
		least := maxInst
		for _, s := range n.subs {
			least = min(least, s.minLength())
		}
		return least
	case nodeRepeat:
		return min(n.min*n.subs[0].minLength(), maxInst)
	case nodeAtomic:
		return n.subs[0].minLength()
	}
	return 0
}

// parsePattern parses and compiles an expression. It refuses an expression that can match the empty string,
// because a splitter needs progress.
func parsePattern(source string) (*pattern, error) {
	r := patternReader{src: source}
	if len(source) > maxSource {
		return nil, fmt.Errorf("the expression %.80s… is not supported: it is too long", source)
	}

	root, err := r.readChoice(0)
	if err == nil && r.at < len(r.src) {
		err = errors.New("unmatched )")
	}
	if err == nil && root.minLength() == 0 {
		err = errors.New("it can match the empty string")
	}

	if err == nil {
		p := &pattern{}
		p.emit(root)
		p.emitInst(inst{op: opMatch})
		if len(p.prog) <= maxInst && len(p.sets) <= maxSets {
			return p, nil
		}
		err = errors.New("it is too long")
	}

	return nil, fmt.Errorf("the expression %s is not supported: %w", source, err)
}

// emitInst appends an instruction and returns its index. Beyond maxInst it drops the instruction, because
// parsePattern then refuses the expression.
func (p *pattern) emitInst(i inst) int32 {
	if len(p.prog) <= maxInst {
		p.prog = append(p.prog, i)
	}
	return int32(len(p.prog) - 1)
}

// charset returns the set with the characters of s.
func (p *pattern) charset(s runs) *charset {
	var key []byte
	for _, r := range s {
		key = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(key, uint32(r[0])), uint32(r[1]))
	}

	set, ok := p.sets[string(key)]
	if !ok {
		if p.sets == nil {
			p.sets = map[string]*charset{}
		}
		set = newCharset(s)
		p.sets[string(key)] = set
	}
	return set
}

func (p *pattern) nextPC() int32 { return int32(len(p.prog)) }

// emit appends the instructions of n.
func (p *pattern) emit(n *expr) {
	if len(p.prog) > maxInst || len(p.sets) > maxSets {
		return // parsePattern refuses the expression
	}
	switch n.kind {
	case nodeSet:
		p.emitInst(inst{op: opSet, set: p.charset(n.chars)})
	case nodeSequence:
		for _, s := range n.subs {
			p.emit(s)
		}
	case nodeChoice:
		p.emitChoice(n.subs)
	case nodeRepeat:
		p.emitRepeat(n)
	case nodeAssert:
		p.emitInst(inst{op: opAssert, min: int32(n.min)})
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

// emitInside appends instruction i and the instructions of n, which i runs as a separate match.
func (p *pattern) emitInside(i inst, n *expr) {
	at := p.emitInst(i)
	p.emit(n)
	p.emitInst(inst{op: opMatch})
	p.prog[at].x = p.nextPC()
}

// emitChoice appends the alternatives subs, with a split before each but the last.
func (p *pattern) emitChoice(subs []*expr) {
	var ends []int32
	for i, s := range subs {
		if i == len(subs)-1 {
			p.emit(s)
			break
		}
		at := p.emitSplit()
		p.prog[at].x = p.nextPC()
		p.emit(s)
		ends = append(ends, p.emitInst(inst{op: opJump}))
		p.prog[at].y = p.nextPC()
	}

	for _, e := range ends {
		p.prog[e].x = p.nextPC()
	}
}

// emitSplit appends a split, whose two targets the caller sets.
func (p *pattern) emitSplit() int32 {
	p.splits++
	return p.emitInst(inst{op: opSplit, splitIndex: int32(p.splits - 1)})
}

// emitRepeat appends a repetition. A repetition of a single character is one opLoop. Otherwise the body is
// written out n.min times, and then once with a jump back or as often as it is optional.
func (p *pattern) emitRepeat(n *expr) {
	body := n.subs[0]
	if body.kind == nodeSet {
		p.emitInst(inst{op: opLoop, mode: n.mode, set: p.charset(body.chars), min: int32(n.min), max: int32(n.max)})
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
	// leave sets the target of split at that enters the body; the other target is set at the end.
	leave := func(at int32) {
		if n.mode == lazy {
			p.prog[at].y = p.nextPC()
		} else {
			p.prog[at].x = p.nextPC()
		}
		ends = append(ends, at)
	}

	if n.max < 0 {
		at := p.emitSplit()
		leave(at)
		p.emit(body)
		p.emitInst(inst{op: opJump, x: at})
	}

	for range n.max - n.min {
		leave(p.emitSplit())
		p.emit(body)
	}
	for _, at := range ends {
		if n.mode == lazy {
			p.prog[at].x = p.nextPC()
		} else {
			p.prog[at].y = p.nextPC()
		}
	}
}

// The assertions about a position in the text.
const (
	lineStart = 1 + iota
	lineEnd
	textStart
	textEnd
	textLastEnd
	wordEdge
	noWordEdge
)

// assertEscapes maps the letter after a backslash to its assertion.
var assertEscapes = map[byte]int{'A': textStart, 'z': textEnd, 'Z': textLastEnd, 'b': wordEdge, 'B': noWordEdge}
