package cli

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// OneLine returns a text from elsewhere as one line that a terminal shows and does not obey. Control characters, characters without
// width and marks that are drawn over others become a dot each, so that columns stay aligned.
func OneLine(text string) string {
	return strings.Map(func(r rune) rune {
		// Hangul's fillers and combining vowels are letters that many terminals draw without width.
		isJamo := r >= 0x115F && r <= 0x11FF || r == 0x3164 || r == 0xFFA0
		if !unicode.IsPrint(r) || unicode.In(r, unicode.Mn, unicode.Me) || isJamo {
			return '·'
		}
		return r
	}, text)
}

// Width returns the columns of a terminal that a text of [OneLine] takes.
func Width(text string) (columns int) {
	for _, r := range text {
		columns += runeWidth(r)
	}
	return columns
}

// Clip returns a text of [OneLine] in at most so many columns. An ellipsis replaces the end of a longer one.
func Clip(text string, columns int) string {
	if Width(text) <= columns {
		return text
	}
	used := 0
	for i, r := range text {
		used += runeWidth(r)
		if used > columns-1 {
			return text[:i] + strings.Repeat("…", min(1, max(0, columns)))
		}
	}
	return text
}

func runeWidth(r rune) int {
	if r < utf8.RuneSelf {
		return 1
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}
