package openai

// EachMember calls see for each member at the top level of a body: its name, and the beginning and end of its text, from the
// quote before the name to the end of the value. A name of more than 256 bytes is empty. A body that does not begin as a JSON
// object has no members. EachMember returns an error for an object that is malformed or nests too deeply; see may have been
// called for members before the fault. Names may alias the body. EachMember reads the body once and allocates only for names
// with escapes.
func EachMember(body []byte, see func(name string, from, to int)) *Error {
	s := scanner{src: body, depth: Limits{}.WithDefaults().Depth}
	s.skipSpace()
	if s.at == len(body) || body[s.at] != '{' {
		return nil
	}

	from := 0
	name := func() string {
		from = s.at
		return s.shortString()
	}
	s.membersOf(name, func(name string) {
		s.skip()
		if s.err == nil {
			see(name, from, s.at)
		}
	})
	s.skipSpace()
	if s.at < len(body) {
		s.fail("unexpected text after the body's object")
	}
	return s.err
}
