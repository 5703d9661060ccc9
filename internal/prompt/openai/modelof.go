package openai

import (
	"strings"
	"unicode/utf8"
	"unsafe"
)

// maxModelName bounds the name that ModelOf returns, in bytes.
const maxModelName = 256

// ModelOf returns the string under "model" at the top level of a body, for requests of which nothing else is
// read. It returns false for a body that is no JSON object, and if the name is missing, no string, empty or
// longer than 256 bytes. The last value of a repeated key counts. ModelOf reads the body once and allocates
// only for keys and names with escapes. Name may alias the body.
func ModelOf(body []byte) (name string, ok bool) {
	s := scanner{src: body, depth: Limits{}.WithDefaults().Depth}
	if s.peek() != objectValue {
		return "", false
	}

	s.membersOf(s.shortString, func(key string) {
		if key != "model" {
			s.skip()
			return
		}
		name = ""
		if s.peek() != stringValue {
			s.skip()
			return
		}
		name = s.shortString()
	})

	s.skipSpace()
	ok = s.err == nil && s.at == len(body) && name != "" && utf8.ValidString(name)
	if !ok {
		return "", false
	}
	return name, true
}

// shortString reads a string. It returns "" for one whose text in the body is longer than six times
// maxModelName, which is the length of as many escapes, or that is longer than maxModelName itself.
func (s *scanner) shortString() string {
	start := s.at
	raw := s.rawString()
	if s.err != nil || len(raw) > 6*maxModelName {
		return ""
	}

	text := unsafe.String(unsafe.SliceData(raw), len(raw))
	if strings.IndexByte(text, '\\') >= 0 {
		decoder := scanner{src: s.src[start:s.at]}
		text = decoder.string()
	}
	if len(text) > maxModelName {
		return ""
	}
	return text
}
