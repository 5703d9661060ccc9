package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// normalStep is one step of a normalizer.
type normalStep struct {
	kind        normalKind
	finder      finder // normalReplace
	to          string // normalReplace, normalPrepend
	left, right bool   // normalStrip
}

type normalKind uint8

const (
	normalNFC normalKind = iota
	normalPrepend
	normalReplace
	normalStrip
)

type normalizerConfig struct {
	Type        string             `json:"type"`
	Normalizers []normalizerConfig `json:"normalizers"`
	Prepend     string             `json:"prepend"`
	Pattern     patternConfig      `json:"pattern"`
	Content     string             `json:"content"`
	StripLeft   bool               `json:"strip_left"`
	StripRight  bool               `json:"strip_right"`
}

// patternConfig is what a Split or Replace looks for.
type patternConfig struct{ Regex, String *string }

func (c patternConfig) finder() (finder, error) {
	switch {
	case c.Regex != nil:
		return parsePattern(*c.Regex)
	case c.String != nil && *c.String != "":
		return literal(*c.String), nil
	}
	return nil, errors.New("there is no pattern to look for")
}

// readNormalizer appends the steps of c. Lower-casing and the other normal forms are refused:
// they are tables of versions that are the reference's own.
func readNormalizer(steps []normalStep, c *normalizerConfig) ([]normalStep, error) {
	if c == nil {
		return steps, nil
	}
	switch c.Type {
	case "NFC":
		return append(steps, normalStep{kind: normalNFC}), nil
	case "Prepend":
		return append(steps, normalStep{kind: normalPrepend, to: c.Prepend}), nil
	case "Strip":
		return append(steps, normalStep{kind: normalStrip, left: c.StripLeft, right: c.StripRight}), nil
	case "Replace":
		find, err := c.Pattern.finder()
		if err != nil {
			return nil, fmt.Errorf("normalizer Replace: %w", err)
		}
		return append(steps, normalStep{kind: normalReplace, finder: find, to: c.Content}), nil
	case "Sequence":
		var err error
		for i := range c.Normalizers {
			steps, err = readNormalizer(steps, &c.Normalizers[i])
			if err != nil {
				return nil, err
			}
		}
		return steps, nil
	}

	return nil, fmt.Errorf("normalizer %q is not supported; NFC, Prepend, Replace and Strip are", c.Type)
}

// marksSpaces says whether a step writes ▁ for each space and does nothing else.
func (st *normalStep) marksSpaces() bool {
	return st.kind == normalReplace && st.finder == literal(" ") && st.to == lowerBlock
}

// normalized is s after the steps; it is valid until the next call.
func (e *encoder) normalize(s string, steps []normalStep) string {
	for i := range steps {
		if s == "" {
			break
		}
		switch st := &steps[i]; st.kind {
		case normalNFC:
			if !nfc.isNormal(s) {
				b := e.nfc.normalize(s)
				s = unsafe.String(unsafe.SliceData(b), len(b))
			}
		case normalPrepend:
			s = e.writeNormalized(func(dst []byte) []byte { return append(append(dst, st.to...), s...) })
		case normalReplace:
			s = e.writeNormalized(func(dst []byte) []byte { return e.appendReplaced(dst, s, st) })
		case normalStrip:
			s = st.strip(s)
		}
	}
	return s
}

func (st *normalStep) strip(s string) string {
	if st.left {
		s = s[skipWhile(s, 0, space):]
	}
	if st.right {
		s = trimSpaceRight(s)
	}
	return s
}

// normal writes a text into one of two buffers, in turn: what is written is made of what was
// written before.
func (e *encoder) writeNormalized(write func([]byte) []byte) string {
	b := write(e.normalizeBuffers[0][:0])
	e.normalizeBuffers[0], e.normalizeBuffers[1] = e.normalizeBuffers[1], b
	return unsafe.String(unsafe.SliceData(b), len(b))
}

func (e *encoder) appendReplaced(dst []byte, s string, st *normalStep) []byte {
	if st.marksSpaces() {
		return appendMarked(dst, s)
	}
	m := e.acquireSearch()
	for i := 0; i < len(s); {
		start, end := st.finder.findMatch(m, s, i)
		dst = append(dst, s[i:start]...)
		if end > start {
			dst = append(dst, st.to...)
		}
		i = end
	}

	e.releaseSearch(m)
	return dst
}

// foldable says whether steps put marks before a text at most, and then ▁ for every space;
// folded are the steps that are left when a space is taken for the ▁ it would become.
func foldable(steps []normalStep) (folded []normalStep, ok bool) {
	n := len(steps) - 1
	if n < 0 || !steps[n].marksSpaces() {
		return nil, false
	}

	for _, st := range steps[:n] {
		if st.kind != normalPrepend {
			return nil, false
		}
		st.to = strings.ReplaceAll(st.to, lowerBlock, " ")
		folded = append(folded, st)
	}
	return folded, true
}

// keepsBeginning says whether what begins a text still stands for the beginning after steps.
func keepsBeginning(steps []normalStep) bool {
	for _, st := range steps {
		l, isLiteral := st.finder.(literal)
		if st.kind != normalNFC && (st.kind != normalReplace || st.to == "" || !isLiteral || utf8.RuneCountInString(string(l)) != 1) {
			return false
		}
	}
	return true
}
