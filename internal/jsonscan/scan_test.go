package jsonscan

import (
	"encoding/json"
	"testing"
)

// FuzzScanner checks that the scanner accepts exactly the values that are valid for encoding/json.
func FuzzScanner(f *testing.F) {
	for _, s := range []string{`"\u12"`, `"a\`, `1.`, `-`, `1e5`, `.5`, `tru`, `nullx`, ` [1 , 2 ] `, `{"a" 1}`, "\"\x01\"", `""`, `{"":{}}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"é\ud83d\ude00"}]}],"n":-1.5e+3,"x":null}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		s := Scanner{Src: src, Depth: 10_000}
		s.Skip()
		s.SkipSpace()
		if ours, theirs := s.Err == nil && s.At == len(src), json.Valid(src); ours != theirs {
			t.Errorf("%q: valid %t, want %t (%v)", src, ours, theirs, s.Err)
		}
	})
}
