package tokenizer

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/stator-project/stator/internal/jsonscan"
)

// jsonReader reads the large parts of a tokenizer.json, which are the vocabulary and the merges, in one pass.
// encoding/json would build a map and a string for each token first. It decodes the small parts.
type jsonReader struct {
	src []byte
	at  int
}

var errJSON = errors.New("invalid JSON")

// skipSpace skips white space and returns the next byte without reading it, or 0 at the end.
func (t *jsonReader) skipSpace() byte {
	for ; t.at < len(t.src); t.at++ {
		if c := t.src[t.at]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

// syntaxError returns the error for the current position.
func (t *jsonReader) syntaxError() error { return fmt.Errorf("%w at byte %d", errJSON, t.at) }

// nextElement reads the comma before an element of an object or array. It returns false after the last
// element, and reads the closing bracket end there.
func (t *jsonReader) nextElement(first bool, end byte) (bool, error) {
	switch c := t.skipSpace(); {
	case c == end:
		t.at++
		return false, nil
	case first:
		return true, nil
	case c == ',':
		t.at++
		if t.skipSpace() == end {
			return false, t.syntaxError()
		}
		return true, nil
	}
	return false, t.syntaxError()
}

// expect reads c, which must be the next byte after white space.
func (t *jsonReader) expect(c byte) error {
	if t.skipSpace() != c {
		return t.syntaxError()
	}
	t.at++
	return nil
}

// readObject calls field for each key of an object. Field must read the value. The key is valid during the
// call.
func (t *jsonReader) readObject(field func(key []byte) error) error {
	if err := t.expect('{'); err != nil {
		return err
	}
	var buf []byte
	for first := true; ; first = false {
		more, err := t.nextElement(first, '}')
		if err != nil || !more {
			return err
		}
		buf, err = t.appendString(buf[:0])
		if err != nil {
			return err
		}
		if err = t.expect(':'); err != nil {
			return err
		}
		if err = field(buf); err != nil {
			return err
		}
	}
}

// readArray calls element for each element of an array. Element must read the element.
func (t *jsonReader) readArray(element func() error) error {
	if err := t.expect('['); err != nil {
		return err
	}
	for first := true; ; first = false {
		more, err := t.nextElement(first, ']')
		if err != nil || !more {
			return err
		}
		if err = element(); err != nil {
			return err
		}
	}
}

// appendString reads a string and appends its decoded text to dst.
func (t *jsonReader) appendString(dst []byte) ([]byte, error) {
	if err := t.expect('"'); err != nil {
		return dst, err
	}
	n, escaped, ok := jsonscan.TextLength(t.src[t.at:])
	text := t.src[t.at : t.at+n]
	t.at += n
	if !ok {
		return dst, t.syntaxError()
	}
	t.at++
	if escaped {
		return jsonscan.AppendText(dst, text), nil
	}
	return append(dst, text...), nil
}

// readUint reads an integer from 0 to 2^31-1.
func (t *jsonReader) readUint() (uint32, error) {
	t.skipSpace()
	start, v := t.at, uint64(0)
	for ; t.at < len(t.src) && t.src[t.at]-'0' < 10 && v < 1<<31; t.at++ {
		v = v*10 + uint64(t.src[t.at]-'0')
	}
	if t.at == start || v >= 1<<31 {
		return 0, fmt.Errorf("the id at byte %d is not an integer between 0 and 2147483647", start)
	}
	return uint32(v), nil
}

// skipValue skips one value and returns its bytes. It matches brackets and strings, but does not check the
// syntax inside the value.
func (t *jsonReader) skipValue() ([]byte, error) {
	t.skipSpace()
	start, depth := t.at, 0
	for t.at < len(t.src) {
		switch t.src[t.at] {
		case '"':
			for t.at++; t.at < len(t.src) && t.src[t.at] != '"'; t.at++ {
				if t.src[t.at] == '\\' {
					t.at++
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth < 0 {
				return t.src[start:t.at], nil
			}
			if depth == 0 {
				t.at++
				return t.src[start:t.at], nil
			}
		case ',':
			if depth == 0 {
				return t.src[start:t.at], nil
			}
		}
		t.at++
	}

	return nil, t.syntaxError()
}

// atEnd reports whether only white space is left.
func (t *jsonReader) atEnd() bool { return t.skipSpace() == 0 && t.at >= len(t.src) }

// validText returns an error if b is not UTF-8.
func validText(b []byte) error {
	if !utf8.Valid(b) {
		return errors.New("the file is not UTF-8")
	}
	return nil
}
