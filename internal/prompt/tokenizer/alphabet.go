package tokenizer

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// alphabet is how a file spells the text of its tokens.
type alphabet struct {
	kind   alphabetKind
	charOf [256]rune
	byteOf map[rune]byte
}

type alphabetKind uint8

const (
	// kindBytes is GPT-2's way: bytes that print stand for themselves and the others are
	// characters from U+0100 on, so that a vocabulary of bytes is text.
	kindBytes alphabetKind = iota
	// kindPlain spells text as it is.
	kindPlain
	// kindMarked writes ▁ for a space, where no token can come to hold a space.
	kindMarked
)

var (
	byteLevel  = newByteLevel()
	plainText  = &alphabet{kind: kindPlain}
	markedText = &alphabet{kind: kindMarked}
)

// lowerBlock is what SentencePiece writes for a space.
const lowerBlock = "▁"

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

// decode appends the text that token spells; ok is false where it spells none, so that no
// text becomes that token.
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

// encode appends text as the file would spell it.
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

// appendMarked appends s with ▁ for each space.
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
