package openai

import (
	"unicode/utf8"
	"unsafe"

	"github.com/stator-project/stator/internal/jsonscan"
)

// string reads a string and decodes it. A string without escapes aliases the body. Others are decoded into
// the arena, in the same pass. A lone surrogate is refused, as by engines, because it has no UTF-8.
func (s *scanner) string() string {
	if s.Err == nil && s.At < len(s.Src) && s.Src[s.At] == '"' {
		start := s.At + 1
		if end := start + jsonscan.PlainLength(s.Src[start:]); end < len(s.Src) && s.Src[end] == '\\' {
			s.At = end
			return s.unescape(s.Src[start:end])
		}
	}
	text := s.RawString()
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
		if s.At >= len(s.Src) || s.Src[s.At] != '\\' {
			break
		}

		// A lone surrogate is reported only at the end of the string, after all faults of form.
		r, n, bad := jsonscan.DecodeEscape(s.Src[s.At:])
		if n == 0 {
			s.Fail("invalid escape in a string")
			return ""
		}
		lone = lone || bad
		out = utf8.AppendRune(out, r)
		s.At += n
		text = s.Src[s.At:]
		text = text[:jsonscan.PlainLength(text)]
		s.At += len(text)
	}

	switch {
	case s.At >= len(s.Src):
		s.Fail("unexpected end in a string")
	case s.Src[s.At] != '"':
		s.Fail("control character in a string (escape it)")
	default:
		s.At++
		if lone {
			s.Fail("lone surrogate in the string that ends")
		}
	}
	if s.Err != nil {
		return ""
	}
	s.arena = out
	return unsafe.String(unsafe.SliceData(out[from:]), len(out)-from)
}

// newChunk returns a new arena that begins with begun, the decoded part of a string. It has room for at least
// more bytes. The rest of the body bounds its size, because no escape is shorter than its character. Otherwise
// it is twice as large as the arena before, so that the last one suits the next request with as many escapes.
func (s *scanner) newChunk(begun []byte, more int) []byte {
	size := min(len(s.Src)-s.At, max(64<<10, 2*cap(s.arena), len(begun))) + len(begun) + more
	return append(make([]byte, 0, size), begun...)
}
