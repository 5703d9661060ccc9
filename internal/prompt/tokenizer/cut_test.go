package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestSegmentsEncodeLikeTheWhole: a text that is encoded segment by segment has the ids of the whole, whatever spaces the
// added tokens remove. A longer text is cut like its beginning, apart from the last segment.
func TestSegmentsEncodeLikeTheWhole(t *testing.T) {
	v := newSPMVocabulary()
	for _, special := range []string{"<a>", "<a><b>", "a><b><", "<l>", "><"} {
		v.add(special, 0, typeControl)
	}
	for name, src := range map[string][]byte{
		"flags": small(t, flagged),
		// The beginning of a text is treated apart.
		"first": small(t, func(file map[string]any) {
			flagged(file)
			file["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": []any{
				map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true}, file["pre_tokenizer"]}}
		}),
		"gguf": v.file(true), // and so is what follows a token; longer tokens come first
	} {
		t.Run(name, func(t *testing.T) {
			if name == "gguf" {
				testSegments(t, loadGGUF(t, src).Tokenizer)
				return
			}
			tok, err := Load(src)
			if err != nil {
				t.Fatal(err)
			}
			testSegments(t, tok)
		})
	}
}

func testSegments(t *testing.T, tok *Tokenizer) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	parts := strings.Fields("<a> <a><b> word <l> <r> <lr> ǿ e\u0323 <a <b> hi tell _ x é")
	parts = append(parts, " ", "  ", "\n", "\u3000", "o\u0301", "")
	cuts := 0
	for range 20_000 {
		var b strings.Builder
		for range r.IntN(12) {
			b.WriteString(parts[r.IntN(len(parts))])
		}
		text, least := b.String(), r.IntN(8)
		got, ends := segmented(tok, text, least)
		if want := tok.Encode(nil, text); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %q in parts of %d: %d, want %d, cut at %d", seed, text, least, got, want, ends)
		}
		cuts += max(0, len(ends)-1)
		if _, longer := segmented(tok, text+parts[r.IntN(len(parts))], least); len(ends) > 1 && !slices.Equal(longer[:len(ends)-1], ends[:len(ends)-1]) {
			t.Fatalf("seed %d: %q is cut at %d, continued at %d", seed, text, ends, longer)
		}
	}
	if cuts < 1000 {
		t.Errorf("%d cuts in all: the texts show nothing", cuts)
	}
}

func segmented(tok *Tokenizer, text string, least int) (ids []uint32, ends []int) {
	for done := 0; done < len(text); {
		n := tok.Segment(text[done:], least)
		ids = tok.Encode(ids, text[done:done+n])
		done += n
		ends = append(ends, done)
	}
	return ids, ends
}

// TestSegmentEndsAtTokens shows where texts are cut, and where not.
func TestSegmentEndsAtTokens(t *testing.T) {
	tok, err := Load(small(t, flagged))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ text, want string }{
		{"hi<a>hi<a><b>", "hi|<a>hi|<a><b>"},
		{"hi word <l>hi", "hi word <l>hi"}, // they look at the text before them
		{"hi<r> \n<a>", "hi|<r> \n|<a>"},
		{"xe\u0323", "xe\u0323"}, // found in normalized text only
	} {
		var parts []string
		last := 0
		_, ends := segmented(tok, c.text, 1)
		for _, end := range ends {
			parts = append(parts, c.text[last:end])
			last = end
		}
		if got := strings.Join(parts, "|"); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
