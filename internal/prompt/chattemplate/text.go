package chattemplate

import (
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxNesting bounds the depth to which a value is printed. Deeper values are printed as "...".
const maxNesting = 200

// maxPrinted bounds the text of a value in bytes. It is above the limits on output, so that a text that was cut off
// always exceeds them. Lists that share elements may otherwise have a text of any length.
const maxPrinted = 96 << 20

// appendStr appends Python's str(v).
func appendStr(dst []byte, v Value) []byte {
	if v.kind == String {
		return append(dst, v.str...)
	}
	return appendRepr(dst, v, 0)
}

// appendRepr appends Python's repr(v). depth is the number of containers around v. At depth 0 an undefined
// value is empty, as when it is printed.
func appendRepr(dst []byte, v Value, depth int) []byte {
	if depth > maxNesting {
		return append(dst, "..."...)
	}
	switch v.kind {
	case Undefined:
		if depth > 0 {
			return append(dst, "Undefined"...)
		}
		return dst
	case None:
		return append(dst, "None"...)
	case Bool:
		if v.num != 0 {
			return append(dst, "True"...)
		}
		return append(dst, "False"...)
	case Int:
		if v.isBig() {
			return v.big().Append(dst, 10)
		}
		return strconv.AppendInt(dst, v.int(), 10)
	case Float:
		return appendFloat(dst, v.float())
	case String:
		if v.markup {
			dst = append(dst, "Markup("...)
			return append(appendQuoted(dst, v.str), ')')
		}
		return appendQuoted(dst, v.str)
	case ListKind:
		return appendList(dst, v.list(), depth)
	case DictKind:
		return appendDict(dst, v.dict(), depth)
	case Func:
		c, _ := v.ref.(*callable)
		return append(append(append(dst, "<function "...), c.name...), '>')
	}

	if ns, ok := v.ref.(*namespace); ok {
		dst = append(dst, "<Namespace "...)
		return append(appendDict(dst, &ns.attrs, depth+1), '>')
	}
	return append(dst, "<LoopContext>"...)
}

// appendList appends the repr of a list, a tuple or another sequence.
func appendList(dst []byte, l *List, depth int) []byte {
	open, end := "[", "]"
	switch l.seq {
	case listSeq:
	case tupleSeq:
		open, end = "(", ")"
		if len(l.Items) == 1 {
			end = ",)"
		}
	case rangeSeq:
		return append(dst, "range(...)"...)
	case generatorSeq:
		return append(dst, "<generator object>"...)
	default:
		open, end = sequenceNames[l.seq]+"([", "])"
	}

	dst = append(dst, open...)
	for i, item := range l.Items {
		if len(dst) > maxPrinted {
			return dst
		}
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = appendRepr(dst, item, depth+1)
	}
	return append(dst, end...)
}

// appendDict appends the repr of a dict.
func appendDict(dst []byte, d *Dict, depth int) []byte {
	dst = append(dst, '{')
	for i := range d.keys {
		if len(dst) > maxPrinted {
			return dst
		}
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = append(appendRepr(dst, d.keys[i], depth+1), ": "...)
		dst = appendRepr(dst, d.values[i], depth+1)
	}
	return append(dst, '}')
}

// appendFloat appends Python's repr of a float: the shortest digits that read back as f. An exponent is used
// below 1e-4 and from 1e16 on.
func appendFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "nan"...)
	case math.IsInf(f, 1):
		return append(dst, "inf"...)
	case math.IsInf(f, -1):
		return append(dst, "-inf"...)
	}

	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}

	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	if !strings.Contains(string(dst[start:]), ".") {
		dst = append(dst, ".0"...)
	}
	return dst
}

// appendQuoted appends Python's repr of a str. It uses single quotes, unless s contains single quotes and no
// double ones.
func appendQuoted(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}

	dst = append(dst, quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '\r':
			dst = append(dst, `\r`...)
		case r == '\t':
			dst = append(dst, `\t`...)
		case r == ' ' || unicode.IsPrint(r):
			dst = utf8.AppendRune(dst, r)
		case r < 0x100:
			dst = append(dst, '\\', 'x', hex[r>>4], hex[r&15])
		case r < 0x10000:
			dst = append(dst, '\\', 'u', hex[r>>12], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		default:
			dst = append(dst, `\U000`...)
			for shift := 16; shift >= 0; shift -= 4 {
				dst = append(dst, hex[r>>shift&15])
			}
		}
	}

	return append(dst, quote)
}

// text returns Python's str(v). It does not copy a string.
func text(v Value) string {
	if v.kind == String {
		return v.str
	}
	return string(appendStr(nil, v))
}

// isASCII reports whether s is ASCII. Its bytes are then its code points, which makes indexing cheap.
func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// runeCount returns Python's len(s), the number of code points.
func runeCount(s string) int {
	if isASCII(s) {
		return len(s)
	}
	return utf8.RuneCountInString(s)
}

// isSpace imitates str.isspace for one character. Go's unicode.IsSpace lacks the separators 0x1c to 0x1f.
func isSpace(r rune) bool {
	switch {
	case r >= 9 && r <= 13, r >= 28 && r <= 32, r == 0x85, r == 0xa0:
		return true
	case r < 0x1680:
		return false
	}
	return r == 0x1680 || r >= 0x2000 && r <= 0x200a || r == 0x2028 || r == 0x2029 || r == 0x202f || r == 0x205f || r == 0x3000
}
