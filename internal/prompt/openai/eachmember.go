package openai

import "bytes"

// EachMember calls see for each member at the top level of a body: its name, and the beginning and end of its text, from the
// quote before the name to the end of the value. A name of more than 256 bytes is empty. A body that does not begin as a JSON
// object has no members. EachMember returns an error for an object that is malformed or nests too deeply; see may have been
// called for members before the fault. Names may alias the body. EachMember reads the body once and allocates only for names
// with escapes.
func EachMember(body []byte, see func(name string, from, to int)) *Error {
	s := newScanner(body, Limits{}.WithDefaults().Depth)
	s.SkipSpace()
	if s.At == len(body) || body[s.At] != '{' {
		return nil
	}

	from := 0
	name := func() string {
		from = s.At
		return s.shortString()
	}
	s.Members(name, func(name string) {
		s.Skip()
		if s.Err == nil {
			see(name, from, s.At)
		}
	})
	s.SkipSpace()
	if s.At < len(body) {
		s.Fail("unexpected text after the body's object")
	}
	return s.failure()
}

// MemberValue returns the value of a member: what follows the colon behind the name in a text from [EachMember].
func MemberValue(member []byte) []byte {
	at := 1 // behind the quote that begins the name
	for member[at] != '"' {
		if member[at] == '\\' {
			at++
		}
		at++
	}
	colon := at + bytes.IndexByte(member[at:], ':')
	return bytes.TrimLeft(member[colon+1:], " \t\r\n")
}
