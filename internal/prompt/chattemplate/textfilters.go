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
