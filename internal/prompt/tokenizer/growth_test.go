package tokenizer

import (
	"fmt"
	"strings"
	"testing"
)

// TestNormalizersMayNotExplode loads a file whose normalizers multiply the length of a text by ten, twelve times.
func TestNormalizersMayNotExplode(t *testing.T) {
	normalizers := func(n int) func(map[string]any) {
		return func(file map[string]any) {
			var list []any
			for i := range n {
				list = append(list, map[string]any{"type": "Replace", "pattern": map[string]any{"String": fmt.Sprint(i)},
					"content": strings.Repeat(fmt.Sprint((i+1)%10), 10)})
			}
			file["normalizer"] = map[string]any{"type": "Sequence", "normalizers": list}
		}
	}

	decoders := func(file map[string]any) {
		normalizers(12)(file)
		list := []any{}
		normalizer, _ := file["normalizer"].(map[string]any)
		if steps, ok := normalizer["normalizers"].([]any); ok {
			list = append(list, steps...)
		}
		file["normalizer"] = nil
		file["pre_tokenizer"] = nil
		file["decoder"] = map[string]any{"type": "Sequence", "decoders": list}
	}

	if _, err := Load(smallFile(t, decoders)); err == nil || !strings.Contains(err.Error(), "times longer") {
		t.Errorf("twelve decoders: %v", err)
	}
	if _, err := Load(smallFile(t, normalizers(2))); err != nil {
		t.Errorf("two replacements: %v", err)
	}
	if _, err := Load(smallFile(t, normalizers(12))); err == nil || !strings.Contains(err.Error(), "times longer") {
		t.Errorf("twelve replacements: %v", err)
	}
	_, err := Load(smallFile(t, func(file map[string]any) {
		file["normalizer"] = map[string]any{"type": "Prepend", "prepend": strings.Repeat("x", 1<<20)}
	}))
	if err == nil || !strings.Contains(err.Error(), "Prepend") {
		t.Errorf("a prefix of a MiB: %v", err)
	}
}

// TestInvalidIDs loads files with ids that are no positive integers.
func TestInvalidIDs(t *testing.T) {
	for _, id := range []string{"-1", "1.5e", `"a"`, "2147483648"} {
		src := `{"model":{"type":"BPE","vocab":{"a":` + id + `},"merges":[]},"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"}}`
		if _, err := Load([]byte(src)); err == nil || id != "1.5e" && !strings.Contains(err.Error(), "is not an integer between") {
			t.Errorf("id %s: %v", id, err)
		}
	}
}
