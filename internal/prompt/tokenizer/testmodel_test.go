package tokenizer

import (
	"encoding/json"
	"io/fs"
	"testing"

	"github.com/stator-project/stator/internal/models"
)

// sim is the project's own vocabulary.
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

// small is a tokenizer.json of single bytes and a few merges, changed by edit.
func small(t testing.TB, edit func(file map[string]any)) []byte {
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

// token is an added token with the next ids from 261 on.
func token(i int, content string, flags ...string) map[string]any {
	a := map[string]any{"id": 261 + i, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
	for _, f := range flags {
		a[f] = true
	}
	return a
}

func flagged(file map[string]any) {
	file["normalizer"] = map[string]any{"type": "NFC"}
	file["added_tokens"] = []any{
		token(0, "<a>"), token(1, "<a><b>"), token(2, "word", "single_word"), token(3, "<l>", "lstrip"), token(4, "<r>", "rstrip"),
		token(5, "ǿ", "normalized"), token(6, "<lr>", "lstrip", "rstrip"), token(7, "e\u0323", "normalized"),
	}
}
