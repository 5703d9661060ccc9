package jsonscan

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestTextsAgreeWithEncodingJSON decodes random strings in both ways.
func TestTextsAgreeWithEncodingJSON(t *testing.T) {
	pieces := []string{`\n`, `\"`, `\\`, `\/`, `\b`, `\f`, `\r`, `\t`, `\u0041`, `\u00e9`, `\ud83d`, `\ude00`, `\uFFFF`, `\ud83d\ude00`,
		`\u12`, `\x`, `\u+123`, "é", "😀", "\xff", "\xe4\xb8", "a", " ", "\x7f", "\n", "\x00", "sixteen plain characters", `"`, `\`}
	r := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		var b strings.Builder
		for range r.IntN(7) {
			b.WriteString(pieces[r.IntN(len(pieces))])
		}
		src := b.String() + `"`

		var want string
		wantErr := json.Unmarshal([]byte(`"`+src), &want)
		n, escaped, ok := TextLength([]byte(src))
		got := string(AppendText(nil, []byte(src[:n])))
		switch whole := ok && n == len(src)-1; {
		case whole != (wantErr == nil):
			t.Fatalf("%q: ok %t, length %d, want error %v", src, ok, n, wantErr)
		case whole && (got != want || escaped != strings.Contains(src, `\`)):
			t.Fatalf("%q: %q, escaped %t, want %q", src, got, escaped, want)
		}
	}
}

// TestFaultsHaveAPlace reads strings that are malformed.
func TestFaultsHaveAPlace(t *testing.T) {
	for src, want := range map[string]int{`abc`: 3, `a\`: 1, `a\x"`: 1, `a\u12"`: 1, "ab\ncd\"": 2, ``: 0} {
		if n, _, ok := TextLength([]byte(src)); ok || n != want {
			t.Errorf("%q: ok %t, the fault is at %d, want %d", src, ok, n, want)
		}
	}
}

// TestAppendTextAllocatesNothing decodes a long string.
func TestAppendTextAllocatesNothing(t *testing.T) {
	src := []byte(strings.Repeat(`a\n\u00e9`, 1<<16))
	dst := make([]byte, 0, len(src))
	if n := testing.AllocsPerRun(5, func() { AppendText(dst, src) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
