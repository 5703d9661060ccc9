package chattemplate

import (
	"strings"
	"unicode"
)

// stringMethod is the implementation of a method of str.
type stringMethod func(r *run, s string, args *arguments) Value

// stringMethods holds the methods of Python's str.
var stringMethods map[string]stringMethod

func init() { stringMethods = makeStringMethods() }

// makeStringMethods returns the methods of str. An init function calls it, because the methods reach code
// that reads stringMethods, which a variable initializer may not.
func makeStringMethods() map[string]stringMethod {
	return map[string]stringMethod{
		"strip":  func(r *run, s string, a *arguments) Value { return r.strip(s, a, true, true) },
		"lstrip": func(r *run, s string, a *arguments) Value { return r.strip(s, a, true, false) },
		"rstrip": func(r *run, s string, a *arguments) Value { return r.strip(s, a, false, true) },
		"split":  func(r *run, s string, a *arguments) Value { return r.splitString(s, a, false) },
		"rsplit": func(r *run, s string, a *arguments) Value { return r.splitString(s, a, true) },
		"splitlines": func(r *run, s string, a *arguments) Value {
			return r.splitLines(s, a.argument(0, "keepends", falseValue).truth())
		},
		"startswith": func(r *run, s string, a *arguments) Value { return r.hasAffix(s, a, strings.HasPrefix) },
		"endswith":   func(r *run, s string, a *arguments) Value { return r.hasAffix(s, a, strings.HasSuffix) },
		"replace":    (*run).replaceMethod,
		"join":       func(r *run, s string, a *arguments) Value { return r.joinMethod(s, a) },
		"lower":      func(r *run, s string, _ *arguments) Value { return r.newString(lower(s)) },
		"casefold": func(r *run, s string, _ *arguments) Value {
			return r.newString(lower(strings.ReplaceAll(s, "ß", "ss")))
		},
		"upper":      func(r *run, s string, _ *arguments) Value { return r.newString(upper(s)) },
		"title":      func(r *run, s string, _ *arguments) Value { return r.newString(title(s)) },
		"capitalize": func(r *run, s string, _ *arguments) Value { return r.newString(capitalize(s)) },
		"swapcase":   func(r *run, s string, _ *arguments) Value { return r.newString(swapCase(s)) },
		"find":       func(r *run, s string, a *arguments) Value { return r.findSubstring(s, a, strings.Index, false) },
		"rfind":      func(r *run, s string, a *arguments) Value { return r.findSubstring(s, a, strings.LastIndex, false) },
		"index":      func(r *run, s string, a *arguments) Value { return r.findSubstring(s, a, strings.Index, true) },
		"rindex":     func(r *run, s string, a *arguments) Value { return r.findSubstring(s, a, strings.LastIndex, true) },
		"count":      (*run).countSubstring,
		"isdigit":    allRunes(func(c rune) bool { return unicode.Is(unicode.Nd, c) || c == '²' || c == '³' || c == '¹' }),
		"isdecimal":  allRunes(func(c rune) bool { return unicode.Is(unicode.Nd, c) }),
		"isnumeric":  allRunes(unicode.IsNumber),
		"isalpha":    allRunes(unicode.IsLetter),
		"isalnum":    allRunes(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) }),
		"isspace":    allRunes(isSpace),
		"isascii":    func(_ *run, s string, _ *arguments) Value { return BoolValue(isASCII(s)) },
		"islower":    onlyCase(func(c rune) bool { return unicode.IsUpper(c) || unicode.IsTitle(c) }, unicode.IsLower),
		"isupper":    onlyCase(func(c rune) bool { return unicode.IsLower(c) || unicode.IsTitle(c) }, unicode.IsUpper),
		"zfill":      (*run).zfill,
		"center":     func(r *run, s string, a *arguments) Value { return r.justify(s, a, true, true) },
		"ljust":      func(r *run, s string, a *arguments) Value { return r.justify(s, a, false, true) },
		"rjust":      func(r *run, s string, a *arguments) Value { return r.justify(s, a, true, false) },
		"partition":  func(r *run, s string, a *arguments) Value { return r.partitionString(s, a, false) },
		"rpartition": func(r *run, s string, a *arguments) Value { return r.partitionString(s, a, true) },
		"removeprefix": func(r *run, s string, a *arguments) Value {
			return StringValue(strings.TrimPrefix(s, r.stringArg(a, 0, "prefix")))
		},
		"removesuffix": func(r *run, s string, a *arguments) Value {
			return StringValue(strings.TrimSuffix(s, r.stringArg(a, 0, "suffix")))
		},
		"expandtabs": expandTabsMethod,
		"format":     func(r *run, s string, a *arguments) Value { return r.formatMethod(s, a) },
	}
}

