package jsonscan

import (
	"errors"
	"strconv"
)

// Scanner reads a JSON text once, front to back. The first error is kept in Err. After it every method does
// nothing, so that callers check Err only before they loop or use a result.
type Scanner struct {
	Src []byte
	// At is the place of the next byte to read.
	At int
	// Depth is the number of levels to which arrays and objects may still nest.
	Depth int
	// Err is a *[Fault] or [ErrTooMany], or the caller's own.
	Err error
	// Counts is whether values and keys are counted, and Left the number of them that may still follow. Skip counts what it reads.
	Counts bool
	Left   int
}

// Fault is the error of a text that is not JSON, or nests too deeply.
type Fault struct {
	// At is the place of the byte.
	At   int
	What string
}

func (f *Fault) Error() string { return f.What + " at byte " + strconv.Itoa(f.At) }

// TooDeep is the What of a Fault for a text that nests too deeply.
const TooDeep = "arrays and objects nest too deeply"

// ErrTooMany is the error for more values and keys than the caller accepts.
var ErrTooMany = errors.New("too many values")

// Kind is the kind of a JSON value, which its first byte determines.
type Kind uint8

// The kinds. Bad is the kind after an error.

const (
	Bad Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

// WithArticle returns the name of a kind with its article, for errors.
func (k Kind) WithArticle() string {
	return [...]string{"nothing", "null", "a boolean", "a number", "a string", "an array", "an object"}[k]
}

// Fail records an error at the current byte, unless there is one already.
func (s *Scanner) Fail(what string) {
	if s.Err == nil {
		s.Err = &Fault{s.At, what}
	}
}

// SkipSpace skips white space.
func (s *Scanner) SkipSpace() {
	for s.At < len(s.Src) {
		switch s.Src[s.At] {
		case ' ', '\t', '\n', '\r':
			s.At++
		default:
			return
		}
	}
}

// Peek skips white space and returns the kind of the next value, without reading it.
func (s *Scanner) Peek() Kind {
	if s.Err != nil {
		return Bad
	}
	s.SkipSpace()
	if s.At >= len(s.Src) {
		s.Fail("unexpected end")
		return Bad
	}

	switch c := s.Src[s.At]; {
	case c == '"':
		return String
	case c == '{':
		return Object
	case c == '[':
		return Array
	case c == 't' || c == 'f':
		return Bool
	case c == 'n':
		return Null
	case c == '-' || c >= '0' && c <= '9' || c == 'N' || c == 'I':
		return Number
	}
	s.Fail("unexpected character")
	return Bad
}

// Expect skips white space and reads c. It records an error if another byte comes next.
func (s *Scanner) Expect(c byte) bool {
	s.SkipSpace()
	if s.Err != nil || s.At >= len(s.Src) || s.Src[s.At] != c {
		s.Fail("expected '" + string(rune(c)) + "'")
		return false
	}
	s.At++
	return true
}

// Members calls key and then field for each member of an object. key reads a key and returns its text. field must read the value.
func (s *Scanner) Members(key func() string, field func(key string)) {
	if !s.openContainer('{') {
		return
	}
	s.SkipSpace()
	if s.At < len(s.Src) && s.Src[s.At] == '}' {
		s.closeContainer()
		return
	}
	for s.Err == nil {
		s.SkipSpace()
		name := key()
		if !s.Expect(':') {
			return
		}
		field(name)
		if s.nextElement('}') {
			continue
		}
		return
	}
}

// EachElement calls element for each element of an array. element must read it.
func (s *Scanner) EachElement(element func(i int)) {
	if !s.openContainer('[') {
		return
	}
	s.SkipSpace()
	if s.At < len(s.Src) && s.Src[s.At] == ']' {
		s.closeContainer()
		return
	}
	for i := 0; s.Err == nil; i++ {
		element(i)
		if s.nextElement(']') {
			continue
		}
		return
	}
}

// openContainer reads the opening bracket c and enters one level of nesting.
func (s *Scanner) openContainer(c byte) bool {
	if s.Depth == 0 {
		s.Fail(TooDeep)
		return false
	}
	s.Depth--
	return s.Expect(c)
}

// closeContainer reads the closing bracket and leaves one level of nesting.
func (s *Scanner) closeContainer() {
	s.At++
	s.Depth++
}

// nextElement reads the byte after an element. It returns true for a comma, and false for the end of the
// container or an error.
func (s *Scanner) nextElement(end byte) bool {
	if s.Err != nil {
		return false
	}
	s.SkipSpace()
	if s.At < len(s.Src) {
		switch s.Src[s.At] {
		case ',':
			s.At++
			return true
		case end:
			s.closeContainer()
			return false
		}
	}
	s.Fail("expected ',' or '" + string(rune(end)) + "'")
	return false
}

// Skip reads one value of any kind and returns its bytes.
func (s *Scanner) Skip() []byte {
	k := s.Peek()
	start := s.At
	s.CountValue()
	switch k {
	case Object:
		// Keys of skipped objects are not decoded. A lone surrogate in such a key is therefore no error.
		s.Members(func() string { s.RawString(); return "" }, func(string) { s.CountValue(); s.Skip() })
	case Array:
		s.EachElement(func(int) { s.Skip() })
	case String:
		s.RawString()
	case Number:
		s.ReadNumber()
	case Bool:
		s.ReadBool()
	case Null:
		s.ExpectWord("null")
	}
	if s.Err != nil {
		return nil
	}
	return s.Src[start:s.At]
}

// CountValue counts a value or a key.
func (s *Scanner) CountValue() {
	if !s.Counts {
		return
	}
	s.Left--
	if s.Left < 0 && s.Err == nil {
		s.Err = ErrTooMany
	}
}

// ExpectWord reads one of the words true, false and null.
func (s *Scanner) ExpectWord(word string) bool {
	if s.Err == nil && len(s.Src)-s.At >= len(word) && string(s.Src[s.At:s.At+len(word)]) == word {
		s.At += len(word)
		return true
	}
	s.Fail("unexpected character")
	return false
}

// ReadBool reads true or false.
func (s *Scanner) ReadBool() bool {
	if s.Err == nil && s.At < len(s.Src) && s.Src[s.At] == 't' {
		return s.ExpectWord("true")
	}
	s.ExpectWord("false")
	return false
}

// ReadNumber reads a number and returns its characters. The grammar is JSON's, with NaN, Infinity and -Infinity,
// because engines in Python accept these words.
func (s *Scanner) ReadNumber() []byte {
	start := s.At
	if s.At < len(s.Src) && s.Src[s.At] == 'N' {
		s.ExpectWord("NaN")
		return s.Src[start:s.At]
	}
	if s.At < len(s.Src) && s.Src[s.At] == '-' {
		s.At++
	}
	if s.At < len(s.Src) && s.Src[s.At] == 'I' {
		s.ExpectWord("Infinity")
		return s.Src[start:s.At]
	}
	if s.At < len(s.Src) && s.Src[s.At] == '0' {
		s.At++
	} else {
		s.digits()
	}

	if s.At < len(s.Src) && s.Src[s.At] == '.' {
		s.At++
		s.digits()
	}
	if s.At < len(s.Src) && s.Src[s.At]|0x20 == 'e' {
		s.At++
		if s.At < len(s.Src) && (s.Src[s.At] == '+' || s.Src[s.At] == '-') {
			s.At++
		}
		s.digits()
	}
	if s.Err != nil {
		return nil
	}
	return s.Src[start:s.At]
}

// digits reads one or more digits.
func (s *Scanner) digits() {
	start := s.At
	for s.At < len(s.Src) && s.Src[s.At]-'0' < 10 {
		s.At++
	}
	if s.At == start {
		s.Fail("expected a digit")
	}
}
