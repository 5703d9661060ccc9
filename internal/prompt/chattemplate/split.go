package chattemplate

import (
	"strings"
	"unicode/utf8"
)

// splitString imitates str.split(sep, maxsplit), and rsplit if right is set.
func (r *run) splitString(s string, a *arguments, right bool) Value {
	sep, limit := a.argument(0, "sep", none), r.intArg(a, 1, "maxsplit", -1)
	if !r.charge(len(s)/8) || sep.kind != None && sep.kind != String {
		return r.failf("must be str or None, not %s", sep.typeName())
	}
	if sep.kind == String && sep.str == "" {
		return r.failf("empty separator")
	}

	var parts []string
	switch {
	case sep.kind == None && right:
		parts = splitSpaceRight(s, limit)
	case sep.kind == None:
		parts = splitSpace(s, limit)
	case right:
		parts = splitRight(s, sep.str, limit)
	case limit < 0:
		parts = strings.Split(s, sep.str)
	default:
		parts = strings.SplitN(s, sep.str, limit+1)
	}

	items := make([]Value, len(parts))
	for i, p := range parts {
		items[i] = StringValue(p)
	}
	return ListValue(items)
}

// splitSpace splits by runs of white space, as str.split without a separator does. It splits at most limit
// times, or without bound if limit is negative.
func splitSpace(s string, limit int) (parts []string) {
	s = strings.TrimLeftFunc(s, isSpace)
	for s != "" {
		end := strings.IndexFunc(s, isSpace)
		if limit == 0 || end < 0 {
			return append(parts, s) // the last part keeps its trailing white space, as in Python
		}
		parts = append(parts, s[:end])
		s = strings.TrimLeftFunc(s[end:], isSpace)
		limit--
	}

	return parts
}

// splitSpaceRight is splitSpace from the right, as str.rsplit without a separator.
func splitSpaceRight(s string, limit int) (parts []string) {
	s = strings.TrimRightFunc(s, isSpace)
	for s != "" {
		at := strings.LastIndexFunc(s, isSpace)
		if limit == 0 || at < 0 {
			parts = append(parts, s)
			break
		}
		_, n := utf8.DecodeRuneInString(s[at:])
		parts = append(parts, s[at+n:])
		s = strings.TrimRightFunc(s[:at], isSpace)
		limit--
	}

	reverseSlice(parts)
	return parts
}

// splitRight splits by sep from the right, as str.rsplit does.
func splitRight(s, sep string, limit int) (parts []string) {
	for limit != 0 {
		at := strings.LastIndex(s, sep)
		if at < 0 {
			break
		}
		parts = append(parts, s[at+len(sep):])
		s = s[:at]
		limit--
	}

	parts = append(parts, s)
	reverseSlice(parts)
	return parts
}

// reverseSlice reverses s in place.
func reverseSlice[T any](s []T) {
	for i, j := 0, len(s)-1; i < j; i, j = i+1, j-1 {
		s[i], s[j] = s[j], s[i]
	}
}

// splitLines imitates str.splitlines(keepends), which splits at more characters than newlines.
func (r *run) splitLines(s string, keep bool) Value {
	var items []Value
	for s != "" && r.charge(1) {
		end := strings.IndexFunc(s, func(c rune) bool {
			return c >= 10 && c <= 13 || c >= 28 && c <= 30 || c == 0x85 || c == 0x2028 || c == 0x2029
		})
		if end < 0 {
			items = append(items, StringValue(s))
			break
		}
		_, n := utf8.DecodeRuneInString(s[end:])
		if strings.HasPrefix(s[end:], "\r\n") {
			n = 2
		}
		line := s[:end]
		if keep {
			line = s[:end+n]
		}
		items, s = append(items, StringValue(line)), s[end+n:]
	}

	return ListValue(items)
}

// partitionString imitates str.partition(sep), and rpartition if right is set.
func (r *run) partitionString(s string, a *arguments, right bool) Value {
	sep := r.stringArg(a, 0, "sep")
	if sep == "" {
		return r.failf("empty separator")
	}

	at := strings.Index(s, sep)
	if right {
		at = strings.LastIndex(s, sep)
	}

	switch {
	case at >= 0:
		return tuple(StringValue(s[:at]), StringValue(sep), StringValue(s[at+len(sep):]))
	case right:
		return tuple(StringValue(""), StringValue(""), StringValue(s))
	}
	return tuple(StringValue(s), StringValue(""), StringValue(""))
}
