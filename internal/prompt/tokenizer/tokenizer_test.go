package tokenizer

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stator-project/stator/test/race"
)

// TestAddedTokens compares ids with the ids of Hugging Face tokenizers 0.23.3 for the same file.
func TestAddedTokens(t *testing.T) {
	tok, err := Load(smallFile(t, addFlaggedTokens))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		want []uint32
	}{
		{"<a><b>", []uint32{262}},
		{"<a><a><b>x", []uint32{261, 262, 120}},
		{"a word", []uint32{97, 32, 263}},
		{"words word_ word", []uint32{119, 111, 114, 100, 115, 32, 119, 111, 114, 100, 95, 32, 263}},
		{"  <l>  x", []uint32{264, 32, 32, 120}},
		{"  <r> \n x", []uint32{32, 32, 265, 120}},
		{"<r>  <l>", []uint32{265, 264}},
		{"x <lr> \u3000<lr>y", []uint32{120, 267, 267, 121}},
		{"\u01ff", []uint32{266}},
		{"\u00f8\u0301", []uint32{266}},
		{"xe\u0323\u0301", []uint32{120, 268, 204, 129}},
		{"\u1eb9", []uint32{268}},
		{"\u1eb9\u0301", []uint32{268, 204, 129}},
		{"word\u0301 word", []uint32{119, 111, 114, 100, 204, 129, 32, 263}},
		{"<a> word<a>word<l>", []uint32{261, 32, 263, 261, 263, 264}},
		{"\u2167word \u24d0word -word", []uint32{226, 133, 167, 119, 111, 114, 100, 32, 226, 147, 144, 119, 111, 114, 100, 32, 45, 263}},
		{" hi tell", []uint32{257, 32, 116, 259}},
	} {
		if got := tok.Encode(nil, c.text); !slices.Equal(got, c.want) {
			t.Errorf("%q: %d, want %d", c.text, got, c.want)
		}
	}
}

// TestLoadErrors checks that the error for a file with an unsupported part names that part.
func TestLoadErrors(t *testing.T) {
	model := func(key string, value any) func(map[string]any) {
		return func(f map[string]any) { f["model"].(map[string]any)[key] = value }
	}
	top := func(key string, value any) func(map[string]any) {
		return func(f map[string]any) { f[key] = value }
	}
	split := func(pattern map[string]any, behavior string) func(map[string]any) {
		return top("pre_tokenizer", map[string]any{"type": "Sequence", "pretokenizers": []any{
			map[string]any{"type": "Split", "pattern": pattern, "behavior": behavior, "invert": false},
			map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}}})
	}
	for message, edit := range map[string]func(map[string]any){
		`model type "Unigram"`: model("type", "Unigram"),
		"dropout is random":    model("dropout", 0.1),
		"end_of_word_suffix":   model("end_of_word_suffix", "</w>"),
		"but an unk_token or byte_fallback": func(f map[string]any) {
			m := f["model"].(map[string]any)
			m["byte_fallback"] = true
			delete(m["vocab"].(map[string]int), "z")
		},
		"unk_token \"<unk>\" is not in the vocabulary": func(f map[string]any) {
			f["pre_tokenizer"], f["decoder"] = nil, nil
			f["model"].(map[string]any)["unk_token"] = "<unk>"
		},
		`merge 0: the vocabulary lacks "x", "yz"`:           model("merges", []string{"x yz"}),
		`merge 0: "xyz" is not two tokens`:                  model("merges", []string{"xyz"}),
		"has two tokens":                                    model("vocab", map[string]int{"a": 1, "b": 1}),
		`normalizer "NFKC" is not supported`:                top("normalizer", map[string]any{"type": "NFKC"}),
		`pre_tokenizer "BertPreTokenizer" is not supported`: top("pre_tokenizer", map[string]any{"type": "BertPreTokenizer"}),
		"Metaspace is supported only with the":              top("pre_tokenizer", map[string]any{"type": "Metaspace", "replacement": "_"}),
		"one of pre_tokenizer and decoder is ByteLevel":     top("pre_tokenizer", nil),
		"(?<=a)b is not supported: the group":               split(map[string]any{"Regex": "(?<=a)b"}, "Isolated"),
		"neither a Regex nor a String":                      split(map[string]any{}, "Isolated"),
		"Split with behavior Split":                         split(map[string]any{"Regex": gpt2Pattern}, "Split"),
		"Metaspace after ByteLevel": top("pre_tokenizer", map[string]any{"type": "Sequence", "pretokenizers": []any{
			map[string]any{"type": "ByteLevel"}, map[string]any{"type": "Metaspace", "replacement": lowerBlock}}}),
		`decoder "WordPiece" is not supported`:     top("decoder", map[string]any{"type": "WordPiece"}),
		"Strip at the end":                         top("decoder", map[string]any{"type": "Strip", "content": "x", "stop": 1}),
		`post_processor "Bert" is not supported`:   top("post_processor", map[string]any{"type": "Bert"}),
		"has id 300 in the file, but engines give": top("added_tokens", []any{addedTokenObject(39, "<x>")}),
		"have the same text": func(f map[string]any) {
			f["normalizer"] = map[string]any{"type": "NFC"}
			f["added_tokens"] = []any{addedTokenObject(0, "\u01ff", "normalized"), addedTokenObject(1, "\u00f8\u0301", "normalized")}
		},
	} {
		if _, err := Load(smallFile(t, edit)); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%v, want %q", err, message)
		}
	}
	for _, src := range []string{"", "{", "[]", `{"model":{}}`, `{"model":{"type":"BPE","vocab":{},"merges":[]}} x`, "{\"x\":\"\xff\"}"} {
		if _, err := Load([]byte(src)); err == nil {
			t.Errorf("%q was loaded", src)
		}
	}
}

