package tokenizer

import (
	"slices"
	"testing"
)

// TestSplitBehaviors checks the pieces for each behavior, plain and inverted, against Hugging Face's
// documentation.
func TestSplitBehaviors(t *testing.T) {
	const text = "the-final--countdown-"
	for _, c := range []struct {
		behavior string
		invert   bool
		want     []string
	}{
		{"Removed", false, []string{"the", "final", "countdown"}},
		{"Removed", true, []string{"-", "-", "-", "-"}},
		{"Isolated", false, []string{"the", "-", "final", "-", "-", "countdown", "-"}},
		{"Contiguous", false, []string{"the", "-", "final", "--", "countdown", "-"}},
		{"MergedWithPrevious", false, []string{"the-", "final-", "-", "countdown-"}},
		{"MergedWithPrevious", true, []string{"the", "-final", "-", "-countdown", "-"}},
		{"MergedWithNext", false, []string{"the", "-final", "-", "-countdown", "-"}},
		{"MergedWithNext", true, []string{"the-", "final-", "-", "countdown-"}},
	} {
		tok := &Tokenizer{}
		e := &encoder{t: tok}
		var got []string
		collect := stage{kind: stageSplit, split: func(s string, i int) int {
			got = append(got, s)
			return len(s)
		}}
		// The collected pieces are then encoded by an empty vocabulary.
		tok.vocab = &vocabulary{slots: []slot{{id: none}}}
		e.cache = new([1 << cacheBits]cacheEntry)
		tok.merges, _ = newMerges(0)
		e.runStages(text, []stage{{kind: stageMatch, finder: literal("-"), behavior: behaviors[c.behavior], invert: c.invert}, collect})
		if !slices.Equal(got, c.want) {
			t.Errorf("%s, invert %t: %q, want %q", c.behavior, c.invert, got, c.want)
		}
	}
}
