package tokenizer

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// alphabet converts between the text of a token and its spelling in a file.
type alphabet struct {
	kind   alphabetKind
	charOf [256]rune
	byteOf map[rune]byte
}

type alphabetKind uint8

const (
	// kindBytes is the alphabet of GPT-2. It has one character for each byte, so that tokens with partial
	// characters can be written in a JSON file: printable bytes stand for themselves, and the others are
	// written as characters from U+0100 on.
	kindBytes alphabetKind = iota
	// kindPlain writes text unchanged.
	kindPlain
	// kindMarked writes ▁ for a space. A token that is spelled with a space can match no text.
	kindMarked
)

var (
	byteLevel  = newByteLevel()
	plainText  = &alphabet{kind: kindPlain}
	markedText = &alphabet{kind: kindMarked}
)

// lowerBlock is the character that SentencePiece writes for a space.
const lowerBlock = "▁"

// newByteLevel builds the alphabet of kindBytes. The bytes that are not printable in Latin-1 get the
// characters from U+0100 on, in order.
func newByteLevel() *alphabet {
	a := &alphabet{kind: kindBytes, byteOf: make(map[rune]byte, 256)}
	other := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if b < '!' || b > '~' && b < 0xa1 || b == 0xad {
			r = other
			other++
		}
		a.charOf[b] = r
		a.byteOf[r] = byte(b)
	}

	return a
}

// decode appends the text of a token in its file's spelling to dst. Ok is false if the spelling stands for no text; encoding
// then never produces the token.
func (a *alphabet) decode(dst, token []byte) (out []byte, ok bool) {
	switch a.kind {
	case kindPlain:
		return append(dst, token...), true
	case kindMarked:
		for {
			i := bytes.Index(token, []byte(lowerBlock))
			part := token
			if i >= 0 {
				part = token[:i]
			}
			if bytes.IndexByte(part, ' ') >= 0 {
				return dst, false
			}
			dst = append(dst, part...)
			if i < 0 {
				return dst, true
			}
			dst, token = append(dst, ' '), token[i+len(lowerBlock):]
		}
	}

	for len(token) > 0 {
		r, n := rune(token[0]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRune(token)
		} else if r > ' ' && r < 0x7f {
			dst, token = append(dst, byte(r)), token[1:]
			continue
		}
		b, ok := a.byteOf[r]
		if !ok {
			return dst, false
		}
		dst, token = append(dst, b), token[n:]
	}

	return dst, true
}

// encode appends text in the file's spelling to dst.
func (a *alphabet) encode(dst []byte, text string) []byte {
	switch a.kind {
	case kindPlain:
		return append(dst, text...)
	case kindMarked:
		return appendMarked(dst, text)
	}

	for i := range len(text) {
		dst = utf8.AppendRune(dst, a.charOf[text[i]])
	}
	return dst
}

// appendMarked appends s to dst with ▁ in place of each space.
func appendMarked(dst []byte, s string) []byte {
	for {
		i := strings.IndexByte(s, ' ')
		if i < 0 {
			return append(dst, s...)
		}
		dst = append(append(dst, s[:i]...), lowerBlock...)
		s = s[i+1:]
	}
}
