package tokenizer

import "unicode/utf8"

// Segment returns the length n of a first part of text that is encoded independently of the rest:
//
//	Encode(text) = Encode(text[:n]) followed by Encode(text[n:])
//
// The part has at least minBytes bytes and ends at the beginning of an added token. If there is no such place, it is the whole text. Text
// must be the beginning of a prompt's text, or the rest after an earlier segment.
//
// Text after the end of a segment never affects its end. So the segments of a conversation are the same in its next
// turn, except for the last one.
func (t *Tokenizer) Segment(text string, minBytes int) int {
	for i := 0; i < len(text); {
		start, end, token := t.added.findToken(text, i)
		if token == nil {
			break
		}
		// If longer tokens are found first, a longer token may begin inside this one and make it
		// text. So text must not be cut from here on.
		if t.longestFirst && t.added.longerInside(text, start, end) {
			break
		}
		if start > 0 && start >= minBytes && token.canBeginSegment() {
			return start
		}
		i = end
	}
	return len(text)
}

// canBeginSegment reports whether text may be cut before t. The text before t must be encoded as at
// the end of a text. This requires three properties of t: it strips no white space before it, it does not
// begin with white space that the token before it may strip, and it does not begin with a word character,
// which would affect a single-word token before it. The text from t on is encoded as in the whole text,
// because it begins with a token.
func (t *addedToken) canBeginSegment() bool {
	_, n := utf8.DecodeRuneInString(t.Content)
	first := t.Content[:n]
	return !t.LStrip && !t.SingleWord && !beginsWithWordChar(first) && trimSpaceRight(first) != ""
}
