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

// indent imitates Jinja's filter indent(width, first, blank). width is a number of spaces or the prefix
// itself.
func indent(r *run, v Value, a *arguments) Value {
	in := a.argument(0, "width", IntValue(4))
	prefix := in.str
	if in.kind != String {
		prefix = strings.Repeat(" ", max(0, min(maxFill, r.intArg(a, 0, "width", 4))))
	}

	first, blank := a.argument(1, "first", falseValue).truth(), a.argument(2, "blank", falseValue).truth()

	// Jinja appends a newline before splitting, so that a final newline yields an empty last line.
	lines := r.splitLines(text(v)+"\n", false).list().Items
	if !r.chargeString((len(prefix) + 1) * len(lines)) {
		return undefined
	}

	var b strings.Builder
	for i, line := range lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == 0 && first || i > 0 && (blank || line.str != "") {
			b.WriteString(prefix)
		}
		b.WriteString(line.str)
	}

	return r.newString(b.String())
}
