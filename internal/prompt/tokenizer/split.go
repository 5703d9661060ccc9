package tokenizer

// A splitter returns the end of the piece that begins at s[i], i < len(s). The piece is the match of a
// pre-tokenizer's regular expression there. The expressions below consist of alternatives that are tried in
// order. The handwritten scanners need no backtracking and are about fifty times as fast as type pattern.
// Every character begins some alternative, so that the pieces cover the text.
type splitter func(s string, i int) int

// gpt2 is the scanner of the expression that ByteLevel has built in:
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func gpt2(s string, i int) int {
	if s[i] == '\'' {
		if n := contraction(s[i:], false); n > 0 {
			return i + n
		}
	}

	j := i
	c, n := classAt(s, i)
	if s[i] == ' ' && i+1 < len(s) {
		if next, size := classAt(s, i+1); next&space == 0 {
			j = i + 1
			c = next
			n = size
		}
	}

	switch {
	case c&letter != 0:
		return skipWhile(s, j+n, letter)
	case c&number != 0:
		return skipWhile(s, j+n, number)
	case c&space != 0:
		return spaceRun(s, i)
	}

	return skipUntil(s, j+n, space|letter|number)
}

// llama3 is the scanner of the expression of cl100k, Llama 3 and similar models:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func llama3(s string, i int) int { return cl100k(s, i, 3, letter) }

// qwen is the scanner of the same expression with \p{N} for \p{N}{1,3}.
func qwen(s string, i int) int { return cl100k(s, i, 1, letter) }

// qwen35 is the scanner of qwen's expression with marks as letters.
func qwen35(s string, i int) int { return cl100k(s, i, 1, letter|mark) }

// cl100k scans for llama3, qwen and qwen35. Digits is the most digits of a piece, and word the characters of
// words.
func cl100k(s string, i, digits int, word class) int {
	c, n := classAt(s, i)
	if c&word != 0 {
		return skipWhile(s, i+n, word)
	}

	if s[i] == '\'' {
		if k := contraction(s[i:], true); k > 0 {
			return i + k
		}
	}

	if c&number != 0 {
		return skipAtMost(s, i+n, digits-1, number)
	}
	if c&newline == 0 && i+n < len(s) {
		next, size := classAt(s, i+n)
		if next&word != 0 {
			return skipWhile(s, i+n+size, word)
		}
		if s[i] == ' ' && next&(space|number) == 0 {
			return skipNewlines(s, skipUntil(s, i+n, space|number|word))
		}
	}

	if c&space != 0 {
		return newlineRun(s, i)
	}
	return skipNewlines(s, skipUntil(s, i+n, space|number|word))
}

// o200k is the scanner of the expression of GPT-4o and gpt-oss:
//
//	[^\r\n\p{L}\p{N}]?[upper]*[lower]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//	[^\r\n\p{L}\p{N}]?[upper]+[lower]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//	\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
func o200k(s string, i int) int {
	c, n := classAt(s, i)
	if end := o200kWord(s, i, c, n); end > 0 {
		return end + contractionAt(s, end)
	}
	return o200kOther(s, i, c, n, 3)
}

// tekken is the scanner of Mistral's expression: o200k's without contractions
// and with \p{N} for \p{N}{1,3}.
func tekken(s string, i int) int {
	c, n := classAt(s, i)
	if end := o200kWord(s, i, c, n); end > 0 {
		return end
	}
	return o200kOther(s, i, c, n, 1)
}

// o200kOther scans for the alternatives of o200k after the first two. C and n are the class and length of the
// character at s[i], and digits is the most digits of a piece.
func o200kOther(s string, i int, c class, n, digits int) int {
	if c&number != 0 {
		return skipAtMost(s, i+n, digits-1, number)
	}
	start := i
	if s[i] == ' ' && i+1 < len(s) {
		if next, _ := classAt(s, i+1); next&(space|letter|number) == 0 {
			start = i + 1
		}
	}

	if start == i && c&space != 0 {
		return newlineRun(s, i)
	}

	end := skipUntil(s, start, space|letter|number)
	for end < len(s) && (s[end] == '\n' || s[end] == '\r' || s[end] == '/') {
		end++
	}
	return end
}

