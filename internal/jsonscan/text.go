// Package jsonscan reads JSON texts of one value, front to back, and makes no values: callers choose what they keep. Readers of
// JSON for one purpose share it. Event decoders, which read piece by piece in two syntaxes, use only its functions for strings.
package jsonscan

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
	"unsafe"
)

// TextLength returns the length of a string's text, of which b begins after the opening quote: the closing quote is b[n].
// escaped is true for a text with escapes. ok is false for a string that is malformed. Then n is the place of the fault: len(b) for
// a string without an end, a backslash before an invalid escape, or a control character.
func TextLength(b []byte) (n int, escaped, ok bool) {
	for {
		n += PlainLength(b[n:])
		switch {
		case n == len(b):
			return n, escaped, false
		case b[n] == '"':
			return n, escaped, true
		case b[n] != '\\':
			return n, escaped, false
		}

		length := EscapeLength(b[n:])
		if length == 0 {
			return n, escaped, false
		}
		n += length
		escaped = true
	}
}

// AppendText appends the characters of a text that TextLength has found. As in encoding/json, half a surrogate pair and bytes
// that are not UTF-8 become U+FFFD.
func AppendText(dst, text []byte) []byte {
	for len(text) > 0 {
		n := PlainLength(text)
		dst = appendValid(dst, text[:n])
		text = text[n:]
		if len(text) == 0 {
			break
		}

		r, n, _ := DecodeEscape(text)
		dst = utf8.AppendRune(dst, r)
		text = text[max(n, 1):]
	}
	return dst
}

// appendValid appends a text without escapes.
func appendValid(dst, text []byte) []byte {
	if utf8.Valid(text) {
		return append(dst, text...)
	}
	for _, r := range string(text) {
		dst = utf8.AppendRune(dst, r)
	}
	return dst
}

// PlainLength counts the bytes of b before the first quote, backslash or control character. It examines
// sixteen bytes at a time, because most text is plain.
func PlainLength(b []byte) int {
	i := 0
	for ; i+16 <= len(b); i += 16 {
		w := b[i : i+16 : i+16]
		low, high := markSpecial(binary.LittleEndian.Uint64(w)), markSpecial(binary.LittleEndian.Uint64(w[8:]))
		if low|high == 0 {
			continue
		}
		if low != 0 {
			return i + bits.TrailingZeros64(low)/8
		}
		return i + 8 + bits.TrailingZeros64(high)/8
	}
	for ; i < len(b); i++ {
		if c := b[i]; c == '"' || c == '\\' || c < 0x20 {
			return i
		}
	}
	return i
}

// markSpecial sets the high bit of each byte of w that is a quote, a backslash or a control character. XOR
// turns the bytes that equal a character to 0, and (x-1)&^x has the high bit of a byte set if the byte is 0.
// In the same way (w-0x20)&^w finds bytes below 0x20. A borrow may also set bits above the first match, so
// that only the lowest set bit is certain.
func markSpecial(w uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	quote, slash := w^(ones*'"'), w^(ones*'\\')
	return ((quote-ones)&^quote | (slash-ones)&^slash | (w-ones*0x20)&^w) & highs
}

// DecodeEscape decodes the escape at the start of b. It returns the character and the length of the escape, 0
// for an invalid one. lone is true for a surrogate without its other half.
func DecodeEscape(b []byte) (r rune, n int, lone bool) {
	n = EscapeLength(b)
	if n != 6 {
		if n == 2 {
			r = unescapeLetter(b[1])
		}
		return r, n, false
	}
	r, _ = hex4(b[2:])
	if r < 0xd800 || r >= 0xe000 {
		return r, n, false
	}
	if r < 0xdc00 && len(b) >= 12 && b[6] == '\\' && b[7] == 'u' {
		if low, ok := hex4(b[8:]); ok && low >= 0xdc00 && low < 0xe000 {
			return 0x10000 + (r-0xd800)<<10 + (low - 0xdc00), 12, false
		}
	}
	return utf8.RuneError, n, true
}

// EscapeLength returns the length of the escape at the start of b, 0 for an invalid one.
func EscapeLength(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := hex4(b[2:]); ok {
			return 6
		}
	}
	return 0
}

// hex4 reads four hexadecimal digits.
func hex4(b []byte) (r rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// unescapeLetter returns the character of a two-byte escape whose second byte is c.
func unescapeLetter(c byte) rune {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return rune(c)
}

// RawString reads a string and returns the bytes between its quotes. It checks the escapes and does not
// decode them.
func (s *Scanner) RawString() []byte {
	text, _ := s.text()
	return text
}

// text is RawString, which also reports whether there are escapes.
func (s *Scanner) text() (text []byte, escaped bool) {
	if s.Err != nil || s.At >= len(s.Src) || s.Src[s.At] != '"' {
		s.Fail("expected a string")
		return nil, false
	}

	start := s.At + 1
	n, escaped, ok := TextLength(s.Src[start:])
	s.At = start + n
	switch {
	case ok:
		s.At++
		return s.Src[start : s.At-1], escaped
	case s.At >= len(s.Src):
		s.Fail("unexpected end in a string")
	case s.Src[s.At] == '\\':
		s.Fail("invalid escape in a string")
	default:
		s.Fail("control character in a string (escape it)")
	}
	return nil, false
}

// AppendString reads a string and appends its characters to dst, as [AppendText] does.
func (s *Scanner) AppendString(dst []byte) []byte {
	text, escaped := s.text()
	if !escaped {
		return append(dst, text...)
	}
	return AppendText(dst, text)
}

// NewString reads a string and returns its characters in memory of their own.
func (s *Scanner) NewString() string {
	text, escaped := s.text()
	if !escaped {
		return string(text)
	}
	out := AppendText(make([]byte, 0, len(text)), text)
	return unsafe.String(unsafe.SliceData(out), len(out))
}
