package openai

import "github.com/stator-project/stator/internal/jsonscan"

// scanner reads a JSON text once, front to back. The first error is kept in err. After it every method does
// nothing, so that callers check err only before they loop or use a result.
type scanner struct {
	src []byte
	at  int
	// depth is the number of levels to which arrays and objects may still nest.
	depth int
	err   *Error
	// counted names the field whose values skip counts in values, up to maxValues; empty counts none.
	counted           string
	values, maxValues int
	// arena holds decoded strings. Results alias it, so that it is never reallocated: a full arena is
	// replaced by a new one.
	arena []byte
}

// kind is the kind of a JSON value, which its first byte determines.
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

// withArticle returns the name of a kind with its article, for errors.
func (k kind) withArticle() string {
	return [...]string{"nothing", "null", "a boolean", "a number", "a string", "an array", "an object"}[k]
}

// fail records an error at the current byte, unless there is one already.
func (s *scanner) fail(what string) {
	if s.err == nil {
		s.err = malformed(s.at, what)
	}
}

// skipSpace skips white space.
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
	case c == '-' || c >= '0' && c <= '9' || c == 'N' || c == 'I':
		return numberValue
	}
	s.fail("unexpected character")
	return badValue
}

// expect skips white space and reads c. It records an error if another byte comes next.
func (s *scanner) expect(c byte) bool {
	s.skipSpace()
	if s.err != nil || s.at >= len(s.src) || s.src[s.at] != c {
		s.fail("expected '" + string(rune(c)) + "'")
		return false
	}
	s.at++
	return true
}

// object calls field for each key of an object. field must read the value.
func (s *scanner) object(field func(key string)) { s.membersOf(s.string, field) }

// membersOf is object with another function that reads keys.
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

// array calls element for each element of an array. element must read it.
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

// openContainer reads the opening bracket c and enters one level of nesting.
func (s *scanner) openContainer(c byte) bool {
	if s.depth == 0 {
		if s.err == nil {
			s.err = Invalid("", "invalid_json", "The request body nests arrays and objects too deeply at byte %d. Send a flatter "+
				"document.", s.at)
		}
		return false
	}
	s.depth--
	return s.expect(c)
}

// closeContainer reads the closing bracket and leaves one level of nesting.
func (s *scanner) closeContainer() {
	s.at++
	s.depth++
}

// nextElement reads the byte after an element. It returns true for a comma, and false for the end of the
// container or an error.
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
	s.countValue()
	switch k {
	case objectValue:
		// Keys of skipped objects are not decoded. A lone surrogate in such a key is therefore no error.
		s.membersOf(func() string { s.rawString(); return "" }, func(string) { s.countValue(); s.skip() })
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

// skipCounted reads one value as skip does, and counts the values and keys in it. Field is the name for the
// error if the request has too many.
func (s *scanner) skipCounted(field string) []byte {
	s.counted = field
	raw := s.skip()
	s.counted = ""
	return raw
}

// countValue counts a value or a key of the field that is counted.
func (s *scanner) countValue() {
	if s.counted == "" {
		return
	}
	s.values++
	if s.values > s.maxValues && s.err == nil {
		s.err = Invalid(s.counted, "invalid_value", "Invalid value for '%s': the request holds more than %d values and keys in tools, "+
			"tool calls, documents, template arguments and content parts. Send fewer.", s.counted, s.maxValues)
	}
}

// expectWord reads one of the words true, false and null.
func (s *scanner) expectWord(word string) bool {
	if s.err == nil && len(s.src)-s.at >= len(word) && string(s.src[s.at:s.at+len(word)]) == word {
		s.at += len(word)
		return true
	}
	s.fail("unexpected character")
	return false
}

// boolean reads true or false.
func (s *scanner) boolean() bool {
	if s.err == nil && s.at < len(s.src) && s.src[s.at] == 't' {
		return s.expectWord("true")
	}
	s.expectWord("false")
	return false
}

// number reads a number and returns its characters. The grammar is JSON's, with NaN, Infinity and -Infinity,
// because engines in Python accept these words.
func (s *scanner) number() []byte {
	start := s.at
	if s.at < len(s.src) && s.src[s.at] == 'N' {
		s.expectWord("NaN")
		return s.src[start:s.at]
	}
	if s.at < len(s.src) && s.src[s.at] == '-' {
		s.at++
	}
	if s.at < len(s.src) && s.src[s.at] == 'I' {
		s.expectWord("Infinity")
		return s.src[start:s.at]
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

// digits reads one or more digits.
func (s *scanner) digits() {
	start := s.at
	for s.at < len(s.src) && s.src[s.at]-'0' < 10 {
		s.at++
	}
	if s.at == start {
		s.fail("expected a digit")
	}
}

// rawString reads a string and returns the bytes between its quotes. It checks the escapes and does not
// decode them.
func (s *scanner) rawString() []byte {
	if s.err != nil || s.at >= len(s.src) || s.src[s.at] != '"' {
		s.fail("expected a string")
		return nil
	}

	start := s.at + 1
	n, _, ok := jsonscan.TextLength(s.src[start:])
	s.at = start + n
	switch {
	case ok:
		s.at++
		return s.src[start : s.at-1]
	case s.at >= len(s.src):
		s.fail("unexpected end in a string")
	case s.src[s.at] == '\\':
		s.fail("invalid escape in a string")
	default:
		s.fail("control character in a string (escape it)")
	}
	return nil
}
