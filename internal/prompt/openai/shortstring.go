package openai

import (
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/stator-project/stator/internal/jsonscan"
)

// maxShort bounds the names of members and of models, in bytes.
const maxShort = 256

// ShortString returns the text of a JSON value that is a string of at most 256 bytes, and "" for any other value and for text that is no
// UTF-8. It allocates only for a string with escapes. The text may alias the value.
func ShortString(value []byte) string {
	s := newScanner(value, 0)
	if s.Peek() != jsonscan.String {
		return ""
	}
	text := s.shortString()
	if s.Err != nil || !utf8.ValidString(text) {
		return ""
	}
	return text
}

// shortString reads a string. It returns "" for one whose text in the body is longer than six times
// maxShort, which is the length of as many escapes, or that is longer than maxShort itself.
func (s *scanner) shortString() string {
	start := s.At
	raw := s.RawString()
	if s.Err != nil || len(raw) > 6*maxShort {
		return ""
	}

	text := unsafe.String(unsafe.SliceData(raw), len(raw))
	if strings.IndexByte(text, '\\') >= 0 {
		decoder := newScanner(s.Src[start:s.At], 0)
		text = decoder.string()
	}
	if len(text) > maxShort {
		return ""
	}
	return text
}
