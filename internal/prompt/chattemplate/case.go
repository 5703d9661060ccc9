package chattemplate

import (
	"strings"
	"unicode"
)

// Python maps case by the full mappings of Unicode, in which one character may become
// several. specialUpper are those that do; the rest is Go's simple mapping.
var specialUpper = map[rune]string{
	'ß': "SS", 'ŉ': "ʼN", 'ǰ': "J̌", 'ΐ': "Ϊ́", 'ΰ': "Ϋ́", 'և': "ԵՒ", 'ẖ': "H̱", 'ẗ': "T̈", 'ẘ': "W̊", 'ẙ': "Y̊", 'ẚ': "Aʾ",
	'ﬀ': "FF", 'ﬁ': "FI", 'ﬂ': "FL", 'ﬃ': "FFI", 'ﬄ': "FFL", 'ﬅ': "ST", 'ﬆ': "ST", 'ﬓ': "ՄՆ", 'ﬔ': "ՄԵ", 'ﬕ': "ՄԻ", 'ﬖ': "ՎՆ", 'ﬗ': "ՄԽ",
}

func upper(s string) string {
	if !strings.ContainsFunc(s, func(c rune) bool { return specialUpper[c] != "" }) {
		return strings.ToUpper(s)
	}
	var b strings.Builder
	for _, c := range s {
		if special, ok := specialUpper[c]; ok {
			b.WriteString(special)
			continue
		}
		b.WriteRune(unicode.ToUpper(c))
	}
	return b.String()
}

// lower is str.lower, with İ and the final sigma as Python has them.
func lower(s string) string {
	if !strings.ContainsAny(s, "Σİ") {
		return strings.ToLower(s)
	}
	var b strings.Builder
	for i, c := range s {
		switch {
		case c == 'İ':
			b.WriteString("i̇")
		case c == 'Σ' && finalSigma(s[:i], s[i+len("Σ"):]):
			b.WriteRune('ς')
		default:
			b.WriteRune(unicode.ToLower(c))
		}
	}

	return b.String()
}

// finalSigma says whether a sigma between before and after ends a word.
func finalSigma(before, after string) bool {
	ignorable := func(c rune) bool {
		return unicode.In(c, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk) || c == '\'' || c == '.'
	}
	before = strings.TrimRightFunc(before, ignorable)
	after = strings.TrimLeftFunc(after, ignorable)
	last := []rune(before)
	if len(last) == 0 || !isCased(last[len(last)-1]) {
		return false
	}

	for _, c := range after {
		return !isCased(c)
	}
	return true
}

func isCased(c rune) bool { return unicode.IsUpper(c) || unicode.IsLower(c) || unicode.IsTitle(c) }

func titleRune(c rune) string {
	switch s, ok := specialUpper[c]; {
	case ok:
		first := []rune(s)
		return string(first[0]) + strings.ToLower(string(first[1:]))
	}
	return string(unicode.ToTitle(c))
}

func capitalize(s string) string {
	for i, c := range s {
		if i == 0 {
			rest := s[len(string(c)):]
			return titleRune(c) + lower(rest)
		}
	}
	return s
}

// title is str.title: each letter after a character without case is a capital.
func title(s string) string {
	var b strings.Builder
	after := false
	for _, c := range s {
		switch {
		case !isCased(c):
			b.WriteRune(c)
		case after:
			b.WriteString(lower(string(c)))
		default:
			b.WriteString(titleRune(c))
		}
		after = isCased(c)
	}

	return b.String()
}

func swapCase(s string) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case unicode.IsUpper(c):
			b.WriteString(lower(string(c)))
		case unicode.IsLower(c):
			b.WriteString(upper(string(c)))
		default:
			b.WriteRune(c)
		}
	}

	return b.String()
}
