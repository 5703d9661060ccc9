package tokenizer

import (
	"sort"
	"unicode/utf8"
)

// category is a general category of Unicode. Unassigned code points (Cn) have the value 0.
type category uint8

const (
	catLu category = iota + 1
	catLl
	catLt
	catLm
	catLo
	catMn
	catMc
	catMe
	catNd
	catNl
	catNo
	catPc
	catPd
	catPs
	catPe
	catPi
	catPf
	catPo
	catSm
	catSc
	catSk
	catSo
	catZs
	catZl
	catZp
	catCc
	catCf
	catCo
	catLuLl // a run in which Lu and Ll alternate, beginning with Lu
	catLlLu // a run in which Ll and Lu alternate, beginning with Ll
)

// categoryNames are the two-letter names of the categories, in the order of the constants from catLu on.
const categoryNames = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCo"

func (c category) name() string { return categoryNames[2*c-2 : 2*c] }

// class is the set of character classes to which a code point belongs. All classes that the handwritten
// scanners need fit into a byte, so that one table look-up per character is enough.
type class uint8

const (
	letter  class = 1 << iota // \p{L}
	number                    // \p{N}
	space                     // \s
	newline                   // [\r\n]
	upper                     // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], o200k's "upper" half
	lower                     // [\p{Ll}\p{Lm}\p{Lo}\p{M}], its "lower" half
	symbol                    // [\p{P}\p{S}]
	mark                      // \p{M}
)

// classesOf returns the classes of a category.
func classesOf(c category) class {
	switch c.name()[0] {
	case 'L':
		switch c {
		case catLu, catLt:
			return letter | upper
		case catLl:
			return letter | lower
		}
		return letter | upper | lower
	case 'M':
		return mark | upper | lower
	case 'N':
		return number
	case 'P', 'S':
		return symbol
	}
	return 0
}

// spaces are the characters that \s matches.
var spaces = [...]rune{9, 10, 11, 12, 13, 32, 0x85, 0xa0, 0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005,
	0x2006, 0x2007, 0x2008, 0x2009, 0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000}

var (
	// classTable has the classes of all code points in blocks of 256. All empty blocks are the same one.
	classTable = buildClasses()
	// asciiClasses is a copy of the first block. It saves one load in the loops that most text runs through.
	asciiClasses = [256]class(classTable[0][:])
)

// buildClasses computes classTable from the compact table of categories.
func buildClasses() *[utf8.MaxRune>>8 + 1]*[256]class {
	var table [utf8.MaxRune>>8 + 1]*[256]class
	empty := new([256]class)
	for i := range table {
		table[i] = empty
	}
	set := func(r rune, c class) {
		if table[r>>8] == empty {
			table[r>>8] = new([256]class)
		}
		table[r>>8][r&255] |= c
	}

	for _, run := range categoryRuns {
		for r := run.lo; r <= run.hi; r++ {
			set(r, classesOf(run.categoryAt(r)))
		}
	}

	for _, r := range spaces {
		set(r, space)
	}
	set('\n', newline)
	set('\r', newline)
	return &table
}

// categoryAt returns the category of r, which must lie in the run.
func (run categoryRun) categoryAt(r rune) category {
	even := (r-run.lo)&1 == 0
	switch {
	case run.category == catLuLl && even, run.category == catLlLu && !even:
		return catLu
	case run.category == catLuLl || run.category == catLlLu:
		return catLl
	}
	return run.category
}

// classAt returns the class and the length in bytes of the character at s[i]. A byte that is not valid
// UTF-8 counts as one character with the class of U+FFFD.
func classAt(s string, i int) (class, int) {
	c := s[i]
	if c < utf8.RuneSelf {
		return asciiClasses[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return classTable[r>>8][r&255], n
}

func classOf(r rune) class { return classTable[r>>8][r&255] }

// skipWhile returns the end of the run of characters from s[i] on that are in c.
func skipWhile(s string, i int, c class) int {
	for i < len(s) {
		if b := s[i]; b < utf8.RuneSelf {
			if asciiClasses[b]&c == 0 {
				return i
			}
			i++
			continue
		}
		k, n := classAt(s, i)
		if k&c == 0 {
			return i
		}
		i += n
	}
	return i
}

// skipUntil returns the end of the run of characters from s[i] on that are not in c.
func skipUntil(s string, i int, c class) int {
	for i < len(s) {
		if b := s[i]; b < utf8.RuneSelf {
			if asciiClasses[b]&c != 0 {
				return i
			}
			i++
			continue
		}
		k, n := classAt(s, i)
		if k&c != 0 {
			return i
		}
		i += n
	}
	return i
}

// skipAtMost returns the end of the run of at most n characters from s[i] on that are in c.
func skipAtMost(s string, i, n int, c class) int {
	for ; n > 0 && i < len(s); n-- {
		k, size := classAt(s, i)
		if k&c == 0 {
			break
		}
		i += size
	}
	return i
}

// inRuns reports whether r is in one of the runs, which must be sorted. Each run is its first and last rune.
func inRuns(runs [][2]rune, r rune) bool {
	i := sort.Search(len(runs), func(i int) bool { return runs[i][1] >= r })
	return i < len(runs) && runs[i][0] <= r
}

// categoryOf returns the general category of r, or 0 for none.
func categoryOf(r rune) category {
	i := sort.Search(len(categoryRuns), func(i int) bool { return categoryRuns[i].hi >= r })
	if i < len(categoryRuns) && categoryRuns[i].lo <= r {
		return categoryRuns[i].categoryAt(r)
	}
	return 0
}

// wordChar reports whether \w of Rust's regular expressions matches r. The reference uses them around
// single-word added tokens and in its pre-tokenizer Whitespace. Everywhere else it uses Oniguruma.
func wordChar(r rune) bool {
	in := classOf(r)&(letter|mark) != 0
	if !in {
		c := categoryOf(r)
		in = c == catNd || c == catPc
	}
	return in != inRuns(rustWord[:], r) // rustWord lists the exceptions, where \w differs from the categories
}
