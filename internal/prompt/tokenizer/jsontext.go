package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// text reads the large parts of a tokenizer.json (vocabulary and merges) front to back. A
// general decoder takes several passes and a map for what one pass and two slices hold; the
// small parts are left to encoding/json.
type jsonReader struct {
	src []byte
	at  int
}

var errJSON = errors.New("invalid JSON")

func (t *jsonReader) skipSpace() byte {
	for ; t.at < len(t.src); t.at++ {
		if c := t.src[t.at]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

func (t *jsonReader) syntaxError() error { return fmt.Errorf("%w at byte %d", errJSON, t.at) }

// next reads the separator before an element: true when there is one, false at the end.
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

func (t *jsonReader) expect(c byte) error {
	if t.skipSpace() != c {
		return t.syntaxError()
	}
	t.at++
	return nil
}

// object calls field for each key; field reads the value. The key is valid during the call.
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

// string appends the next string, decoded, to dst.
func (t *jsonReader) appendString(dst []byte) ([]byte, error) {
	if err := t.expect('"'); err != nil {
		return dst, err
	}
	start := t.at
	for ; t.at < len(t.src); t.at++ {
		switch c := t.src[t.at]; {
		case c == '"':
			t.at++
			return append(dst, t.src[start:t.at-1]...), nil
		case c == '\\':
			return t.appendEscaped(dst, start)
		case c < 0x20:
			return dst, t.syntaxError()
		}
	}

	return dst, t.syntaxError()
}

// escaped is the rare case of string: find its end, and let encoding/json decode it.
func (t *jsonReader) appendEscaped(dst []byte, start int) ([]byte, error) {
	for ; t.at < len(t.src) && t.src[t.at] != '"'; t.at++ {
		if t.src[t.at] == '\\' {
			t.at++
		}
	}

	if t.at >= len(t.src) {
		return dst, t.syntaxError()
	}

	t.at++
	var s string
	if err := json.Unmarshal(t.src[start-1:t.at], &s); err != nil {
		return dst, t.syntaxError()
	}
	return append(dst, s...), nil
}

// uint reads a number that must be a whole one of at most 2^31-1.
func (t *jsonReader) readUint() (uint32, error) {
	t.skipSpace()
	start, v := t.at, uint64(0)
	for ; t.at < len(t.src) && t.src[t.at]-'0' < 10 && v < 1<<31; t.at++ {
		v = v*10 + uint64(t.src[t.at]-'0')
	}
	if t.at == start || v >= 1<<31 {
		return 0, t.syntaxError()
	}
	return uint32(v), nil
}

// value skips one value, whose inside is not looked at, and returns its bytes.
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

// done says whether nothing but white space is left.
func (t *jsonReader) atEnd() bool { return t.skipSpace() == 0 && t.at >= len(t.src) }

func validText(b []byte) error {
	if !utf8.Valid(b) {
		return errors.New("it is not UTF-8")
	}
	return nil
}
