package chattemplate

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// errEscape reports an escape that Python would refuse too.
var errEscape = errors.New("truncated or invalid escape in a string")

// unescape decodes the escapes of a string literal, as Python's codec unicode_escape does. An unknown escape
// stays as it is.
func unescape(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}

	out := make([]byte, 0, len(s))
	for len(s) > 0 {
		i := strings.IndexByte(s, '\\')
		if i < 0 || i+1 >= len(s) {
			out = append(out, s...)
			break
		}
		out = append(out, s[:i]...)
		n, r, err := decodeEscape(s[i:])
		switch {
		case err != nil:
			return "", err
		case n == 0: // an unknown escape keeps its backslash
			out, n = append(out, '\\'), 1
		case r >= 0:
			out = utf8.AppendRune(out, r)
		}
		s = s[i+n:]
	}

	return string(out), nil
}

// simpleEscapes maps the second character of an escape to the character it stands for.
var simpleEscapes = map[byte]rune{
	'\\': '\\', '\'': '\'', '"': '"', 'a': 7, 'b': 8, 'f': 12, 'n': 10, 'r': 13, 't': 9, 'v': 11,
	'\n': -1, // Python drops a newline after a backslash
}

// decodeEscape returns the length n of the escape at the start of s, and its character r. r is -1 if the
// escape stands for no character. n is 0 if Python has no such escape.
func decodeEscape(s string) (n int, r rune, err error) {
	if r, ok := simpleEscapes[s[1]]; ok {
		return 2, r, nil
	}
	switch c := s[1]; c {
	case 'x', 'u', 'U':
		digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
		if len(s) < 2+digits {
			return 0, 0, errEscape
		}
		v, err := strconv.ParseUint(s[2:2+digits], 16, 32)
		if err != nil || v > utf8.MaxRune {
			return 0, 0, errEscape
		}
		return 2 + digits, rune(v), nil
	case '0', '1', '2', '3', '4', '5', '6', '7':
		n = 1
		for n < 4 && n < len(s) && s[n] >= '0' && s[n] <= '7' {
			r = r<<3 | rune(s[n]-'0')
			n++
		}
		return n, r, nil
	case 'N':
		return 0, 0, errors.New(`\N{…} escapes are not supported in strings`)
	}

	return 0, 0, nil
}
