package tokenizer

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stator-project/stator/test/race"
)

// charsModel is the model of a tokenizer.json whose symbols are characters.
type charsModel struct {
	Type         string         `json:"type"`
	Vocab        map[string]int `json:"vocab"`
	Merges       [][2]string    `json:"merges"`
	Unk          *string        `json:"unk_token"`
	Fuse         bool           `json:"fuse_unk"`
	ByteFallback bool           `json:"byte_fallback"`
	IgnoreMerges bool           `json:"ignore_merges"`
}

// randomCharsModel returns a random vocabulary with random merges and settings.
func randomCharsModel(r *rand.Rand) *charsModel {
	m := &charsModel{Type: "BPE", Vocab: map[string]int{}, Merges: [][2]string{}, Fuse: r.IntN(2) == 0, ByteFallback: r.IntN(3) > 0, IgnoreMerges: r.IntN(4) == 0}
	add := func(token string) {
		if _, ok := m.Vocab[token]; !ok {
			m.Vocab[token] = len(m.Vocab)
		}
	}
	if r.IntN(2) == 0 {
		unk := "<unk>"
		m.Unk = &unk
		add(unk)
	}
	missing := r.IntN(3) * 60
	for b := range 256 {
		if m.ByteFallback && b >= missing {
			add(fmt.Sprintf("<0x%02X>", b))
		}
	}
	for _, c := range "abcé▁你<" {
		add(string(c))
	}
	tokens := slices.Sorted(maps.Keys(m.Vocab))
	for range 30 {
		l, pairWith := tokens[r.IntN(len(tokens))], tokens[r.IntN(len(tokens))]
		if r.IntN(20) > 0 && (len(l) > 5 || len(pairWith) > 5) {
			continue // a byte's token joins only now and then
		}
		m.Merges = append(m.Merges, [2]string{l, pairWith})
		add(l + pairWith)
		tokens = append(tokens, l+pairWith)
	}
	return m
}

// encodePlainly encodes a word by the rule of the reference: it joins the pair of the lowest rank in the whole
// word until no pair can be joined. It neither cuts nor caches.
func (m *charsModel) encodePlainly(word string) (ids []int) {
	if id, ok := m.Vocab[word]; ok && m.IgnoreMerges {
		return []int{id}
	}
	name := map[int]string{}
	for token, id := range m.Vocab {
		name[id] = token
	}
	unknown := 0
	flush := func() {
		for ; unknown > 0; unknown-- {
			ids = append(ids, m.Vocab["<unk>"])
		}
	}
	for _, c := range word {
		if id, ok := m.Vocab[string(c)]; ok {
			flush()
			ids = append(ids, id)
			continue
		}
		var spelled []int
		for _, b := range []byte(string(c)) {
			if id, ok := m.Vocab[fmt.Sprintf("<0x%02X>", b)]; ok && m.ByteFallback {
				spelled = append(spelled, id)
			}
		}
		switch {
		case len(spelled) == utf8.RuneLen(c):
			ids = append(ids, spelled...)
		case m.Unk != nil:
			if unknown > 0 && !m.Fuse {
				flush()
			}
			unknown = 1
		}
	}
	flush()
	rank := map[[2]string]int{}
	for i, p := range m.Merges {
		rank[p] = i
	}
	for {
		best, at := len(m.Merges), -1
		for i := 0; i+1 < len(ids); i++ {
			if k, ok := rank[[2]string{name[ids[i]], name[ids[i+1]]}]; ok && k < best {
				best, at = k, i
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, m.Vocab[name[ids[at]]+name[ids[at+1]]])
	}
}

// TestCharsAgreeWithPlainRule checks on random models that cutting, caching and folding do not change ids.
func TestCharsAgreeWithPlainRule(t *testing.T) {
	race.Skip(t)
	r := rand.New(rand.NewPCG(5, 5))
	letters := []rune("abbcé▁ 你<xß\n")
	for range 300 {
		m := randomCharsModel(r)
		file := map[string]any{"model": m, "added_tokens": []any{}, "decoder": nil}
		marks := r.IntN(2) == 0
		if marks {
			file["normalizer"] = map[string]any{"type": "Replace", "pattern": map[string]any{"String": " "}, "content": lowerBlock}
		}
		src, err := json.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		tok, err := Load(src)
		if err != nil {
			t.Fatal(err)
		}
		for range 40 {
			text := make([]rune, 1+r.IntN(60))
			for i := range text {
				text[i] = letters[r.IntN(len(letters))]
			}
			word := string(text)
			if marks {
				word = strings.ReplaceAll(word, " ", lowerBlock)
			}
			var want []uint32
			for _, id := range m.encodePlainly(word) {
				want = append(want, uint32(id))
			}
			if got := tok.Encode(nil, string(text)); !slices.Equal(got, want) {
				t.Fatalf("%s\n%q: %d, want %d", src, string(text), got, want)
			}
		}
	}
}

// TestHostileCharsAreLinear checks that long texts of one character, of joined pairs and of unknown characters
// are encoded within the time of the test.
func TestHostileCharsAreLinear(t *testing.T) {
	race.Skip(t)
	for _, c := range referenceCases(t) {
		tok, err := Load(c.Model)
		if err != nil {
			t.Fatal(err)
		}
		for _, unit := range []string{"a", " ", "▁", "\n", "中", "é", "\x00", "<", "1", "the"} {
			tok.Encode(nil, strings.Repeat(unit, 1<<15/len(unit)))
		}
	}
}
