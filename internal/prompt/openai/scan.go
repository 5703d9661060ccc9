package openai

import (
	"encoding/binary"
	"math/bits"
)

// scanner walks a JSON text once, front to back. The first fault is kept in err, after which
// every method does nothing; callers check it where they would loop or build on a result.
type scanner struct {
	src   []byte
	at    int
	depth int // how much deeper arrays and objects may still nest
	err   *Error
	// arena holds decoded strings. A chunk is never grown, only followed by another, so that
	// strings into it stay valid.
	arena []byte
}

// kind is the kind of a JSON value, known from its first byte.
type kind uint8

const (
	badValue kind = iota
	nullValue
	boolValue
	numberValue
	stringValue
	arrayValue
	objectValue
)

func (k kind) withArticle() string {
	return [...]string{"nothing", "null", "a boolean", "a number", "a string", "an array", "an object"}[k]
}

func (s *scanner) fail(what string) {
	if s.err == nil {
		s.err = malformed(s.at, what)
	}
}

func (s *scanner) skipSpace() {
	for s.at < len(s.src) {
		switch s.src[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}

// peek skips white space and returns the kind of the next value, without reading it.
func (s *scanner) peek() kind {
	if s.err != nil {
		return badValue
	}
	s.skipSpace()
	if s.at >= len(s.src) {
		s.fail("unexpected end")
		return badValue
	}

	switch c := s.src[s.at]; {
	case c == '"':
		return stringValue
	case c == '{':
		return objectValue
	case c == '[':
		return arrayValue
	case c == 't' || c == 'f':
		return boolValue
	case c == 'n':
		return nullValue
	case c == '-' || c >= '0' && c <= '9':
		return numberValue
	}
	s.fail("unexpected character")
	return badValue
}

// expect reads c, after white space.
func (s *scanner) expect(c byte) bool {
	s.skipSpace()
	if s.err != nil || s.at >= len(s.src) || s.src[s.at] != c {
		s.fail("expected '" + string(rune(c)) + "'")
		return false
	}
	s.at++
	return true
}

// object calls field for each key of an object; field must read the value.
func (s *scanner) object(field func(key string)) { s.membersOf(s.string, field) }

// membersOf is object with another way to read keys.
func (s *scanner) membersOf(key func() string, field func(key string)) {
	if !s.openContainer('{') {
		return
	}
	s.skipSpace()
	if s.at < len(s.src) && s.src[s.at] == '}' {
		s.closeContainer()
		return
	}
	for s.err == nil {
		s.skipSpace()
		name := key()
		if !s.expect(':') {
			return
		}
		field(name)
		if s.nextElement('}') {
			continue
		}
		return
	}
}

// array calls element for each element of an array; element must read it.
func (s *scanner) array(element func(i int)) {
	if !s.openContainer('[') {
		return
	}
	s.skipSpace()
	if s.at < len(s.src) && s.src[s.at] == ']' {
		s.closeContainer()
		return
	}
	for i := 0; s.err == nil; i++ {
		element(i)
		if s.nextElement(']') {
			continue
		}
		return
	}
}

func (s *scanner) openContainer(c byte) bool {
	if s.depth == 0 {
		if s.err == nil {
			s.err = Invalid("", "invalid_json", "The request body nests arrays and objects too deeply at byte %d. Send a flatter document.", s.at)
		}
		return false
	}
	s.depth--
	return s.expect(c)
}

func (s *scanner) closeContainer() {
	s.at++
	s.depth++
}

// nextElement reads what follows an element: a comma (true) or the end of its container (false).
func (s *scanner) nextElement(end byte) bool {
	if s.err != nil {
		return false
	}
	s.skipSpace()
	if s.at < len(s.src) {
		switch s.src[s.at] {
		case ',':
			s.at++
			return true
		case end:
			s.closeContainer()
			return false
		}
	}
	s.fail("expected ',' or '" + string(rune(end)) + "'")
	return false
}

// skip reads one value of any kind and returns its bytes.
func (s *scanner) skip() []byte {
	k := s.peek()
	start := s.at
	switch k {
	case objectValue:
		// Keys of skipped objects are not decoded: an escape may be of no valid character.
		s.membersOf(func() string { s.rawString(); return "" }, func(string) { s.skip() })
	case arrayValue:
		s.array(func(int) { s.skip() })
	case stringValue:
		s.rawString()
	case numberValue:
		s.number()
	case boolValue:
		s.boolean()
	case nullValue:
		s.expectWord("null")
	}
	if s.err != nil {
		return nil
	}
	return s.src[start:s.at]
}

func (s *scanner) expectWord(word string) bool {
	if s.err == nil && len(s.src)-s.at >= len(word) && string(s.src[s.at:s.at+len(word)]) == word {
		s.at += len(word)
		return true
	}
	s.fail("unexpected character")
	return false
}

func (s *scanner) boolean() bool {
	if s.err == nil && s.at < len(s.src) && s.src[s.at] == 't' {
		return s.expectWord("true")
	}
	s.expectWord("false")
	return false
}

// number reads a number by JSON's grammar, and returns its characters.
func (s *scanner) number() []byte {
	start := s.at
	if s.at < len(s.src) && s.src[s.at] == '-' {
		s.at++
	}
	if s.at < len(s.src) && s.src[s.at] == '0' {
		s.at++
	} else {
		s.digits()
	}

	if s.at < len(s.src) && s.src[s.at] == '.' {
		s.at++
		s.digits()
	}
	if s.at < len(s.src) && s.src[s.at]|0x20 == 'e' {
		s.at++
		if s.at < len(s.src) && (s.src[s.at] == '+' || s.src[s.at] == '-') {
			s.at++
		}
		s.digits()
	}
	if s.err != nil {
		return nil
	}
	return s.src[start:s.at]
}

// digits reads one digit or more.
func (s *scanner) digits() {
	start := s.at
	for s.at < len(s.src) && s.src[s.at]-'0' < 10 {
		s.at++
	}
	if s.at == start {
		s.fail("expected a digit")
	}
}

// rawString reads a string and returns the bytes between its quotes, still escaped. It checks the form of escapes.
func (s *scanner) rawString() []byte {
	if s.err != nil || s.at >= len(s.src) || s.src[s.at] != '"' {
		s.fail("expected a string")
		return nil
	}

	s.at++
	start := s.at
	for {
		s.at += plainLength(s.src[s.at:])
		if s.at >= len(s.src) {
			s.fail("unexpected end in a string")
			return nil
		}
		switch c := s.src[s.at]; {
		case c == '"':
			s.at++
			return s.src[start : s.at-1]
		case c == '\\':
			n := escapeLen(s.src[s.at:])
			if n == 0 {
				s.fail("invalid escape in a string")
				return nil
			}
			s.at += n
		default:
			s.fail("control character in a string (escape it)")
			return nil
		}
	}
}

// plainLength counts the bytes of b before the first quote, backslash or control character, sixteen
// at a time.
func plainLength(b []byte) int {
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

// markSpecial has the high bit of each byte of w set that is a quote, a backslash or a control
// character. Borrows may set bits above a true one; the lowest is true.
func markSpecial(w uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	quote, slash := w^(ones*'"'), w^(ones*'\\')
	return ((quote-ones)&^quote | (slash-ones)&^slash | (w-ones*0x20)&^w) & highs
}
