package cli

import (
	"strings"
	"testing"
)

// TestTextsOfTerminals makes hostile texts harmless, and clips them by columns.
func TestTextsOfTerminals(t *testing.T) {
	for _, c := range []struct {
		text, shown string
		width       int
	}{
		{"qwen", "qwen", 4},
		{"\x1b[2J\r\n\u202eevil", "·[2J···evil", 11},
		{"模型", "模型", 4},
		{"e\u0301\u200b\ufe0f", "e···", 4},
		{"\u1160\u3164", "··", 2},
		{"\xff\u009b31m", "\ufffd·31m", 5},
		{"🚀", "🚀", 2},
	} {
		if got := OneLine(c.text); got != c.shown || Width(got) != c.width {
			t.Errorf("%q is shown as %q in %d columns, want %q in %d", c.text, got, Width(got), c.shown, c.width)
		}
	}
	for columns, want := range map[int]string{0: "", 1: "…", 2: "…", 3: "模…", 4: "模…", 5: "模型…", 6: "模型ab", 9: "模型ab"} {
		if got := Clip("模型ab", columns); got != want {
			t.Errorf("in %d columns it is %q, want %q", columns, got, want)
		}
	}
	if marks := OneLine(strings.Repeat("\u0300", 1000)); Width(Clip(marks, 10)) != 10 {
		t.Error("a thousand marks take no columns")
	}
}
