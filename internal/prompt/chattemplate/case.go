package chattemplate

import (
	"strings"
	"unicode"
)

// specialUpper holds the characters whose upper case is several characters. Python's str.upper uses this full
// mapping of Unicode, and Go's unicode.ToUpper covers only single characters.
var specialUpper = map[rune]string{
	'ß': "SS", 'ŉ': "ʼN", 'ǰ': "J̌", 'ΐ': "Ϊ́", 'ΰ': "Ϋ́", 'և': "ԵՒ", 'ẖ': "H̱", 'ẗ': "T̈", 'ẘ': "W̊", 'ẙ': "Y̊", 'ẚ': "Aʾ",
	'ﬀ': "FF", 'ﬁ': "FI", 'ﬂ': "FL", 'ﬃ': "FFI", 'ﬄ': "FFL", 'ﬅ': "ST", 'ﬆ': "ST", 'ﬓ': "ՄՆ", 'ﬔ': "ՄԵ", 'ﬕ': "ՄԻ", 'ﬖ': "ՎՆ", 'ﬗ': "ՄԽ",
}

// upper imitates str.upper.
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

// lower imitates str.lower. It handles the two characters that Go's strings.ToLower maps differently: İ, and
// the Greek sigma at the end of a word.
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

// finalSigma reports whether a sigma between before and after ends a word. This is Unicode's condition
// Final_Sigma. Such a sigma becomes ς in lower case.
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

// isCased reports whether c is a letter in upper, lower or title case.
func isCased(c rune) bool { return unicode.IsUpper(c) || unicode.IsLower(c) || unicode.IsTitle(c) }

// titleRune returns c in title case, which may be several characters.
func titleRune(c rune) string {
	switch s, ok := specialUpper[c]; {
	case ok:
		first := []rune(s)
		return string(first[0]) + strings.ToLower(string(first[1:]))
	}
	return string(unicode.ToTitle(c))
}

// capitalize imitates str.capitalize: the first character in title case and the rest in lower case.
func capitalize(s string) string {
	for i, c := range s {
		if i == 0 {
			rest := s[len(string(c)):]
			return titleRune(c) + lower(rest)
		}
	}
	return s
}

// title imitates str.title: a letter after a character without case becomes a capital, and all others become
// lower case.
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

// swapCase imitates str.swapcase.
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
