package chattemplate

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// unescapeJSON decodes the text between the quotes of a JSON string, in one allocation. As in encoding/json, half a
// surrogate pair and bytes that are not UTF-8 become U+FFFD. It returns false for an invalid escape.
func unescapeJSON(src []byte) (string, bool) {
	out := make([]byte, 0, len(src))
	for i := 0; i < len(src); {
		switch c := src[i]; {
		case c == '\\':
			r, n := unescapeRune(src[i:])
			if n == 0 {
				return "", false
			}
			out = utf8.AppendRune(out, r)
			i += n
		case c < utf8.RuneSelf:
			out = append(out, c)
			i++
		default:
			r, n := utf8.DecodeRune(src[i:])
			out = utf8.AppendRune(out, r)
			i += n
		}
	}
	return unsafe.String(unsafe.SliceData(out), len(out)), true
}

// letterEscapes are the escapes of one letter, with the characters that they stand for.
var letterEscapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unescapeRune decodes the escape at the start of src. It returns the character and the length of the escape, or 0 for
// an invalid one.
func unescapeRune(src []byte) (r rune, n int) {
	const unicodeEscape = len(`\u0000`)
	if len(src) < 2 {
		return 0, 0
	}
	if src[1] != 'u' {
		r, ok := letterEscapes[src[1]]
		if !ok {
			return 0, 0
		}
		return r, 2
	}

	r, ok := hexRune(src)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(r) {
		return r, unicodeEscape
	}
	if low, ok := hexRune(src[unicodeEscape:]); ok {
		if both := utf16.DecodeRune(r, low); both != utf8.RuneError {
			return both, 2 * unicodeEscape
		}
	}
	return utf8.RuneError, unicodeEscape
}

// hexRune decodes an escape of four hexadecimal digits at the start of src.
func hexRune(src []byte) (rune, bool) {
	const unicodeEscape = len(`\u0000`)
	if len(src) < unicodeEscape || src[0] != '\\' || src[1] != 'u' {
		return 0, false
	}
	v, err := strconv.ParseUint(string(src[2:unicodeEscape]), 16, 16)
	return rune(v), err == nil
}
