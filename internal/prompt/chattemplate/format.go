package chattemplate

import (
	"math/big"
	"strconv"
	"strings"
)

// spec is a format specification for one value. Python's % operator and str.format share it.
type spec struct {
	fill                            rune
	align, sign, verb               byte
	alternate, zero, grouped, comma bool
	width, precision                int // in code points; precision is -1 if the specification has none
}

// percent evaluates Python's s % v for a str. A tuple v holds one value for each conversion, and a conversion
// %(key)s reads a mapping v.
func (r *run) percent(s string, v Value) Value {
	args := []Value{v}
	single := true
	if l := v.list(); l != nil && l.seq == tupleSeq {
		args, single = l.Items, false
	}

	used := 0
	var b []byte
	for s != "" && r.err == nil {
		i := strings.IndexByte(s, '%')
		if i < 0 {
			b = append(b, s...)
			break
		}
		b, s = append(b, s[:i]...), s[i+1:]

		// A conversion with a key reads its value from the mapping, in place of the tuple.
		var key string
		if strings.HasPrefix(s, "(") {
			end := strings.IndexByte(s, ')')
			if end < 0 {
				return r.failf("incomplete format key")
			}
			key, s = s[1:end], s[end+1:]
			d := v.dict()
			if d == nil {
				return r.failf("format requires a mapping")
			}
			item, ok := d.Get(key)
			if !ok {
				return r.failf("'%s'", key)
			}
			args = []Value{item}
			used = 0
			single = true
		}

		f, rest := percentSpec(s)
		s = rest
		if f.verb == 0 {
			return r.failf("incomplete format")
		}
		if f.verb == '%' {
			b = append(b, '%')
			continue
		}

		if used >= len(args) {
			return r.failf("not enough arguments for format string")
		}
		b = r.appendPercentValue(b, f, args[used])
		used++
		if !r.chargeString(len(b)) {
			return undefined
		}
	}

	// Python checks that all values of a tuple are used, and ignores a single unused mapping or list.
	if used < len(args) && !(single && (v.kind == DictKind || v.kind == ListKind)) && r.err == nil {
		return r.failf("not all arguments converted during string formatting")
	}
	return stringOf(b)
}

// percentSpec reads a conversion of the % operator after its "%": flags, width, precision and type. It
// returns the text behind it. verb is 0 if the text ends too early.
func percentSpec(s string) (f spec, rest string) {
	f = spec{fill: ' ', align: '>', precision: -1}
	for s != "" && strings.IndexByte("-+ 0#", s[0]) >= 0 {
		switch s[0] {
		case '-':
			f.align = '<'
		case '+', ' ':
			f.sign = s[0]
		case '0':
			f.zero = true
		case '#':
			f.alternate = true
		}
		s = s[1:]
	}

	f.width, s = cutNumber(s)
	if strings.HasPrefix(s, ".") {
		f.precision, s = cutNumber(s[1:])
	}

	s = strings.TrimLeft(s, "hlL") // C's length modifiers, which Python ignores
	if s != "" {
		f.verb, s = s[0], s[1:]
	}
	return f, s
}

// cutNumber reads a decimal number at the start of s. It caps the number, and the limit on strings refuses a
// width of that size.
func cutNumber(s string) (n int, rest string) {
	for s != "" && s[0] >= '0' && s[0] <= '9' {
		n, s = min(n*10+int(s[0]-'0'), 1<<30), s[1:]
	}
	return n, s
}

// appendPercentValue appends v, formatted by one conversion of the % operator.
func (r *run) appendPercentValue(b []byte, f spec, v Value) []byte {
	var body string
	switch f.verb {
	case 's':
		body = text(v)
	case 'r', 'a':
		body = string(appendRepr(nil, v, 1))
	case 'c':
		body = text(v)
		if v.isSmallInt() {
			body = string(rune(v.int()))
		}
	case 'd', 'i', 'u', 'x', 'X', 'o':
		if v.kind == Float && (f.verb == 'd' || f.verb == 'i' || f.verb == 'u') {
			v = truncate(v.float(), IntValue(0))
		}
		if !v.isNumber() || v.kind == Float {
			r.failf("%%%c format: a real number is required, not %s", f.verb, v.typeName())
			return b
		}
		if f.verb == 'i' || f.verb == 'u' {
			f.verb = 'd'
		}
		return r.appendPadded(b, f, formatInt(f, v))
	case 'f', 'F', 'e', 'E', 'g', 'G':
		if !v.isNumber() {
			r.failf("must be real number, not %s", v.typeName())
			return b
		}
		return r.appendPadded(b, f, formatFloat(f, v.number()))
	default:
		r.failf("unsupported format character '%c'", f.verb)
		return b
	}

	// For a text the precision is its largest length, and the flag 0 has no effect.
	if f.precision >= 0 && f.precision < runeCount(body) {
		body = body[:byteOffset(body, f.precision)]
	}

	f.zero = false
	return r.appendPadded(b, f, body)
}

