package tokenizer

import "unicode/utf8"

// DeepSeek chains three splits, each inside the pieces of the one before:
//
//	\p{N}{1,3}
//	[一-龥぀-ゟ゠-ヿ]+
//	[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// A run of characters that no alternative of the third expression matches (control characters, unassigned
// code points) is one piece.

// digits3 is the scanner of the first split, \p{N}{1,3}.
func digits3(s string, i int) int {
	if c, n := classAt(s, i); c&number != 0 {
		return skipAtMost(s, i+n, 2, number)
	}
	return skipUntil(s, i, number)
}

// cjk is the scanner of the second split, which separates Chinese and Japanese from other text.
func cjk(s string, i int) int {
	inside := isCJK(s, i)
	for i < len(s) && isCJK(s, i) == inside {
		if s[i] < utf8.RuneSelf {
			i++
			continue
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		i += n
	}

	return i
}

// isCJK reports whether the character at s[i] is in [一-龥぀-ゟ゠-ヿ]. The test of the first byte avoids
// decoding most other characters.
func isCJK(s string, i int) bool {
	if s[i] < 0xe3 || s[i] > 0xe9 {
		return false
	}
	r, _ := utf8.DecodeRuneInString(s[i:])
	return r >= 0x4e00 && r <= 0x9fa5 || r >= 0x3040 && r <= 0x30ff
}

// deepseek is the scanner of the third split.
func deepseek(s string, i int) int {
	if end := deepseekMatch(s, i); end > 0 {
		return end
	}
	for {
		_, n := classAt(s, i)
		i += n
		if i == len(s) || deepseekMatch(s, i) > 0 {
			return i
		}
	}
}

// deepseekMatch returns the end of the match of the third expression at s[i], or 0 for none.
func deepseekMatch(s string, i int) int {
	c, n := classAt(s, i)
	if s[i] < utf8.RuneSelf && c&symbol != 0 && i+1 < len(s) && isAZ(s[i+1]) {
		for i += 2; i < len(s) && isAZ(s[i]); i++ {
		}
		return i
	}

	if c&letter != 0 {
		return skipWhile(s, i+n, letter|mark)
	}
	if c&(newline|symbol) == 0 && i+n < len(s) {
		if next, size := classAt(s, i+n); next&(letter|mark) != 0 {
			return skipWhile(s, i+n+size, letter|mark)
		}
	}

	if c&mark != 0 {
		return skipWhile(s, i+n, letter|mark)
	}

	start := i
	if s[i] == ' ' {
		start++
	}
	if end := skipWhile(s, start, symbol); end > start {
		return skipNewlines(s, end)
	}
	if c&space != 0 {
		return newlineRun(s, i)
	}
	return 0
}

func isAZ(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
