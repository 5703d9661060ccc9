package openai

import (
	"strings"
	"unicode/utf8"
	"unsafe"
)

// maxShort bounds the names of members and of models, in bytes.
const maxShort = 256

// ShortString returns the text of a JSON value that is a string of at most 256 bytes, and "" for any other value and for text that is no
// UTF-8. It allocates only for a string with escapes. The text may alias the value.
func ShortString(value []byte) string {
	s := scanner{src: value}
	if s.peek() != stringValue {
		return ""
	}
	text := s.shortString()
	if s.err != nil || !utf8.ValidString(text) {
		return ""
	}
	return text
}

// shortString reads a string. It returns "" for one whose text in the body is longer than six times
// maxShort, which is the length of as many escapes, or that is longer than maxShort itself.
func (s *scanner) shortString() string {
	start := s.at
	raw := s.rawString()
	if s.err != nil || len(raw) > 6*maxShort {
		return ""
	}

	text := unsafe.String(unsafe.SliceData(raw), len(raw))
	if strings.IndexByte(text, '\\') >= 0 {
		decoder := scanner{src: s.src[start:s.at]}
		text = decoder.string()
	}
	if len(text) > maxShort {
		return ""
	}
	return text
}
