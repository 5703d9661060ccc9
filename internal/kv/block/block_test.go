package block

import (
	"errors"
	"math"
	"strings"
	"testing"
)

var llama = Layout{
	Model: "llama", Weights: "sha256 00ff", Layers: 32, PageTokens: 16, Outer: 2, Inner: 1024, DType: "bfloat16", TPSize: 2, TPRank: 1,
	Hashing: "sha256",
}

func TestBytes(t *testing.T) {
	if err := llama.Validate(); err != nil {
		t.Fatal(err)
	}
	if got := llama.Bytes(); got != 2<<20 {
		t.Errorf("%d bytes, want 2 MiB", got)
	}
}

// TestSpaces changes each field of a layout. No two may share keys, and the error of Fits has to name the field.
func TestSpaces(t *testing.T) {
	seen := map[Key]string{llama.Space().Key([]byte("content")): "unchanged"}
	for name, change := range map[string]func(l *Layout){
		"model":      func(l *Layout) { l.Model = "llama2" },
		"weights":    func(l *Layout) { l.Weights = "sha256 11ff" },
		"dtype":      func(l *Layout) { l.DType = "float16" },
		"hashing":    func(l *Layout) { l.Hashing = "sha256_cbor" },
		"layers":     func(l *Layout) { l.Layers = 33 },
		"pageTokens": func(l *Layout) { l.PageTokens = 32 },
		"outer":      func(l *Layout) { l.Outer = 1 },
		"inner":      func(l *Layout) { l.Inner = 512 },
		"tpSize":     func(l *Layout) { l.TPSize = 4 },
		"tpRank":     func(l *Layout) { l.TPRank = 0 },
	} {
		other := llama
		change(&other)
		k := other.Space().Key([]byte("content"))
		if seen[k] != "" {
			t.Errorf("a change of %s has the key of %s", name, seen[k])
		}
		seen[k] = name

		err := llama.Fits(&other)
		if !errors.Is(err, ErrLayout) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := llama.Fits(&llama); err != nil {
		t.Error(err)
	}
}

func TestInvalidLayouts(t *testing.T) {
	for name, change := range map[string]func(l *Layout){
		"model":   func(l *Layout) { l.Model = "" },
		"weights": func(l *Layout) { l.Weights = strings.Repeat("w", maxText+1) },
		"dtype":   func(l *Layout) { l.DType = "float8" },
		"layers":  func(l *Layout) { l.Layers = 0 },
		"tpSize":  func(l *Layout) { l.TPSize = math.MaxInt },
		"tpRank":  func(l *Layout) { l.TPRank = 2 },
		"a block": func(l *Layout) { l.Layers, l.PageTokens, l.Inner = maxCount, maxCount, maxCount },
	} {
		other := llama
		change(&other)
		err := other.Validate()
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeysAsText(t *testing.T) {
	k := llama.Space().Key([]byte("content"))
	got, err := ParseKey(k.String())
	if err != nil || got != k {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "00", strings.Repeat("g", 32), strings.Repeat("0", 34)} {
		if _, err := ParseKey(text); err == nil {
			t.Errorf("%q is read as a key", text)
		}
	}
}