// o200kWord returns the end of a match of the first two alternatives of o200k at s[i], or 0 for none. A mark at
// s[i] is tried first as the optional character before the word and then as a part of the word.
func o200kWord(s string, i int, c class, n int) int {
	if c&letter != 0 {
		if end := upperLower(s, i); end > 0 {
			return end
		}
		return upperOnly(s, i)
	}

	if c&(newline|number) != 0 {
		return 0
	}
	if end := upperLower(s, i+n); end > 0 {
		return end
	}

	if c&mark != 0 {
		if end := upperLower(s, i); end > 0 {
			return end
		}
	}

	if end := upperOnly(s, i+n); end > 0 {
		return end
	}
	if c&mark != 0 {
		return upperOnly(s, i)
	}
	return 0
}

// upperLower returns the end of a match of [upper]*[lower]+ at s[i], or 0. If no lower
// follows the run of uppers, the match ends after the last character of the run that is both,
// as in a backtracking engine.
func upperLower(s string, i int) int {
	j, both := i, 0
	for j < len(s) {
		c, n := classAt(s, j)
		if c&upper == 0 {
			break
		}
		j += n
		if c&lower != 0 {
			both = j
		}
	}

	if end := skipWhile(s, j, lower); end > j {
		return end
	}
	return both
}

// upperOnly returns the end of a match of [upper]+[lower]* at s[i], or 0.
func upperOnly(s string, i int) int {
	j := skipWhile(s, i, upper)
	if j == i {
		return 0
	}
	return skipWhile(s, j, lower)
}

// contractionAt returns the length of a contraction at s[i] in either case, or 0.
func contractionAt(s string, i int) int {
	if i < len(s) && s[i] == '\'' {
		return contraction(s[i:], true)
	}
	return 0
}

// contraction returns the length of the English contraction at the beginning of s, or 0 for none. S must
// begin with an apostrophe. Fold ignores case; 's then also matches 'ſ (U+017F).
func contraction(s string, fold bool) int {
	if len(s) < 2 {
		return 0
	}
	bit := byte(0)
	if fold {
		bit = 0x20
	}

	switch s[1] | bit {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if len(s) > 2 && s[2]|bit == 'e' {
			return 3
		}
	case 'l':
		if len(s) > 2 && s[2]|bit == 'l' {
			return 3
		}
	}

	if fold && len(s) > 2 && s[1:3] == "ſ" {
		return 3
	}
	return 0
}

// skipNewlines returns the end of the run of newlines from s[i] on.
func skipNewlines(s string, i int) int {
	for i < len(s) && (s[i] == '\n' || s[i] == '\r') {
		i++
	}
	return i
}

// spaceRun returns the end of a match of \s+(?!\S)|\s+ at s[i], which must be white space. The match leaves the
// last character of a run to the word after it, unless the run has only one character.
func spaceRun(s string, i int) int {
	j, last := i, i
	for j < len(s) {
		c, n := classAt(s, j)
		if c&space == 0 {
			break
		}
		last = j
		j += n
	}

	if j == len(s) || last == i {
		return j
	}
	return last
}

// newlineRun returns the end of a match of \s*[\r\n]+|\s+(?!\S)|\s+ at s[i], which must be white space. A run
// with a newline ends after its last newline; all others end as in spaceRun.
func newlineRun(s string, i int) int {
	j := i
	last := i
	line := 0
	for j < len(s) {
		c, n := classAt(s, j)
		if c&space == 0 {
			break
		}
		last = j
		j += n
		if c&newline != 0 {
			line = j
		}
	}

	switch {
	case line > 0:
		return line
	case j == len(s) || last == i:
		return j
	}
	return last
}
