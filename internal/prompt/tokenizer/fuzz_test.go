package tokenizer

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzEncode checks that decoding the ids of a text gives the text, for a byte-level vocabulary. It also checks
// that text beside a special token is encoded independently of it.
func FuzzEncode(f *testing.F) {
	tok := sim(f)
	end, _ := tok.ID("<|im_end|>")
	for _, s := range []string{"", "Hello, world!\n", "a  b\t\r\n c", "<|im_start|>user\nhi<|im_end|>", "<|im_", "e\u0301 한국 😀", "\x00\xff", "don't WE'LL", "1234567"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ids := tok.Encode(nil, s)
		if got := string(tok.AppendDecode(nil, ids...)); got != s {
			t.Errorf("%q is decoded to %q", s, got)
		}
		twice := tok.Encode(nil, s+"<|im_end|>"+s)
		if !utf8.ValidString(s) {
			return // half a token at the end of s may join the one put behind it
		}
		want := append(append(append([]uint32{}, ids...), end), ids...)
		if len(twice) != len(want) {
			t.Fatalf("%q: %d around a special token, want %d", s, twice, want)
		}
		for i := range want {
			if twice[i] != want[i] {
				t.Fatalf("%q: %d around a special token, want %d", s, twice, want)
			}
		}
	})
}

// FuzzLoad checks that Load returns either a usable tokenizer or an error.
func FuzzLoad(f *testing.F) {
	f.Add(smallFile(f, nil))
	f.Add(smallFile(f, addFlaggedTokens))
	for _, c := range referenceCases(f) {
		f.Add([]byte(c.Model))
	}
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"}}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		tok, err := Load(src)
		if (err == nil) != (tok != nil) {
			t.Fatalf("tokenizer %v and error %v", tok, err)
		}
		if tok == nil {
			return
		}
		for _, text := range []string{"Hi there é\n<a> word", "  12 ▁x<unk>\u00e9\x00 中文", "\xff\xe4"} {
			ids := tok.Encode(nil, text)
			if long := strings.Repeat(text, 40); utf8.ValidString(text) && tok.FewestTokens(long) > len(tok.Encode(nil, long)) {
				t.Errorf("%d tokens, and a lower bound of %d", len(tok.Encode(nil, long)), tok.FewestTokens(long))
			}
			for _, id := range ids {
				if int(id) >= tok.VocabSize() {
					t.Errorf("id %d of a vocabulary of %d", id, tok.VocabSize())
				}
			}
			tok.AppendDecode(nil, append(ids, 0, 1, 1<<31)...)
		}
	})
}
