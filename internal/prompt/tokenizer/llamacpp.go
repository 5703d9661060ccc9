package tokenizer

import "unicode/utf8"

// llamaPreTokenizer is the meaning that llama.cpp gives to a name in tokenizer.ggml.pre.
type llamaPreTokenizer struct {
	stages []stage
	// ignoreMerges makes a piece that equals a token that token, without merging.
	ignoreMerges bool
	// addBOS puts a special token before a text, unless the file sets add_bos_token.
	addBOS bool
	// noBOS is set if the vocabulary has no such special token, unless the file names one.
	noBOS bool
}

// llamaPre maps the names in files to the pre-tokenizers that are supported exactly. llama.cpp has more names.
// They belong to few models, and llama.cpp runs some of their expressions in ways that are unique to it.
var llamaPre = map[string]llamaPreTokenizer{}

func init() {
	split := func(scanners ...splitter) (stages []stage) {
		for _, s := range scanners {
			stages = append(stages, stage{kind: stageSplit, split: s, asLlama: true})
		}
		return stages
	}
	for _, group := range []struct {
		pre   llamaPreTokenizer
		names []string
	}{
		{llamaPreTokenizer{stages: split(llama3), ignoreMerges: true, addBOS: true},
			[]string{"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}},
		{llamaPreTokenizer{stages: split(llama3)}, []string{"dbrx", "smaug-bpe"}},
		{llamaPreTokenizer{stages: split(llama3), noBOS: true}, []string{"chatglm-bpe"}},
		{llamaPreTokenizer{stages: split(llama3), noBOS: true, ignoreMerges: true}, []string{"glm4"}},
		{llamaPreTokenizer{stages: split(qwen)}, []string{"qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "solar-open", "megrez",
			"grok-2"}},
		{llamaPreTokenizer{stages: split(qwen35)}, []string{"qwen35"}},
		{llamaPreTokenizer{stages: split(llamaO200k)}, []string{"gpt-4o", "llama4", "kanana2", "minimax-m2"}},
		{llamaPreTokenizer{stages: split(llamaTekken), ignoreMerges: true, addBOS: true}, []string{"tekken"}},
		{llamaPreTokenizer{stages: split(digits3, cjk, deepseek)}, []string{"deepseek-v3", "hunyuan-dense"}},
		{llamaPreTokenizer{stages: split(gpt2)}, []string{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling",
			"gigachat", "a.x-4.0", "mellum"}},
		{llamaPreTokenizer{stages: split(digits1, gpt2)},
			[]string{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"}},
	} {
		for _, name := range group.names {
			llamaPre[name] = group.pre
		}
	}
}

// digits1 is the scanner of \p{N}: each digit is one piece.
func digits1(s string, i int) int {
	if c, n := classAt(s, i); c&number != 0 {
		return i + n
	}
	return skipUntil(s, i, number)
}

// llamaO200k is the scanner of the expression that llama.cpp uses in place of [o200k]'s expression.
// In it marks are not letters, and only a to z and A to Z have a case, because llama.cpp reduces
// all other letters to one class.
//
//	[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//	[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//	\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
func llamaO200k(s string, i int) int {
	c, n := classAt(s, i)
	if end := llamaWord(s, i, c, n); end > 0 {
		return end + contractionAt(s, end)
	}
	return o200kOther(s, i, c, n, 3)
}

// llamaTekken is the scanner of the expression that llama.cpp uses in place of [tekken]'s expression.
func llamaTekken(s string, i int) int {
	c, n := classAt(s, i)
	if end := llamaWord(s, i, c, n); end > 0 {
		return end
	}
	return o200kOther(s, i, c, n, 1)
}

// llamaWord returns the end of a match of the first two alternatives of [llamaO200k] at s[i], or 0 for none. C
// and n are the class and length of the character at s[i].
func llamaWord(s string, i int, c class, n int) int {
	if c&letter == 0 {
		if c&(newline|number) != 0 {
			return 0
		}
		i += n
	}

	// J becomes the end of the run of letters that are not a to z. Both becomes the end of the last letter in
	// that run that is not A to Z either, so that it may count as upper or lower case.
	j, both := i, 0
	for j < len(s) && (s[j] < 'a' || s[j] > 'z') {
		c, n := classAt(s, j)
		if c&letter == 0 {
			break
		}
		j += n
		if n > 1 {
			both = j
		}
	}

	end := j
	for end < len(s) && (s[end] < 'A' || s[end] > 'Z') {
		c, n := classAt(s, end)
		if c&letter == 0 {
			break
		}
		end += n
	}

	switch {
	case end > j:
		return end
	case both > 0:
		return both
	case j > i:
		return j
	}

	return 0
}

// replaceForLlama returns a text that the scanners of this package cut as llama.cpp cuts s. There are two
// differences: llama.cpp uses Unicode 15.1 instead of 16.0, and it does not accept ſ for the s of a
// contraction. The characters concerned are replaced by others of the same length, so that pieces end at
// the same places in both texts. StagesLeft selects the buffer, as in writeStage.
func (e *encoder) replaceForLlama(s string, stagesLeft int) string {
	for i := range len(s) {
		if s[i] < 0xc5 {
			continue
		}
		if r, _ := utf8.DecodeRuneInString(s[i:]); replacement(r) != r {
			return e.writeStage(stagesLeft, func(dst []byte) []byte {
				for i, r := range s {
					if other := replacement(r); other != r {
						dst = utf8.AppendRune(dst, other)
					} else {
						_, n := utf8.DecodeRuneInString(s[i:])
						dst = append(dst, s[i:i+n]...)
					}
				}
				return dst
			})
		}
	}
	return s
}

// replacement returns r, or a character of the same length that has the class which r has in llama.cpp. The
// characters U+FFFF and U+1FFFF are unassigned in all versions of Unicode.
func replacement(r rune) rune {
	switch {
	case r == 'ſ':
		return 'ß'
	case r < 0x800 || !addedIn16Blocks[r>>8] || !inRuns(addedIn16[:], r):
		return r
	case r < 0x10000:
		return 0xffff
	}
	return 0x1ffff
}

// addedIn16 are the characters that Unicode 16.0 added to 15.1.
var addedIn16 = [...][2]rune{
	{0x897, 0x897}, {0x1b4e, 0x1b4f}, {0x1b7f, 0x1b7f}, {0x1c89, 0x1c8a}, {0x2427, 0x2429}, {0x31e4, 0x31e5}, {0xa7cb, 0xa7cd},
	{0xa7da, 0xa7dc}, {0x105c0, 0x105f3}, {0x10d40, 0x10d65}, {0x10d69, 0x10d85}, {0x10d8e, 0x10d8f}, {0x10ec2, 0x10ec4},
	{0x10efc, 0x10efc}, {0x11380, 0x11389}, {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x113b5}, {0x113b7, 0x113c0},
	{0x113c2, 0x113c2}, {0x113c5, 0x113c5}, {0x113c7, 0x113ca}, {0x113cc, 0x113d5}, {0x113d7, 0x113d8}, {0x113e1, 0x113e2},
	{0x116d0, 0x116e3}, {0x11bc0, 0x11be1}, {0x11bf0, 0x11bf9}, {0x11f5a, 0x11f5a}, {0x13460, 0x143fa}, {0x16100, 0x16139},
	{0x16d40, 0x16d79}, {0x18cff, 0x18cff}, {0x1cc00, 0x1ccf9}, {0x1cd00, 0x1ceb3}, {0x1e5d0, 0x1e5fa}, {0x1e5ff, 0x1e5ff},
	{0x1f8b2, 0x1f8bb}, {0x1f8c0, 0x1f8c1}, {0x1fa89, 0x1fa89}, {0x1fa8f, 0x1fa8f}, {0x1fabe, 0x1fabe}, {0x1fac6, 0x1fac6},
	{0x1fadc, 0x1fadc}, {0x1fadf, 0x1fadf}, {0x1fae9, 0x1fae9}, {0x1fbcb, 0x1fbef},
}

// addedIn16Blocks has true for each block of 256 characters with one of addedIn16. It avoids the search for
// most text.
var addedIn16Blocks = func() (blocks [utf8.MaxRune>>8 + 1]bool) {
	for _, run := range addedIn16 {
		for b := run[0] >> 8; b <= run[1]>>8; b++ {
			blocks[b] = true
		}
	}
	return blocks
}()
