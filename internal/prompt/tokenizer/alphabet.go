package tokenizer

import "unicode/utf8"

// alphabet is how a file spells bytes: GPT-2's way, in which bytes that print stand for
// themselves and the others are characters from U+0100 on, so that a vocabulary is text.
type alphabet struct {
	char [256]rune
	byte map[rune]byte
}

var byteLevel = newAlphabet()

func newAlphabet() *alphabet {
	a := &alphabet{byte: make(map[rune]byte, 256)}
	other := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if b < '!' || b > '~' && b < 0xa1 || b == 0xad {
			r = other
			other++
		}
		a.char[b] = r
		a.byte[r] = byte(b)
	}
	return a
}

// decode appends the bytes that token spells; ok is false where a character stands for none.
func (a *alphabet) decode(dst, token []byte) (out []byte, ok bool) {
	for len(token) > 0 {
		r, n := rune(token[0]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRune(token)
		} else if r > ' ' && r < 0x7f {
			dst, token = append(dst, byte(r)), token[1:]
			continue
		}
		b, ok := a.byte[r]
		if !ok {
			return dst, false
		}
		dst, token = append(dst, b), token[n:]
	}
	return dst, true
}
