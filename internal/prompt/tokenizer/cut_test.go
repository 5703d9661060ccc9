package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stator-project/stator/test/race"
)

// TestSegmentsEncodeLikeTheWhole checks that encoding a text by segments gives the ids of the whole text, with
// added tokens that strip white space in all ways. It also checks that a longer text has the same segments,
// except for the last one.
func TestSegmentsEncodeLikeTheWhole(t *testing.T) {
	race.Skip(t)
	v := newSPMVocabulary()
	for _, special := range []string{"<a>", "<a><b>", "a><b><", "<l>", "><"} {
		v.add(special, 0, typeControl)
	}
	for name, src := range map[string][]byte{
		"flags": smallFile(t, addFlaggedTokens),
		// The beginning of a text is treated apart.
		"first": smallFile(t, func(file map[string]any) {
			addFlaggedTokens(file)
			file["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": []any{
				map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true}, file["pre_tokenizer"]}}
		}),
		"gguf": v.ggufBytes(true), // and so is the text after a token; longer tokens come first
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

// testSegments compares segments with whole texts for random texts of words, spaces and added tokens.
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
		text, minBytes := b.String(), r.IntN(8)
		got, ends := encodeSegments(tok, text, minBytes)
		if want := tok.Encode(nil, text); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %q in parts of %d: %d, want %d, cut at %d", seed, text, minBytes, got, want, ends)
		}
		cuts += max(0, len(ends)-1)
		if _, longer := encodeSegments(tok, text+parts[r.IntN(len(parts))], minBytes); len(ends) > 1 && !slices.Equal(longer[:len(ends)-1], ends[:len(ends)-1]) {
			t.Fatalf("seed %d: %q is cut at %d, continued at %d", seed, text, ends, longer)
		}
	}
	if cuts < 1000 {
		t.Errorf("only %d cuts in all texts: the test shows nothing", cuts)
	}
}

// encodeSegments encodes text by segments, and returns the ids and the ends of the segments.
func encodeSegments(tok *Tokenizer, text string, minBytes int) (ids []uint32, ends []int) {
	for done := 0; done < len(text); {
		n := tok.Segment(text[done:], minBytes)
		ids = tok.Encode(ids, text[done:done+n])
		done += n
		ends = append(ends, done)
	}
	return ids, ends
}

// TestSegmentEndsAtTokens checks at which added tokens a text is cut.
func TestSegmentEndsAtTokens(t *testing.T) {
	tok, err := Load(smallFile(t, addFlaggedTokens))
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
		_, ends := encodeSegments(tok, c.text, 1)
		for _, end := range ends {
			parts = append(parts, c.text[last:end])
			last = end
		}
		if got := strings.Join(parts, "|"); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
