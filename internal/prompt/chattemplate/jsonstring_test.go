package chattemplate

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestUnescapeAgreesWithEncodingJSON decodes random strings in both ways.
func TestUnescapeAgreesWithEncodingJSON(t *testing.T) {
	pieces := []string{`\n`, `\"`, `\\`, `\/`, `\b`, `\f`, `\r`, `\t`, `\u0041`, `\u00e9`, `\ud83d`, `\ude00`, `\uFFFF`, `\ud83d\ude00`,
		`\u12`, `\x`, `\u+123`, "é", "😀", "\xff", "\xe4\xb8", "a", " ", "\x7f"}
	r := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		var b strings.Builder
		b.WriteString(`\n`)
		for range r.IntN(6) {
			b.WriteString(pieces[r.IntN(len(pieces))])
		}
		src := `"` + b.String() + `"`

		var want string
		wantErr := json.Unmarshal([]byte(src), &want)
		v, err := FromJSON([]byte(src))
		if (err == nil) != (wantErr == nil) || err == nil && v.Text() != want {
			t.Fatalf("%s: %q, error %v, want %q, error %v", src, v.Text(), err, want, wantErr)
		}
	}
}
