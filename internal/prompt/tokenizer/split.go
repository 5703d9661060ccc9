package tokenizer

// A splitter finds the end of the piece that begins at s[i], i < len(s): what a pre-tokenizer's
// regular expression would match there. The expressions below are alternatives tried in
// order, each greedy with backtracking; written by hand they need no backtracking and run
// some fifty times as fast. Every character begins some alternative, so pieces cover the text.
type splitter func(s string, i int) int

// gpt2 is ByteLevel's own expression:
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

// llama3 is the expression of cl100k, Llama 3 and their kin; qwen differs in taking digits
// one at a time, and qwen35 in taking marks for letters too:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func llama3(s string, i int) int { return cl100k(s, i, 3, letter) }

func qwen(s string, i int) int { return cl100k(s, i, 1, letter) }

func qwen35(s string, i int) int { return cl100k(s, i, 1, letter|mark) }

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

// o200k is the expression of GPT-4o and gpt-oss:
//
//	[^\r\n\p{L}\p{N}]?[upper]*[lower]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//	[^\r\n\p{L}\p{N}]?[upper]+[lower]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//	\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// tekken, Mistral's, has no contractions and takes digits one at a time.
func o200k(s string, i int) int {
	c, n := classAt(s, i)
	if end := o200kWord(s, i, c, n); end > 0 {
		return end + contractionAt(s, end)
	}
	return o200kOther(s, i, c, n, 3)
}

func tekken(s string, i int) int {
	c, n := classAt(s, i)
	if end := o200kWord(s, i, c, n); end > 0 {
		return end
	}
	return o200kOther(s, i, c, n, 1)
}

// notWord200k is the rest of the expression, where no word begins.
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

// o200kWord is the end of a match of the first two alternatives at s[i], 0 for none. A mark
// may be the optional first character or part of the word, in that order of preference.
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

// upperLower matches [upper]*[lower]+: the end, or 0. Where no lower follows the run of uppers,
// the run gives back characters until one is both.
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

// upperOnly matches [upper]+[lower]*: the end, or 0.
func upperOnly(s string, i int) int {
	j := skipWhile(s, i, upper)
	if j == i {
		return 0
	}
	return skipWhile(s, j, lower)
}

func contractionAt(s string, i int) int {
	if i < len(s) && s[i] == '\'' {
		return contraction(s[i:], true)
	}
	return 0
}

// contraction is the length of the English contraction that s, which begins with an
// apostrophe, begins with; 0 for none. Where case is folded, 's also matches 'ſ (U+017F).
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

func skipNewlines(s string, i int) int {
	for i < len(s) && (s[i] == '\n' || s[i] == '\r') {
		i++
	}
	return i
}

// spaceRun matches \s+(?!\S)|\s+ at s[i], which is space: a run leaves its last character to
// the word after it, unless it has only one.
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

// newlineRun matches \s*[\r\n]+|\s+(?!\S)|\s+ at s[i], which is space: a run with a newline
// ends after its last newline.
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
