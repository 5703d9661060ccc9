package tokenizer

import "unicode/utf8"

// Segment is the length of a first part of text that is encoded independently of the rest:
//
//	Encode(text) = Encode(text[:n]) followed by Encode(text[n:])
//
// The part has at least least bytes and ends where an added token begins, or is the whole text
// where there is no such place. Text must be a text's beginning, or the rest that a call left.
//
// What follows the place decides nothing before it, so that a text and a longer one that it
// begins are cut alike, up to the last part.
func (t *Tokenizer) Segment(text string, minBytes int) int {
	for i := 0; i < len(text); {
		start, end, token := t.added.findToken(text, i)
		if token == nil {
			break
		}
		// Found longest first, tokens that overlap may reach across the place.
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

// parts says whether text may be cut where t begins. What stands before must be encoded as at
// the end of a text: t takes no space from it, and is neither space that a token before it may
// take nor a character that keeps one from being a word of its own. What follows is encoded as
// in the whole text because it begins with a token, whatever stood before.
func (t *addedToken) canBeginSegment() bool {
	_, n := utf8.DecodeRuneInString(t.Content)
	first := t.Content[:n]
	return !t.LStrip && !t.SingleWord && !beginsWithWordChar(first) && trimSpaceRight(first) != ""
}
