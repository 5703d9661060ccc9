package chattemplate

import (
	"strings"
	"unicode/utf8"
)

// formatMethod imitates str.format, with fields such as {}, {0}, {name} and {a.b[0]!r:>10}.
func (r *run) formatMethod(s string, a *arguments) Value {
	var b []byte
	var auto fieldNumbering
	for s != "" && r.err == nil {
		i := strings.IndexAny(s, "{}")
		if i < 0 {
			b = append(b, s...)
			break
		}
		b = append(b, s[:i]...)
		if i+1 < len(s) && s[i+1] == s[i] { // a doubled brace stands for one
			b, s = append(b, s[i]), s[i+2:]
			continue
		}
		end := fieldEnd(s[i:])
		if s[i] == '}' || end < 0 {
			return r.failf("single '%c' encountered in format string", s[i])
		}
		field := s[i+1 : i+end]
		s = s[i+end+1:]
		b = r.appendField(b, field, a, &auto, true)
		if !r.chargeString(len(b)) {
			return undefined
		}
	}

	return stringOf(b)
}

// fieldNumbering tracks how the fields of one format string are numbered. Python refuses a string that mixes
// {} and {0}.
type fieldNumbering struct {
	// next is the argument of the next field without a number.
	next int
	// given is set once a field has a number.
	given bool
}

// fieldEnd returns the position of the brace that closes the field at the start of s, or -1.
func fieldEnd(s string) int {
	depth := 0
	for i := 1 + fieldNameLength(s[1:]); i < len(s); i++ {
		switch s[i] {
		case '{':
			depth++
		case '}':
			depth--
			if depth < 0 {
				return i
			}
		}
	}

	return -1
}

// fieldNameLength returns the length of the field name at the start of s. The name ends at the first ":", "!"
// or brace outside square brackets.
func fieldNameLength(s string) int {
	inside := false
	for i := range len(s) {
		switch c := s[i]; {
		case inside:
			inside = c != ']'
		case c == '[':
			inside = true
		case strings.IndexByte(":!{}", c) >= 0:
			return i
		}
	}

	return len(s)
}

// expandSpec replaces the fields inside a format specification, such as {width} in {:{width}}. They cannot
// hold fields themselves.
func (r *run) expandSpec(format string, a *arguments, auto *fieldNumbering) string {
	var b []byte
	for r.err == nil {
		i := strings.IndexByte(format, '{')
		if i < 0 {
			break
		}
		end := fieldEnd(format[i:])
		if end < 0 {
			r.failf("expected '}' before end of string")
			break
		}
		b = r.appendField(append(b, format[:i]...), format[i+1:i+end], a, auto, false)
		format = format[i+end+1:]
	}

	return string(append(b, format...))
}

// appendField appends the value of one field. nestable allows fields in its format specification.
func (r *run) appendField(b []byte, field string, a *arguments, auto *fieldNumbering, nestable bool) []byte {
	name, rest := field[:fieldNameLength(field)], field[fieldNameLength(field):]
	conversion, format, _ := strings.Cut(rest, ":")
	conversion = strings.TrimPrefix(conversion, "!")
	if strings.Contains(conversion, "{") {
		r.failf("unexpected '{' in field name")
		return b
	}

	first := len(name)
	if k := strings.IndexAny(name, ".["); k >= 0 {
		first = k
	}

	// A field without a name gets the next positional argument, as if it had a number.
	v, ok := undefined, false
	if n, isNumber := parseIndex(name[:first]); isNumber || first == 0 {
		if first == 0 {
			n = auto.next
			auto.next++
		}
		auto.given = auto.given || first > 0
		if auto.given && auto.next > 0 {
			r.failf("cannot switch between automatic field numbering and manual field specification")
			return b
		}
		ok = n < len(a.positional)
		if ok {
			v = a.positional[n]
		}
	} else {
		v, ok = a.keyword(name[:first])
	}

	if !ok {
		r.failf("replacement field '%s' has no argument", name)
		return b
	}

	v = r.lookUpField(v, name[first:])
	switch conversion {
	case "r":
		v = StringValue(string(appendRepr(nil, v, 1)))
	case "s":
		v = StringValue(text(v))
	}

	if strings.Contains(format, "{") {
		if !nestable {
			r.failf("Max string recursion exceeded")
			return b
		}
		format = r.expandSpec(format, a, auto)
	}

	if r.err != nil || format == "" {
		return appendStr(b, v)
	}
	return r.formatBySpec(b, v, format)
}

