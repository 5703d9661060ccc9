package stream

import (
	"bytes"
	"strconv"
)

// usage finds the number of tokens that a response reports of its answer: the last number of that key. A text in the response cannot
// contain the key, because JSON escapes its quotes.
type usage struct {
	tail   []byte // the end of the pieces so far, at most usageTail bytes
	tokens int
}

// usageTail is longer than the key with its number, which two pieces may share.
const usageTail = 64

var usageKey = []byte(`"completion_tokens":`)

// read returns the number of tokens so far; 0 for none.
func (u *usage) read(piece []byte) int {
	text := append(u.tail, piece...)
	if at := bytes.LastIndex(text, usageKey); at >= 0 {
		number := bytes.TrimLeft(text[at+len(usageKey):], " ")
		end := bytes.IndexFunc(number, func(c rune) bool { return c < '0' || c > '9' })
		if end > 0 { // else the number may go on in the next piece
			n, err := strconv.ParseInt(string(number[:end]), 10, 32)
			if err == nil {
				u.tokens = int(n)
			}
		}
	}
	u.tail = append(u.tail[:0], text[max(0, len(text)-usageTail):]...)
	return u.tokens
}