// formatInt returns the integer v with its sign, and with the prefix of its base if the alternate form is
// asked for.
func formatInt(f spec, v Value) string {
	base := map[byte]int{'x': 16, 'X': 16, 'o': 8, 'b': 2}[f.verb]
	if base == 0 {
		base = 10
	}

	i := v.big()
	digits := new(big.Int).Abs(i).Text(base)
	if f.verb == 'X' {
		digits = strings.ToUpper(digits)
	}

	if f.comma {
		digits = groupThousands(digits, ',')
	} else if f.grouped {
		digits = groupThousands(digits, '_')
	}

	if f.alternate && base != 10 {
		digits = "0" + string(f.verb) + digits
	}
	return withSign(f, i.Sign() < 0, digits)
}

// formatFloat returns x with its sign. The default precision is 6, as in Python.
func formatFloat(f spec, x float64) string {
	precision := f.precision
	if precision < 0 {
		precision = 6
	}

	verb := f.verb
	if verb == 'F' {
		verb = 'f'
	}

	digits := strconv.FormatFloat(x, verb, precision, 64)
	if verb == 'g' || verb == 'G' {
		digits = formatGeneral(x, max(1, precision), f.verb)
	}

	negative := strings.HasPrefix(digits, "-")
	digits = strings.TrimPrefix(strings.TrimPrefix(digits, "-"), "+")
	digits = strings.NewReplacer("Inf", "inf", "NaN", "nan").Replace(digits)
	if f.comma {
		whole, rest, _ := strings.Cut(digits, ".")
		digits = groupThousands(whole, ',')
		if rest != "" {
			digits += "." + rest
		}
	}
	return withSign(f, negative, digits)
}

// formatGeneral formats x for the type g or G. It chooses the exponent by C's rule and removes trailing
// zeros, which Go's strconv does differently.
func formatGeneral(x float64, precision int, verb byte) string {
	e := strconv.FormatFloat(x, 'e', precision-1, 64)
	at := strings.IndexByte(e, 'e')
	if at < 0 {
		return e
	}

	exp, _ := strconv.Atoi(e[at+1:])
	trim := func(s string) string {
		if strings.Contains(s, ".") {
			s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
		}
		return s
	}

	// C writes an exponent below -4 and from the precision on.
	out := trim(e[:at]) + e[at:]
	if exp >= -4 && exp < precision {
		out = trim(strconv.FormatFloat(x, 'f', precision-1-exp, 64))
	}
	if verb == 'G' {
		out = strings.ToUpper(out)
	}
	return out
}

// withSign prepends the sign. A number that is not negative gets one only if the specification asks for it.
func withSign(f spec, negative bool, digits string) string {
	switch {
	case negative:
		return "-" + digits
	case f.sign == '+' || f.sign == ' ':
		return string(f.sign) + digits
	}
	return digits
}

// groupThousands puts sep between groups of three digits.
func groupThousands(digits string, sep byte) string {
	var b []byte
	for i := range len(digits) {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b = append(b, sep)
		}
		b = append(b, digits[i])
	}
	return string(b)
}

// appendPadded appends body, padded to the width of the specification. Zeros and the alignment = go between
// the sign and the digits.
func (r *run) appendPadded(b []byte, f spec, body string) []byte {
	n := f.width - runeCount(body)
	if n <= 0 {
		return append(b, body...)
	}
	if !r.chargeString(n * 4) {
		return b
	}

	fill := strings.Repeat(string(f.fill), n)
	switch {
	case f.zero && f.align != '<' || f.align == '=':
		if f.zero {
			fill = strings.Repeat("0", n)
		}
		at := 0
		if body != "" && strings.IndexByte("+- ", body[0]) >= 0 {
			at = 1
		}
		return append(append(append(b, body[:at]...), fill...), body[at:]...)
	case f.align == '<':
		return append(append(b, body...), fill...)
	case f.align == '^':
		half := len(string(f.fill)) * (n / 2)
		return append(append(append(b, fill[:half]...), body...), fill[half:]...)
	}

	return append(append(b, fill...), body...)
}
