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

// patternConfig is the pattern of a Split or Replace: a regular expression or a plain text.
type patternConfig struct{ Regex, String *string }

// finder returns a finder of the pattern.
func (c patternConfig) finder() (finder, error) {
	switch {
	case c.Regex != nil:
		return parsePattern(*c.Regex)
	case c.String != nil && *c.String != "":
		return literal(*c.String), nil
	}
	return nil, errors.New("the pattern has neither a Regex nor a String")
}

// readNormalizer appends the steps of c to steps. It refuses lower-casing and the other normal forms, because
// the reference uses its own versions of their tables.
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

// maxGrowth bounds how many times longer the steps of a normalizer or decoder may make a text.
const maxGrowth = 256

// checkGrowth returns an error for steps that may make a text more than maxGrowth times longer, or put very long
// texts before it.
func checkGrowth(steps []normalStep) error {
	growth := 1
	for i := range steps {
		st := &steps[i]
		switch st.kind {
		case normalNFC:
			growth *= 3 // a character has a decomposition of at most three times its length
		case normalReplace:
			from := 1
			if l, ok := st.finder.(literal); ok {
				from = len(l)
			}
			growth *= max(1, (len(st.to)+from-1)/from)
		case normalPrepend:
			if len(st.to) > maxGrowth {
				return fmt.Errorf("normalizer Prepend with more than %d bytes is not supported", maxGrowth)
			}
		}
		if growth > maxGrowth {
			return fmt.Errorf("the normalizers may make a text more than %d times longer, which is not supported", maxGrowth)
		}
	}
	return nil
}

// marksSpaces reports whether a step replaces each space by ▁.
func (st *normalStep) marksSpaces() bool {
	return st.kind == normalReplace && st.finder == literal(" ") && st.to == lowerBlock
}

// normalize returns s after the steps. The result is valid until the next call.
func (e *encoder) normalize(s string, steps []normalStep) string {
	for i := range steps {
		if s == "" {
			break
		}
		switch st := &steps[i]; st.kind {
		case normalNFC:
			if !nfc().isNormal(s) {
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

// strip returns s without the white space that the step removes.
func (st *normalStep) strip(s string) string {
	if st.left {
		s = s[skipWhile(s, 0, space):]
	}
	if st.right {
		s = trimSpaceRight(s)
	}
	return s
}

// writeNormalized returns the text that write appends to a buffer. It alternates between two buffers, because
// write reads the text of the step before, which is in the other buffer.
func (e *encoder) writeNormalized(write func([]byte) []byte) string {
	b := write(e.normalizeBuffers[0][:0])
	e.normalizeBuffers[0], e.normalizeBuffers[1] = e.normalizeBuffers[1], b
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// appendReplaced appends s to dst with the replacement in place of each match.
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

// foldable reports whether steps consist of prefixes and then a replacement of all spaces by ▁. Folded are
// the steps that give the same text with a space for each ▁.
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

// keepsBeginning reports whether the first piece of a text is still its beginning after steps. A step that
// may remove or add text at the beginning would change which piece comes first.
func keepsBeginning(steps []normalStep) bool {
	for _, st := range steps {
		l, isLiteral := st.finder.(literal)
		if st.kind != normalNFC && (st.kind != normalReplace || st.to == "" || !isLiteral || utf8.RuneCountInString(string(l)) != 1) {
			return false
		}
	}
	return true
}
