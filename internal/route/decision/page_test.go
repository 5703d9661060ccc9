package decision

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/cost"
)

// TestPagesFitTerminals: with figures in all columns the table becomes two, and sentences are broken between words. Nothing is lost.
func TestPagesFitTerminals(t *testing.T) {
	d := &Decision{
		ID: "k7q2mx4vn9ta-2542b7e0036423f2", Model: "a-model-with-a-name", Policy: "kv", Role: fleet.Decode, PromptUse: PromptUse{
			PromptTokens: 16009, Blocks: 1000, BlockSize: 16, First: 1 << 63, Last: 1<<64 - 1, Overlap: 999,
		}, Legs: Legs{Local: 1234.5, Prefill: 1000, Decode: 234.5, Why: LegsByCost},
	}
	all := cost.Score{
		Total: 1234.5, Wait: 100, Prefill: 1000, Others: 20, Evict: 10, Decode: 4.5, Slot: 50, Transfer: 50, Uncached: 16009, Preference: 1,
	}
	for _, name := range []string{"sim-0", "sim-1"} {
		c := Candidate{Worker: name, Load: fleet.Amount{Requests: 12, PrefillTokens: 123456, DecodeBlocks: 12345}, OnNode: 10, OnPeers: 10, Score: all}
		for tier := range c.Overlap {
			c.Overlap[tier] = 1000
		}
		d.Candidates = append(d.Candidates, c)
		all.Total *= 2
	}
	d.Candidates[0].Picked = true

	text := d.String()
	for line := range strings.SplitSeq(text, "\n") {
		if n := utf8.RuneCountInString(line); n > pageWidth {
			t.Errorf("%d characters: %s", n, line)
		}
	}
	for _, want := range []string{"  cost ms  = wait  + prefill  + others  + evict  + decode  + slot  + transfer  × taints\n", "uncached\n→  sim-0  ",
		"16009 tokens", "decode worker 234.5"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not there:\n%s", want, text)
		}
	}
}

// TestPageKeepsLongWords: a word that is longer than a line stays whole.
func TestPageKeepsLongWords(t *testing.T) {
	word := strings.Repeat("ö", 3*pageWidth)
	for in, want := range map[string]string{
		word + "\n":               word + "\n",
		"a " + word + " b c\n":    "a\n  " + word + " b c\n",
		"two\nlines\n":            "two\nlines\n",
		strings.Repeat("x ", 60):  strings.TrimSpace(strings.Repeat("x ", 50)) + "\n  " + strings.Repeat("x ", 10),
		"\n" + "ends without one": "\n" + "ends without one",
	} {
		var p page
		if n, err := p.Write([]byte(in)); n != len(in) || err != nil || p.String() != want {
			t.Errorf("%q, want %q: %d, %v", p.String(), want, n, err)
		}
	}
}