// newString returns s as a value, and charges its steps.
func (r *run) newString(s string) Value {
	r.chargeString(len(s))
	return StringValue(s)
}

// stringArg returns an argument that must be a str. It fails for any other type.
func (r *run) stringArg(a *arguments, i int, name string) string {
	v := a.argument(i, name, undefined)
	if v.kind != String {
		r.failf("%s must be str, not %s", name, v.typeName())
		return ""
	}
	return v.str
}

// intArg returns an argument that must be an int, capped to ±2^31. It fails for any other type.
func (r *run) intArg(a *arguments, i int, name string, absent int) int {
	v := a.argument(i, name, IntValue(absent))
	if !v.isSmallInt() {
		r.failf("'%s' object cannot be interpreted as an integer", v.typeName())
		return absent
	}
	return int(max(-1<<31, min(1<<31, v.int())))
}

// strip imitates str.strip(chars), lstrip for left only, and rstrip for right only.
func (r *run) strip(s string, a *arguments, left, right bool) Value {
	in := isSpace
	if v := a.argument(0, "chars", none); v.kind == String {
		in = func(c rune) bool { return strings.ContainsRune(v.str, c) }
	} else if v.kind != None {
		return r.failf("strip arg must be None or str")
	}

	if left {
		s = strings.TrimLeftFunc(s, in)
	}
	if right {
		s = strings.TrimRightFunc(s, in)
	}
	return StringValue(s)
}

// hasAffix imitates str.startswith and endswith, whose first argument may be a tuple of options. has compares
// with one option.
func (r *run) hasAffix(s string, a *arguments, has func(s, affix string) bool) Value {
	if a.isPassed(1, "start") {
		v := r.slice(StringValue(s), [3]Value{a.argument(1, "start", none), a.argument(2, "end", none), none})
		s = v.str
	}
	want := a.argument(0, "prefix", undefined)
	options := []Value{want}
	if l := want.list(); l != nil && l.seq == tupleSeq {
		options = l.Items
	}

	for _, o := range options {
		if o.kind != String {
			return r.failf("first arg must be str or a tuple of str, not %s", want.typeName())
		}
		if has(s, o.str) {
			return trueValue
		}
	}

	return falseValue
}

// replaceMethod imitates str.replace(old, new, count).
func (r *run) replaceMethod(s string, a *arguments) Value {
	old, with := r.stringArg(a, 0, "old"), r.stringArg(a, 1, "new")
	return r.replaceSubstring(s, old, with, r.intArg(a, 2, "count", -1))
}

// replaceSubstring replaces the first count occurrences of old, or all if count is negative. It checks the
// size of the result before making it.
func (r *run) replaceSubstring(s, old, with string, count int) Value {
	if r.err != nil || !strings.Contains(s, old) {
		return StringValue(s)
	}
	n := strings.Count(s, old)
	if count >= 0 {
		n = min(n, count)
	}
	if size := len(s) + n*(len(with)-len(old)); len(with) > 0 && n > r.lim.Output/len(with) || !r.chargeString(size) {
		return r.failf("template makes a string of more than %d bytes", r.lim.Output)
	}
	return StringValue(strings.Replace(s, old, with, count))
}

// joinMethod imitates str.join(iterable).
func (r *run) joinMethod(s string, a *arguments) Value {
	items, ok := r.iterate(a.argument(0, "iterable", undefined))
	if !ok {
		return undefined
	}

	parts := make([]string, len(items))
	n := 0
	for i, v := range items {
		if v.kind != String {
			return r.failf("sequence item %d: expected str instance, %s found", i, v.typeName())
		}
		parts[i] = v.str
		n += len(v.str) + len(s)
	}

	if !r.chargeString(n) {
		return undefined
	}
	return StringValue(strings.Join(parts, s))
}

