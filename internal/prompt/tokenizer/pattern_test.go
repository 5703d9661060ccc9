package tokenizer

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stator-project/stator/test/race"
)

// allMatches returns all matches of a pattern in s.
func allMatches(p *pattern, s string) (found []string) {
	var m search
	m.reset(p, s)
	for i := 0; i < len(s); {
		start, end := m.findMatch(i)
		if end > start {
			found = append(found, s[start:end])
		}
		i = end
	}
	return found
}

// TestPatternMatches checks expressions that engines treat differently. The expected matches were observed with
// Oniguruma in Hugging Face tokenizers 0.23.3.
func TestPatternMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          []string
	}{
		{`a|ab`, "ab", []string{"a"}},
		{`\p{N}{1,3}+`, "1234567", []string{"1234567"}}, // repeated, not possessive
		{`a{2}?b`, "aabab", []string{"aab", "b"}},       // optional, not lazy
		{`a{2,3}?`, "aaaaa", []string{"aa", "aa"}},
		{`a{,2}b`, "aaab", []string{"aab"}},
		{`(?i)ab|c`, "ABCab", []string{"AB", "C", "ab"}},
		{`(?i:s)`, "sSſ", []string{"s", "S", "ſ"}},
		{`(?i:k)(?-i:k)`, "\u212ak Kk kK", []string{"\u212ak", "Kk"}},
		{`[a-z&&[^b]]+`, "abcab", []string{"a", "ca"}},
		{`[^(\s|[.,!?])]+`, "ab (c|d) .x", []string{"ab", "c", "d", "x"}},
		{`a++a|b`, "aab", []string{"b"}},
		{`(?>a|ab)c|d`, "abcd", []string{"d"}},
		{`a(?=b)|b(?!b)`, "abbb", []string{"a", "b"}},
		{`\s+$|^x|\bz`, "x zz  \nx ", []string{"x", "z", "  ", "x", " "}},
		{`[\x{4e2d}\u00e9\x41-C]+`, "中éABCD", []string{"中éABC"}},
		{`\p{^L}+|\P{Ll}`, "aB1", []string{"B", "1"}},
		{`\w+`, "a²_\u200d\u0301x", []string{"a²_", "\u0301x"}},
	} {
		p, err := parsePattern(c.pattern)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := allMatches(p, c.text); !slices.Equal(got, c.want) {
			t.Errorf("%s in %q: %q, want %q", c.pattern, c.text, got, c.want)
		}
	}
}

// TestPatternErrors checks that the error for an unsupported expression names the unsupported part.
func TestPatternErrors(t *testing.T) {
	for pattern, message := range map[string]string{
		`a*`: "match the empty string", `(?<=a)b`: "the group", `(a)\1`: `\1`, `(a`: "unmatched (", `a)`: "unmatched )", `[a`: "unmatched [",
		`a{1`: "does not begin a quantifier", `+a`: "without an operand", `(?i:é)`: "beyond ASCII", `(?i:ss)`: "ss, ff", `(?i:\p{L})`: "a class",
		`[[:alpha:]]`: "by name", `\p{Klingon}`: `\p{Klingon}`, `[]a]`: "a ] that begins", `\h`: `\h`, `(?:a?)*b`: "can match the empty string",
		`(?:ab){4000}`: "too long", `[z-a]`: "a range", `[\s-a]`: "a range", `\xff`: "not stand for a character", `(?=a)*b`: "repeated",
		`(?:(?:(?:(?:ab){4000}){4000}){4000}){4000}`: "too long", strings.Repeat("a", 9000): "too long",
		strings.Repeat("(", 200): "too deeply", strings.Repeat("[", 200): "too deeply", `a\`: "not supported",
	} {
		if _, err := parsePattern(pattern); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%.20s: %v, want %q", pattern, err, message)
		}
	}
}

// TestPatternAgreesWithRegexp compares random expressions that package regexp supports with that package.
func TestPatternAgreesWithRegexp(t *testing.T) {
	race.Skip(t)
	r := rand.New(rand.NewPCG(9, 9))
	var random func(depth int) string
	random = func(depth int) string {
		var b strings.Builder
		for alternatives := 1 + r.IntN(3); alternatives > 0; alternatives-- {
			for atoms := 1 + r.IntN(3); atoms > 0; atoms-- {
				switch k := r.IntN(8); {
				case k == 0 && depth < 3:
					b.WriteString("(?:" + random(depth+1) + ")")
				case k < 3:
					b.WriteString([]string{"[a-c]", "[^a]", `\d`, "."}[r.IntN(4)])
				default:
					b.WriteString([]string{"a", "b", "c", "1"}[r.IntN(4)])
				}
				b.WriteString([]string{"", "", "", "?", "*", "+", "+?", "*?", "??", "{2}", "{1,3}", "{2,}"}[r.IntN(12)])
			}
			if alternatives > 1 {
				b.WriteByte('|')
			}
		}
		return b.String()
	}
	compared := 0
	for range 4000 {
		source := random(0)
		p, err := parsePattern(source)
		if err != nil {
			continue
		}
		twin, err := regexp.Compile(source)
		if err != nil {
			continue
		}
		for range 10 {
			text := make([]byte, 1+r.IntN(30))
			for i := range text {
				text[i] = "aaabbc1\n"[r.IntN(8)]
			}
			if got, want := allMatches(p, string(text)), twin.FindAllString(string(text), -1); !slices.Equal(got, want) {
				t.Fatalf("%s in %q: %q, want %q", source, text, got, want)
			}
		}
		compared++
	}
	if compared < 1000 {
		t.Errorf("only %d expressions were compared", compared)
	}
}

// TestHostilePatternsAreLinear checks that searches end within the time of the test, with expressions and texts
// for which plain backtracking needs exponential or quadratic time.
func TestHostilePatternsAreLinear(t *testing.T) {
	race.Skip(t)
	text := strings.Repeat("a", 100_000)
	for _, source := range []string{`(?:a|aa)+b|c`, `(?:a+)+b|c`, `a+b|c`, `(?:a+a+)+b|c`, `a*?b|c`, `(?:a|a|a)+?b|c`, `(?=a+b)a|c`, `(?>a+b)|c`,
		`(?:a{1,3}){2,}b|c`, `[ab]+[ac]+d|c`} {
		p, err := parsePattern(source)
		if err != nil {
			t.Fatal(err)
		}
		if got := allMatches(p, text+"c"); !slices.Equal(got, []string{"c"}) {
			t.Errorf("%s: %d matches", source, len(got))
		}
	}
}

// FuzzPattern checks that parsePattern returns a pattern or an error, and that the matches of a pattern are in
// order and not empty.
func FuzzPattern(f *testing.F) {
	for source := range patterns {
		f.Add(source, "Hello, wörld's 123\n\n  中文 x")
	}
	f.Add(`(?:a+)+b|(?i:s)[^\p{L}&&[a-z]]{2,}?(?!\S)`, "aaaa ab Ss1")
	f.Fuzz(func(t *testing.T, source, text string) {
		p, err := parsePattern(source)
		if (err == nil) != (p != nil) {
			t.Fatalf("%v and error %v", p, err)
		}
		if p == nil || len(text) > 1<<12 {
			return
		}
		if got := strings.Join(allMatches(p, text), ""); len(got) > len(text) {
			t.Errorf("%q in %q finds %q", source, text, got)
		}
	})
}
