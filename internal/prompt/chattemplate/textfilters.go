package chattemplate

import (
	"strings"
	"unicode/utf8"
)

// truncateFilter imitates Jinja's filter truncate(length, killwords, end, leeway). It cuts at a space, unless
// killwords is set. A text that exceeds the length by at most leeway stays as it is.
func truncateFilter(r *run, v Value, a *arguments) Value {
	length, end := r.intArg(a, 0, "length", 255), text(a.argument(2, "end", StringValue("...")))
	leeway := 5
	if a.argument(3, "leeway", none).kind != None {
		leeway = r.intArg(a, 3, "leeway", 5)
	}

	n, ok := r.pyLen(v)
	keep := length - utf8.RuneCountInString(end)
	switch {
	case !ok:
		return undefined
	case keep < 0:
		return r.failf("expected length >= %d, got %d", length-keep, length)
	case leeway < 0:
		return r.failf("expected leeway >= 0, got %d", leeway)
	case n <= length+leeway:
		return v
	case v.kind != String:
		return r.failf("'%s' object cannot be truncated", v.typeName())
	}

	s := v.str[:byteOffset(v.str, keep)]
	if !a.argument(1, "killwords", falseValue).truth() {
		if i := strings.LastIndexByte(s, ' '); i >= 0 {
			s = s[:i]
		}
	}
	return r.newString(s + end)
}

// sliceFilter imitates Jinja's filter slice(slices, fill_with). It distributes a sequence over lists of
// nearly equal length. The first lists get the remaining items.
func sliceFilter(r *run, v Value, a *arguments) Value {
	items, ok := r.iterate(v)
	n := r.intArg(a, 0, "slices", 0)
	if !ok || r.err != nil {
		return undefined
	}
	if n == 0 {
		return r.failf("integer division or modulo by zero")
	}
	if !r.chargeItems(len(items) + 4*max(0, n)) {
		return undefined
	}

	fill := a.argument(1, "fill_with", none)
	var out []Value
	for i := range max(0, n) {
		// items shrinks with each row. A remainder means that this row is one of the longer ones.
		k := len(items) / (n - i)
		longer := len(items)%(n-i) != 0
		if longer {
			k++
		}
		row := append([]Value{}, items[:k]...)
		if !longer && fill.kind != None {
			row = append(row, fill)
		}
		out, items = append(out, ListValue(row)), items[k:]
	}

	return sequenceOf(generatorSeq, out)
}

// urlEncode imitates Jinja's filter urlencode. It escapes a text for a path, and a dict or a list of pairs
// for a query.
func urlEncode(r *run, v Value, _ *arguments) Value {
	var pairs []Value
	switch v.kind {
	case DictKind:
		pairs = v.dict().items()
	case ListKind:
		pairs, _ = r.iterate(v)
	default:
		return r.newString(string(appendPercent(nil, text(v), false)))
	}

	var b []byte
	for i, p := range pairs {
		if p.kind != ListKind || len(p.list().Items) != 2 {
			return r.failf("urlencode needs pairs")
		}
		if i > 0 {
			b = append(b, '&')
		}
		b = appendPercent(b, text(p.list().Items[0]), true)
		b = appendPercent(append(b, '='), text(p.list().Items[1]), true)
	}

	return r.newString(string(b))
}

// appendPercent imitates urllib.parse.quote, and quote_plus if query is set. Only in a query "/" is escaped
// and a space becomes "+".
func appendPercent(b []byte, s string, query bool) []byte {
	const hex = "0123456789ABCDEF"
	for i := range len(s) {
		switch c := s[i]; {
		case c|0x20 >= 'a' && c|0x20 <= 'z', c >= '0' && c <= '9', strings.IndexByte("_.-~", c) >= 0, c == '/' && !query:
			b = append(b, c)
		case c == ' ' && query:
			b = append(b, '+')
		default:
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}

	return b
}

// xmlAttr imitates Jinja's filter xmlattr(autospace). It omits attributes that are none or undefined.
func xmlAttr(r *run, v Value, a *arguments) Value {
	if v.kind != DictKind {
		return r.failf("'%s' object has no attribute 'items'", v.typeName())
	}
	var parts []string
	for _, p := range v.dict().items() {
		key, value := p.list().Items[0], p.list().Items[1]
		if value.kind == None || value.kind == Undefined {
			continue
		}
		if key.kind != String {
			return r.failf("expected string or bytes-like object, got '%s'", key.typeName())
		}
		if strings.ContainsAny(key.str, "/>=") || strings.ContainsFunc(key.str, isSpace) {
			return r.failf("invalid character in attribute name: %q", key.str)
		}
		parts = append(parts, text(escapeFilter(r, key, a))+`="`+text(escapeFilter(r, value, a))+`"`)
	}

	s := strings.Join(parts, " ")
	if s != "" && a.argument(0, "autospace", trueValue).truth() {
		s = " " + s
	}
	return r.newString(s)
}