// lookUpField follows the .name and [index] steps of a field name.
func (r *run) lookUpField(v Value, path string) Value {
	for path != "" && r.err == nil {
		if path[0] == '.' {
			end := strings.IndexAny(path[1:], ".[")
			if end < 0 {
				end = len(path) - 1
			}
			v, path = r.attr(v, path[1:1+end]), path[1+end:]
			continue
		}
		end := strings.IndexByte(path, ']')
		if path[0] != '[' || end < 0 {
			return r.failf("expected '}' before end of string")
		}
		index := StringValue(path[1:end])
		if n, ok := parseIndex(index.str); ok {
			index = IntValue(n)
		}
		v, path = r.item(v, index), path[end+1:]
	}
	return v
}

// formatBySpec appends v, formatted by a format specification as Python's format(v, s) does. Its grammar is
// [[fill]align][sign][#][0][width][,][.precision][type].
func (r *run) formatBySpec(b []byte, v Value, s string) []byte {
	f := spec{fill: ' ', precision: -1}
	// A character before an alignment is the fill character, which may itself be an alignment character.
	if c, n := utf8.DecodeRuneInString(s); n < len(s) && strings.IndexByte("<>=^", s[n]) >= 0 {
		f.fill = c
		f.align = s[n]
		s = s[n+1:]
	} else if strings.IndexByte("<>=^", s[0]) >= 0 {
		f.align, s = s[0], s[1:]
	}

	if s != "" && strings.IndexByte("+- ", s[0]) >= 0 {
		f.sign, s = s[0], s[1:]
	}
	if strings.HasPrefix(s, "#") {
		f.alternate, s = true, s[1:]
	}
	if strings.HasPrefix(s, "0") {
		f.zero, s = f.align == 0, s[1:]
	}

	f.width, s = cutNumber(s)
	if s != "" && (s[0] == ',' || s[0] == '_') {
		f.comma = s[0] == ','
		f.grouped = s[0] == '_'
		s = s[1:]
	}

	if strings.HasPrefix(s, ".") {
		f.precision, s = cutNumber(s[1:])
	}
	if len(s) > 1 {
		r.failf("invalid format specifier")
		return b
	}
	if s != "" {
		f.verb = s[0]
	}
	return r.appendBySpec(b, v, f)
}

// appendBySpec appends v, formatted by a parsed specification. It fails if the type of v does not have the
// format type. Strings are aligned to the left by default, and numbers to the right.
func (r *run) appendBySpec(b []byte, v Value, f spec) []byte {
	body := ""
	switch {
	case v.kind == String && (f.verb == 0 || f.verb == 's'):
		body = v.str
		if f.precision >= 0 && f.precision < runeCount(body) {
			body = body[:byteOffset(body, f.precision)]
		}
		if f.align == 0 {
			f.align = '<'
		}
	case v.isNumber() && v.kind != Float && (f.verb == 0 || strings.IndexByte("dxXob", f.verb) >= 0):
		body = formatInt(f, v)
	case v.isNumber() && f.verb != 0 && strings.IndexByte("feEgGF", f.verb) >= 0:
		body = formatFloat(f, v.number())
	case v.isNumber() && f.verb == '%':
		f.verb = 'f'
		body = formatFloat(f, v.number()*100) + "%"
	case v.kind == Float && f.verb == 0 && f.precision < 0:
		body = withSign(f, false, string(appendFloat(nil, v.float())))
	case v.kind == Float && f.verb == 0:
		f.verb = 'g'
		body = formatFloat(f, v.float())
	default:
		r.failf("unsupported format specification for '%s'", v.typeName())
		return b
	}

	if f.align == 0 {
		f.align = '>'
	}
	return r.appendPadded(b, f, body)
}
