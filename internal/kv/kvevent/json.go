package kvevent

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/stator-project/stator/internal/jsonscan"
)

// jsonReader is a reader of JSON. It copies nothing but strings with escapes, which
// encoding/json could not promise. It accepts a little more than JSON is, such as leading
// zeros, and never less.
type jsonReader struct {
	raw     []byte // the bytes that are left
	depth   int
	frames  [maxNesting]jsonFrame
	scratch []byte // unescaped strings of this message, one behind the other
}

// jsonFrame is a container that was entered.
type jsonFrame struct {
	end   byte
	begun bool // an element was read
}

func (r *jsonReader) reset(raw []byte) {
	r.raw = raw
	r.depth = 0
	r.scratch = r.scratch[:0]
}

var errCut = errors.New("the message is cut")

// next returns the next byte that is not space, without consuming it. It returns 0 at the
// end, and for a NUL byte, which is no end: r.raw tells them apart.
func (r *jsonReader) next() byte {
	for i, c := range r.raw {
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			r.raw = r.raw[i:]
			return c
		}
	}
	r.raw = nil
	return 0
}

func (r *jsonReader) kind() kind {
	switch c := r.next(); {
	case c == 0 && len(r.raw) == 0:
		return kindEnd
	case c == 'n':
		return kindNull
	case c == '"':
		return kindText
	case c == '[':
		return kindList
	case c == '{':
		return kindFields
	case c == '-' || c >= '0' && c <= '9':
		return kindNumber
	}
	return kindOther
}

func (r *jsonReader) unexpected(want string) error {
	c := r.next()
	if c == 0 && len(r.raw) == 0 {
		return errCut
	}
	return fmt.Errorf("a %q: want %s", c, want)
}

func (r *jsonReader) list() error   { return r.enter('[', ']', "a list") }
func (r *jsonReader) fields() error { return r.enter('{', '}', "an object") }

func (r *jsonReader) enter(begin, end byte, want string) error {
	if r.next() != begin {
		return r.unexpected(want)
	}
	if r.depth == maxNesting {
		return errors.New("the message is nested too deeply")
	}
	r.raw = r.raw[1:]
	r.frames[r.depth] = jsonFrame{end: end}
	r.depth++
	return nil
}

func (r *jsonReader) named() bool { return r.frames[r.depth-1].end == '}' }

func (r *jsonReader) more() (bool, error) {
	f := &r.frames[r.depth-1]
	switch c := r.next(); {
	case c == f.end:
		r.raw = r.raw[1:]
		r.depth--
		return false, nil
	case c == 0:
		return false, errCut
	case !f.begun:
		f.begun = true
		return true, nil
	case c == ',':
		r.raw = r.raw[1:]
		return true, nil
	}
	return false, r.unexpected("a comma")
}

func (r *jsonReader) key() ([]byte, error) {
	k, err := r.text()
	if err != nil {
		return nil, err
	}
	if r.next() != ':' {
		return nil, r.unexpected("a colon")
	}
	r.raw = r.raw[1:]
	return k, nil
}

func (r *jsonReader) integer() (bits uint64, negative bool, err error) {
	c := r.next()
	s := r.raw
	if c == '-' {
		s, negative = s[1:], true
	}

	n := 0
	for ; n < len(s) && s[n] >= '0' && s[n] <= '9'; n++ {
		d := uint64(s[n] - '0')
		if bits > (math.MaxUint64-d)/10 {
			return 0, false, errors.New("a number of more than 64 bits")
		}
		bits = bits*10 + d
	}
	switch {
	case n == 0:
		return 0, false, r.unexpected("a number")
	case n < len(s) && (s[n] == '.' || s[n] == 'e' || s[n] == 'E'):
		return 0, false, errors.New("a fraction: want a whole number")
	case negative && bits > 1<<63:
		return 0, false, errors.New("a number of more than 64 bits")
	}

	r.raw = s[n:]
	if negative {
		bits = -bits
	}
	return bits, negative && bits != 0, nil
}

// text reads a string, without a copy unless it has escapes.
func (r *jsonReader) text() ([]byte, error) {
	if r.next() != '"' {
		return nil, r.unexpected("a string")
	}
	s, escaped, err := r.string()
	if err != nil || !escaped {
		return s, err
	}
	from := len(r.scratch)
	r.scratch = jsonscan.AppendText(r.scratch, s)
	return r.scratch[from:len(r.scratch):len(r.scratch)], nil
}

// string reads the string that comes next, and does not decode its escapes.
func (r *jsonReader) string() (s []byte, escaped bool, err error) {
	s = r.raw[1:]
	n, escaped, ok := jsonscan.TextLength(s)
	switch {
	case ok:
		r.raw = s[n+1:]
		return s[:n], escaped, nil
	case n == len(s):
		return nil, false, errCut
	}
	return nil, false, fmt.Errorf("a %q in a string", s[n])
}

func (r *jsonReader) bytes() ([]byte, error) { return nil, errors.New("bytes in JSON") }

// skip passes over one value. It does not check the form of numbers and words, because they are not used.
func (r *jsonReader) skip() error {
	for depth := 0; ; {
		switch c := r.next(); c {
		case 0:
			return errCut
		case '"':
			if _, _, err := r.string(); err != nil {
				return err
			}
		case '[', '{':
			depth++
			r.raw = r.raw[1:]
		case ']', '}':
			depth--
			r.raw = r.raw[1:]
		case ',', ':':
			if depth == 0 {
				return r.unexpected("a value")
			}
			r.raw = r.raw[1:]
			continue
		default:
			n := 1
			for n < len(r.raw) && !strings.ContainsRune(" \n\t\r,:]}[{\"", rune(r.raw[n])) {
				n++
			}
			r.raw = r.raw[n:]
		}
		if depth <= 0 {
			if depth < 0 {
				return errors.New("a bracket that closes nothing")
			}
			return nil
		}
	}
}