// TestMergesAsPairs checks merges that are written as pairs of strings, and ignore_merges.
func TestMergesAsPairs(t *testing.T) {
	edit := func(f map[string]any) {
		f["model"].(map[string]any)["merges"] = [][]string{{"Ġ", "h"}, {"Ġh", "i"}, {"l", "l"}, {"e", "ll"}, {"Ã", "©"}}
	}
	a, err := Load(smallFile(t, edit))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Load(smallFile(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	const text = " hi, tell éll"
	if x, y := a.Encode(nil, text), b.Encode(nil, text); !slices.Equal(x, y) {
		t.Errorf("%d as pairs, %d as lines", x, y)
	}
}

// regexpSplitter returns a splitter that runs a pre-tokenizer's expression with package regexp. It finds the
// same matches as a backtracking engine. It has no look-ahead, so the splitter matches white space itself.
func regexpSplitter(pattern string) splitter {
	pattern = strings.NewReplacer(`|\s+(?!\S)|\s+`, "", `[^\s\p{L}\p{N}]`, `[^\s\x85\x{a0}\x{2028}\p{Z}\p{L}\p{N}]`,
		`[^\s\p{L}\p{M}\p{N}]`, `[^\s\x85\x{a0}\x{2028}\p{Z}\p{L}\p{M}\p{N}]`, `\s*`, `[\s\x0b\x85\x{a0}\x{2028}\p{Z}]*`).Replace(pattern)
	pattern = strings.ReplaceAll(pattern, `[^\s\x85`, `[^\s\x0b\x85`)
	re := regexp.MustCompile("^(?:" + pattern + ")")
	white := regexp.MustCompile(`^[\s\x0b\x85\x{a0}\x{2028}\p{Z}]+`)
	return func(s string, i int) int {
		if m := re.FindString(s[i:]); m != "" {
			return i + len(m)
		}
		run := white.FindString(s[i:])
		end := i + len(run)
		if _, last := utf8.DecodeLastRuneInString(run); end < len(s) && last < len(run) {
			end -= last
		}
		return end
	}
}

// TestScannersMatchTheirExpressions compares the handwritten scanners with their expressions in package regexp.
func TestScannersMatchTheirExpressions(t *testing.T) {
	race.Skip(t)
	r := rand.New(rand.NewPCG(7, 7))
	alphabet := []rune("aaZzéßДжſǅʰªसि中ー가\u0301\u0323 \u00a0\u3000\u2028\t\n\r\r\v\u0085019٣Ⅷ½'’'sStTmMdDlLvVrReE.,;!?/_-$€😀\u200d\x00\x7f")
	for pattern, split := range patterns {
		if !strings.Contains(pattern, `(?!\S)`) || pattern == deepseekPattern {
			continue
		}
		want := regexpSplitter(pattern)
		for range 8_000 {
			runes := make([]rune, 1+r.IntN(12))
			for i := range runes {
				runes[i] = alphabet[r.IntN(len(alphabet))]
			}
			s := string(runes)
			for i := 0; i < len(s); {
				got, twin := split(s, i), want(s, i)
				if got != twin {
					t.Fatalf("%.40s: %q at %d: piece %q, want %q", pattern, s, i, s[i:got], s[i:twin])
				}
				i = got
			}
		}
	}
}

// TestScannersAgreeWithPatternEngine compares the handwritten scanners with their expressions in type pattern.
func TestScannersAgreeWithPatternEngine(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	alphabet := []rune("aaZzéßДжſǅʰªसि中ー가\u0301\u0323 \u00a0\u3000\u2028\t\n\r\r\v\u0085019٣Ⅷ½'’'sStTmMdDlLvVrReE.,;!?/_-$€😀\u200d\x00\x7f\u0378")
	for source, split := range patterns {
		p, err := parsePattern(source)
		if err != nil {
			t.Fatal(err)
		}
		var m search
		for range 5_000 {
			runes := make([]rune, 1+r.IntN(12))
			for i := range runes {
				runes[i] = alphabet[r.IntN(len(alphabet))]
			}
			s := string(runes)
			for i := 0; i < len(s); {
				want, end := p.findMatch(&m, s, i)
				if want == i {
					want = end
				}
				if got := split(s, i); got != want {
					t.Fatalf("%.40s: %q at %d: piece %q, want %q", source, s, i, s[i:got], s[i:want])
				}
				i = want
			}
		}
	}
}

// TestMergeStrategiesAgree compares merging by rescanning and with the queue with plainMerge, for the
// simulator's vocabulary and for random merges, whose joined symbols may join at once.
func TestMergeStrategiesAgree(t *testing.T) {
	tok := sim(t)
	r := rand.New(rand.NewPCG(1, 1))
	var g merger
	for range 300 {
		symbols := make([]uint32, 1+r.IntN(200))
		for i := range symbols {
			symbols[i] = tok.byteIDs["etaoin shrdlu"[r.IntN(13)]]
		}
		compareMerges(t, &g, tok.merges, symbols)

		random := randomMerges(r)
		for i := range symbols {
			symbols[i] = uint32(r.IntN(20))
		}
		compareMerges(t, &g, random, symbols)
	}
}

// randomMerges returns merges of 30 symbols in random order, half of the time with equal priorities.
func randomMerges(r *rand.Rand) *merges {
	m, _ := newMerges(200)
	for range 1 + r.IntN(200) {
		m.addMerge(uint32(r.IntN(30)), uint32(r.IntN(30)), uint32(r.IntN(30)))
		if r.IntN(2) == 0 {
			m.priorities = append(m.priorities, uint32(len(m.joined)-1))
		} else {
			m.priorities = append(m.priorities, uint32(len(m.joined)-1)/4*4)
		}
	}
	if r.IntN(2) == 0 {
		m.priorities = nil
	}
	return m
}

// compareMerges merges symbols in each way.
func compareMerges(t *testing.T, g *merger, m *merges, symbols []uint32) {
	t.Helper()
	want := plainMerge(m, slices.Clone(symbols))
	if got := g.mergeLong(m, slices.Clone(symbols)); !slices.Equal(got, want) {
		t.Fatalf("queue: %d, want %d", got, want)
	}
	if len(symbols) <= maxRescan {
		if got := g.merge(m, slices.Clone(symbols)); !slices.Equal(got, want) {
			t.Fatalf("rescanning: %d, want %d", got, want)
		}
	}
}

// plainMerge joins the leftmost pair of the lowest rank until no pair can be joined.
func plainMerge(m *merges, s []uint32) []uint32 {
	for {
		best, at := uint32(noRank), -1
		for i := 0; i+1 < len(s); i++ {
			if priority := m.priority(m.rank(s[i], s[i+1])); priority < best {
				best, at = priority, i
			}
		}
		if at < 0 {
			return s
		}
		s = slices.Replace(s, at, at+2, m.joined[m.rank(s[at], s[at+1])])
	}
}

// TestNormalizationNFC checks that composition follows Unicode 9.0.
func TestNormalizationNFC(t *testing.T) {
	var n normalizer
	for in, want := range map[string]string{
		"e\u0301": "é", "a\u0323\u0302": "ậ", "a\u0302\u0323": "ậ", "\u1112\u1161\u11ab": "한", "\ud55c": "한", "\u212b": "Å",
		"\u0344": "\u0308\u0301", "\u0958": "\u0915\u093c", "\U0001d15e": "\U0001d157\U0001d165", "q\u0307\u0323": "q\u0323\u0307",
		"\uac00\u11a7": "\uac00\u11a7", "\uac00\u11a8": "\uac01", "\u0301e": "\u0301e", "a\u034f\u0301": "a\u034f\u0301", "plain": "plain",
	} {
		got := string(n.normalize(in))
		if got != want {
			t.Errorf("%+q: %+q, want %+q", in, got, want)
		}
		if again := string(n.normalize(got)); again != got {
			t.Errorf("%+q is not its own NFC: %+q", got, again)
		}
		if nfc().isNormal(in) && got != in {
			t.Errorf("isNormal reports true for %+q", in)
		}
	}
	// A hundred thousand marks in the wrong order must not cost quadratic time.
	marks := "a" + strings.Repeat("\u0301\u0323", 50_000)
	want := "\u1ea1" + strings.Repeat("\u0323", 49_999) + strings.Repeat("\u0301", 50_000)
	if got := string(n.normalize(marks)); got != want {
		t.Errorf("many marks: %d bytes, want %d", len(got), len(want))
	}
}

func TestEncodeAllocatesNothing(t *testing.T) {
	tok := sim(t)
	text := strings.Repeat("The quick brown fox: func main() {\n\treturn 42\n}\n<|im_end|>", 50) + strings.Repeat("x", 300)
	dst := tok.Encode(nil, text)
	if n := testing.AllocsPerRun(100, func() { dst = tok.Encode(dst[:0], text) }); n != 0 {
		t.Errorf("%v allocations per Encode, want 0", n)
	}
}

// TestHostileTextIsLinear checks that long texts of repeated characters are encoded within the time of the test,
// which quadratic work would exceed.
func TestHostileTextIsLinear(t *testing.T) {
	race.Skip(t)
	tok := sim(t)
	for _, unit := range []string{"a", " ", "\n", "é", "1", "=", "<|", "<|im_", "中", "aB", " \n", "\u0301", "'s", "\x00"} {
		text := strings.Repeat(unit, 1<<18/len(unit))
		if got := string(tok.AppendDecode(nil, tok.Encode(nil, text)...)); got != text {
			t.Errorf("a quarter of a megabyte of %q is not decoded to itself", unit)
		}
	}
}
