package tokenizer

import "unicode/utf8"

// FewestTokens returns a lower bound on the number of ids of a text, or 0 if the vocabulary has no such bound. It is much faster than
// encoding: it divides the length of the text by the length of the longest token.
func (t *Tokenizer) FewestTokens(text string) int {
	if t.mostPerToken == 0 || len(text) <= t.mostPerToken {
		return 0
	}
	n := len(text)
	if t.dropsSpace {
		n -= spaceBytes(text)
	}
	return n / t.mostPerToken
}

// spaceBytes counts the bytes of the white space in s.
func spaceBytes(s string) (n int) {
	for i := 0; i < len(s); {
		c, size := classAt(s, i)
		if c&space != 0 {
			n += size
		}
		i += size
	}
	return n
}

// measureTokens sets t.mostPerToken to the most bytes of text that one token can stand for, or to 0 if some
// text has no tokens. It sets t.dropsSpace if white space alone may have no tokens.
func (t *Tokenizer) measureTokens() {
	longest := max(t.longestAdded, utf8.UTFMax) // an unknown token stands for one character
	for _, s := range t.vocab.spans {
		longest = max(longest, int(s.size))
	}
	for _, tokens := range [][]addedToken{t.added.tokens, t.normalized.tokens} {
		for i := range tokens {
			longest = max(longest, len(tokens[i].Content))
			t.dropsSpace = t.dropsSpace || tokens[i].LStrip || tokens[i].RStrip
		}
	}

	shrink := 1
	for i := range t.normalSteps {
		st := &t.normalSteps[i]
		shrink *= st.mostShrink()
		t.dropsSpace = t.dropsSpace || st.kind == normalStrip
	}
	t.mostPerToken = longest * shrink

	for i := range t.stages {
		if t.stages[i].kind == stageMatch && t.stages[i].behavior == removed {
			t.mostPerToken = 0
		}
	}
	if t.dropsText() {
		t.mostPerToken = 0
	}
}

// dropsText reports whether some character has no token, or shares one token with any number of others.
func (t *Tokenizer) dropsText() bool {
	everyByte := true
	for b, id := range t.byteIDsOfModel() {
		everyByte = everyByte && (id != none || !inUTF8(byte(b)))
	}

	c := t.chars
	if c == nil {
		return !everyByte
	}
	if everyByte && (c.byteFallback || c.unknownApart) {
		return false
	}
	return c.unknown == none || c.fuseUnknown
}

// byteIDsOfModel returns the tokens of single bytes.
func (t *Tokenizer) byteIDsOfModel() *[256]uint32 {
	if t.chars != nil {
		return &t.chars.byteIDs
	}
	return &t.byteIDs
}

// mostShrink returns the greatest factor by which the step may shorten a text, or 0 for a step that may remove
// text other than white space.
func (st *normalStep) mostShrink() int {
	switch st.kind {
	case normalNFC:
		return nfcShrink
	case normalReplace:
		from, ok := st.finder.(literal)
		if !ok || st.to == "" {
			return 0
		}
		return max(1, (len(from)+len(st.to)-1)/len(st.to))
	}
	return 1
}

// nfcShrink bounds the factor by which NFC may shorten a text, rounded up. An iota, a dialytika and an acute sign can be written with seven
// bytes, and become U+0390 with two.
const nfcShrink = 4
