package tokenizer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestLlamaSplitters compares the scanners that only GGUF files have with the expressions that
// llama.cpp runs.
func TestLlamaSplitters(t *testing.T) {
	const word = `[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+%[1]s|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*%[1]s|`
	const rest = `| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	r := rand.New(rand.NewPCG(9, 9))
	alphabet := []rune("aaZzéßДжǅʰªसि中ー가\u0301\u0323 \u00a0\u3000\u2028\t\n\r\r\v\u0085019٣Ⅷ½'’'sStTmMdDlLvVrReE.,;!?/_-$€😀\u200d\x00\x7f\u0378")
	for source, split := range map[string]splitter{
		fmt.Sprintf(word, `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?`) + `\p{N}{1,3}` + rest: llamaO200k,
		fmt.Sprintf(word, "") + `\p{N}` + rest: llamaTekken,
		`\p{N}|[^\p{N}]+`:                      digits1,
	} {
		p, err := parsePattern(source)
		if err != nil {
			t.Fatal(err)
		}
		for range 20_000 {
			s := ""
			for range 1 + r.IntN(12) {
				s += string(alphabet[r.IntN(len(alphabet))])
			}
			for i := 0; i < len(s); {
				_, want := p.findMatch(&search{}, s[i:], 0)
				got := split(s, i)
				if got != i+want {
					t.Fatalf("%.40s: %q at %d: piece %q, want %q", source, s, i, s[i:got], s[i:i+want])
				}
				i = got
			}
		}
	}
}

// TestLlamaCharacterReplacement: a text is replaced character by character, by characters of the same length, and only where
// llama.cpp does it.
func TestLlamaCharacterReplacement(t *testing.T) {
	e := newEncoder(sim(t))
	for s, want := range map[string]string{
		"don't ſ\xff\xc5": "don't ß\xff\xc5", "\u1c89\u0301\U000105c0x": "\uffff\u0301\U0001ffffx", "中文 \u0377 é": "中文 \u0377 é", "": "",
	} {
		if got := e.replaceForLlama(s, 0); got != want {
			t.Errorf("%q is seen as %q, want %q", s, got, want)
		}
	}
	for _, run := range addedIn16 {
		for _, r := range run {
			if c := classOf(replacement(r)); c != 0 || len(string(replacement(r))) != len(string(r)) {
				t.Errorf("%U is seen as %U", r, replacement(r))
			}
		}
	}
}

// bpeFile is a GGUF file of the bytes, the two special tokens and what merges make of them.
func bpeFile(pre string, merges ...string) *ggufFile {
	tokens := []string{"<|im_end|>", "<user>"}
	types := []int32{typeControl, typeUser}
	for b := range 256 {
		tokens = append(tokens, string(byteLevel.charOf[b]))
	}
	for _, m := range merges {
		tokens = append(tokens, strings.ReplaceAll(m, " ", ""))
	}
	f := &ggufFile{}
	f.pair("tokenizer.ggml.model", "gpt2")
	if pre != "" {
		f.pair("tokenizer.ggml.pre", pre)
	}
	f.pair("tokenizer.ggml.tokens", tokens)
	f.pair("tokenizer.ggml.merges", merges)
	for len(types) < len(tokens) {
		types = append(types, typeNormal)
	}
	f.pair("tokenizer.ggml.token_type", types)
	return f
}

// TestGGUFByteTokens: the tokens of single bytes are found by their names.
func TestGGUFByteTokens(t *testing.T) {
	merges := []string{"h e", "Ġ he", "l l", "he l", "1 2", "12 3"}
	g := loadGGUF(t, bpeFile("llama-bpe", merges...).file())
	tok := g.Tokenizer
	for text, want := range map[string][]string{
		" hello": {" he", "ll", "o"}, "<user>hel<|im_end|>": {"<user>", "hel", "<|im_end|>"}, "12312": {"123", "12"}, "é": {"\xc3", "\xa9"},
	} {
		var got []string
		ids := tok.Encode(nil, text)
		for _, id := range ids {
			got = append(got, string(tok.AppendDecode(nil, id)))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	// llama.cpp begins a text with token 11 where a file of this kind names none.
	if !slices.Equal(tok.Before(), []uint32{11}) || !tok.Special(0) || tok.Special(1) {
		t.Errorf("before %d", tok.Before())
	}
	if one := loadGGUF(t, bpeFile("qwen2", merges...).file()).Tokenizer; len(one.Before()) != 0 || len(one.Encode(nil, "123")) != 3 {
		t.Errorf("qwen2: before %d, 123 is %d", one.Before(), one.Encode(nil, "123"))
	}
}

// TestGGUFByteTokensMissing: a vocabulary without a token for each byte is refused.
func TestGGUFByteTokensMissing(t *testing.T) {
	bad := bpeFile("qwen2", "h e")
	bad.pair("tokenizer.ggml.merges", []string{"h i"})
	unmerged := bpeFile("qwen2")
	unmerged.pair("tokenizer.ggml.merges", []string{"h"})
	for says, f := range map[string]*ggufFile{
		"convert the model again":                          bpeFile("", "h e"),
		`pre-tokenizer "falcon" is not supported`:          bpeFile("falcon", "h e"),
		`the vocabulary lacks "h", "i" or their`:           bad,
		`merge 0: "h" is not two tokens separated by`:      unmerged,
		"add_bos_token is true, but bos_token_id is not":   glmWithBOS(),
		`Phi-3's special tokens, which strip what follows`: phi(),
	} {
		src := f.file()
		if _, err := LoadGGUF(bytes.NewReader(src), int64(len(src))); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

func glmWithBOS() *ggufFile {
	f := bpeFile("glm4", "h e")
	f.pair("tokenizer.ggml.add_bos_token", true)
	return f
}

func phi() *ggufFile {
	f := bpeFile("qwen2", "h e")
	f.pair("general.name", "Phi-3.5 mini")
	return f
}