// findSubstring imitates str.find(sub, start, end), which counts in code points. With required set it
// imitates str.index, which fails instead of returning -1. search selects the first or the last occurrence.
func (r *run) findSubstring(s string, a *arguments, search func(s, sub string) int, required bool) Value {
	sub := r.stringArg(a, 0, "sub")
	start, stop, _, ok := r.sliceBounds([3]Value{a.argument(1, "start", none), a.argument(2, "end", none), none}, runeCount(s))
	if !ok || start > stop {
		return IntValue(-1)
	}

	from, to := byteOffset(s, start), byteOffset(s, stop)
	if at := search(s[from:to], sub); at >= 0 {
		return IntValue(runeCount(s[:from+at]))
	}
	if required {
		return r.failf("substring not found")
	}
	return IntValue(-1)
}

// countSubstring imitates str.count(sub).
func (r *run) countSubstring(s string, a *arguments) Value {
	sub := r.stringArg(a, 0, "sub")
	if sub == "" {
		return IntValue(runeCount(s) + 1)
	}
	return IntValue(strings.Count(s, sub))
}

// allRunes returns a method such as str.isdigit. It is true if the string is not empty and is holds for each
// code point.
func allRunes(is func(rune) bool) stringMethod {
	return func(_ *run, s string, _ *arguments) Value {
		for _, c := range s {
			if !is(c) {
				return falseValue
			}
		}
		return BoolValue(s != "")
	}
}

// onlyCase returns str.islower or str.isupper. It is true if at least one code point has this case and none
// has the other.
func onlyCase(other, this func(rune) bool) stringMethod {
	return func(_ *run, s string, _ *arguments) Value {
		found := false
		for _, c := range s {
			if other(c) {
				return falseValue
			}
			found = found || this(c)
		}
		return BoolValue(found)
	}
}

// zfill imitates str.zfill(width), which puts the zeros behind a sign.
func (r *run) zfill(s string, a *arguments) Value {
	n := r.intArg(a, 0, "width", 0) - runeCount(s)
	if n <= 0 || !r.chargeString(n+len(s)) {
		return StringValue(s)
	}
	if s != "" && (s[0] == '-' || s[0] == '+') {
		return StringValue(s[:1] + strings.Repeat("0", n) + s[1:])
	}
	return StringValue(strings.Repeat("0", n) + s)
}

// justify imitates str.center(width, fillchar). With only left it pads on the left, as rjust does. With only
// right it pads on the right, as ljust does.
func (r *run) justify(s string, a *arguments, left, right bool) Value {
	fill := a.argument(1, "fillchar", StringValue(" "))
	width := r.intArg(a, 0, "width", 0)
	n := width - runeCount(s)
	if fill.kind != String || runeCount(fill.str) != 1 {
		return r.failf("the fill character must be exactly one character long")
	}
	if n <= 0 || !r.chargeString(n*len(fill.str)+len(s)) {
		return StringValue(s)
	}

	before := 0
	switch {
	case left && right:
		before = n/2 + n&width&1 // CPython's rule for an odd padding
	case left:
		before = n
	}
	return StringValue(strings.Repeat(fill.str, before) + s + strings.Repeat(fill.str, n-before))
}

// maxFill bounds the columns of a tab and the width of an indent. Without it one character could become a
// text of any length.
const maxFill = 1 << 16

// expandTabsMethod imitates str.expandtabs(tabsize).
func expandTabsMethod(r *run, s string, a *arguments) Value {
	size := min(r.intArg(a, 0, "tabsize", 8), maxFill)
	if !r.chargeString(len(s) + strings.Count(s, "\t")*max(0, size)) {
		return undefined
	}
	return r.newString(expandTabs(s, size))
}

// expandTabs replaces each tab by spaces up to the next column that is a multiple of size. Like Python it
// removes tabs if size is not positive.
func expandTabs(s string, size int) string {
	if size <= 0 {
		return strings.ReplaceAll(s, "\t", "")
	}

	var b strings.Builder
	column := 0
	for _, c := range s {
		switch c {
		case '\t':
			for n := size - column%size; n > 0; n-- {
				b.WriteByte(' ')
				column++
			}
			continue
		case '\n', '\r':
			column = -1
		}
		b.WriteRune(c)
		column++
	}

	return b.String()
}
