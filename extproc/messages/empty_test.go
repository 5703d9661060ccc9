package messages

import "testing"

// TestIsEmptyAnswer: only an answer that has ended regularly shows whether it has tokens.
func TestIsEmptyAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		entry            Entry
		isEmpty, regular bool
	}{
		"tokens":                {Entry{Status: 200, LastByte: 1, ResponseBytes: 300, Counted: true, AnswerTokens: 3}, false, true},
		"a stream without them": {Entry{Status: 200, LastByte: 1, ResponseBytes: 300, Counted: true}, true, true},
		"no usage":              {Entry{Status: 200, LastByte: 1, ResponseBytes: 300}, false, true},
		"no body":               {Entry{Status: 200, LastByte: 1}, true, true},
		"an error":              {Entry{Status: 500, LastByte: 1}, false, false},
		"cut off":               {Entry{Status: 200, LastByte: 1, Broken: true}, false, false},
		"the client has left":   {Entry{Status: 200, LastByte: 1, Left: true}, false, false},
		"an end not seen":       {Entry{Status: 200}, false, false},
	} {
		isEmpty, regular := c.entry.IsEmptyAnswer()
		if isEmpty != c.isEmpty || regular != c.regular {
			t.Errorf("%s: %v, %v", name, isEmpty, regular)
		}
	}
}
