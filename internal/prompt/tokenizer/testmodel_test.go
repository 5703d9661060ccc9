package tokenizer

import (
	"encoding/json"
	"io/fs"
	"testing"

	"github.com/stator-project/stator/internal/models"
)

// sim loads the simulator's vocabulary.
func sim(t testing.TB) *Tokenizer {
	t.Helper()
	src, err := fs.ReadFile(models.Sim(), "tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Load(src)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// smallFile returns a tokenizer.json with single bytes and a few merges, after edit has changed it.
func smallFile(t testing.TB, edit func(file map[string]any)) []byte {
	t.Helper()
	vocab := map[string]int{}
	for b := range 256 {
		vocab[string(byteLevel.charOf[b])] = b
	}
	merges := []string{}
	for _, m := range []string{"Ġ h", "Ġh i", "l l", "e ll", "é é"} {
		var l, r string
		for i := range m {
			if m[i] == ' ' {
				l, r = m[:i], m[i+1:]
			}
		}
		if m == "é é" { // the bytes of one é
			l, r = "Ã", "©"
		}
		vocab[l+r] = len(vocab)
		merges = append(merges, l+" "+r)
	}
	file := map[string]any{
		"version": "1.0", "added_tokens": []any{}, "normalizer": nil,
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"decoder":       map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": merges, "fuse_unk": false, "byte_fallback": false},
	}
	if edit != nil {
		edit(file)
	}
	out, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// addedTokenObject returns an added token with id 261+i. Each flag is a field to set to true.
func addedTokenObject(i int, content string, flags ...string) map[string]any {
	a := map[string]any{"id": 261 + i, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
	for _, f := range flags {
		a[f] = true
	}
	return a
}

// addFlaggedTokens adds tokens with each flag, and a normalizer, to a tokenizer.json.
func addFlaggedTokens(file map[string]any) {
	file["normalizer"] = map[string]any{"type": "NFC"}
	file["added_tokens"] = []any{
		addedTokenObject(0, "<a>"), addedTokenObject(1, "<a><b>"), addedTokenObject(2, "word", "single_word"),
		addedTokenObject(3, "<l>", "lstrip"), addedTokenObject(4, "<r>", "rstrip"),
		addedTokenObject(5, "ǿ", "normalized"), addedTokenObject(6, "<lr>", "lstrip", "rstrip"),
		addedTokenObject(7, "e\u0323", "normalized"),
	}
}
