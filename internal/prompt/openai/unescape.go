package openai

import (
	"unicode/utf8"
	"unsafe"
)

// string reads a string and decodes it. A string without escapes aliases the body. Others are decoded into
// the arena, in the same pass. A lone surrogate is refused, as by engines, because it has no UTF-8.
func (s *scanner) string() string {
	if s.err == nil && s.at < len(s.src) && s.src[s.at] == '"' {
		start := s.at + 1
		if end := start + plainLength(s.src[start:]); end < len(s.src) && s.src[end] == '\\' {
			s.at = end
			return s.unescape(s.src[start:end])
		}
	}
	text := s.rawString()
	return unsafe.String(unsafe.SliceData(text), len(text))
}

// unescape decodes a string of which text is read. Its first escape comes next.
func (s *scanner) unescape(text []byte) string {
	out := s.arena
	from, lone := len(out), false
	for {
		if cap(out)-len(out) < len(text)+utf8.UTFMax {
			out, from = s.newChunk(out[from:], len(text)+utf8.UTFMax), 0
		}
		out = append(out, text...)
		if s.at >= len(s.src) || s.src[s.at] != '\\' {
			break
		}

		// A lone surrogate is reported only at the end of the string, after all faults of form.
		r, n, bad := decodeEscape(s.src[s.at:])
		if n == 0 {
			s.fail("invalid escape in a string")
			return ""
		}
		lone = lone || bad
		out = utf8.AppendRune(out, r)
		s.at += n
		text = s.src[s.at:]
		text = text[:plainLength(text)]
		s.at += len(text)
	}

	switch {
	case s.at >= len(s.src):
		s.fail("unexpected end in a string")
	case s.src[s.at] != '"':
		s.fail("control character in a string (escape it)")
	default:
		s.at++
		if lone {
			s.fail("lone surrogate in the string that ends")
		}
	}
	if s.err != nil {
		return ""
	}
	s.arena = out
	return unsafe.String(unsafe.SliceData(out[from:]), len(out)-from)
}

// newChunk returns a new arena that begins with begun, the decoded part of a string. It has room for at least
// more bytes. The rest of the body bounds its size, because no escape is shorter than its character. Otherwise
// it is twice as large as the arena before, so that the last one suits the next request with as many escapes.
func (s *scanner) newChunk(begun []byte, more int) []byte {
	size := min(len(s.src)-s.at, max(64<<10, 2*cap(s.arena), len(begun))) + len(begun) + more
	return append(make([]byte, 0, size), begun...)
}

// decodeEscape decodes the escape at the start of b. It returns the character and the length of the escape, 0
// for an invalid one. lone is true for a surrogate without its other half.
func decodeEscape(b []byte) (r rune, n int, lone bool) {
	n = escapeLen(b)
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

// escapeLen returns the length of the escape at the start of b, 0 for an invalid one.
func escapeLen(b []byte) int {
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
