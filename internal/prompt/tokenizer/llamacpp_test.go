package tokenizer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestLlamaSplitters compares the scanners that only GGUF files use with the expressions of llama.cpp.
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

// TestLlamaCharacterReplacement checks that characters are replaced only if llama.cpp treats them otherwise,
// and by characters of the same length.
func TestLlamaCharacterReplacement(t *testing.T) {
	e := newEncoder(sim(t))
	for s, want := range map[string]string{
		"don't ſ\xff\xc5": "don't ß\xff\xc5", "\u1c89\u0301\U000105c0x": "\uffff\u0301\U0001ffffx", "中文 \u0377 é": "中文 \u0377 é", "": "",
	} {
		if got := e.replaceForLlama(s, 0); got != want {
			t.Errorf("%q becomes %q, want %q", s, got, want)
		}
	}
	for _, run := range addedIn16 {
		for _, r := range run {
			if c := classOf(replacement(r)); c != 0 || len(string(replacement(r))) != len(string(r)) {
				t.Errorf("%U becomes %U, want an unassigned character of the same length", r, replacement(r))
			}
		}
	}
}

// bpeFile returns a GGUF file with the bytes, two special tokens, and the results of merges as tokens.
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
	f.addPair("tokenizer.ggml.model", "gpt2")
	if pre != "" {
		f.addPair("tokenizer.ggml.pre", pre)
	}
	f.addPair("tokenizer.ggml.tokens", tokens)
	f.addPair("tokenizer.ggml.merges", merges)
	for len(types) < len(tokens) {
		types = append(types, typeNormal)
	}
	f.addPair("tokenizer.ggml.token_type", types)
	return f
}

// TestGGUFByteTokens checks the ids of byte-level vocabularies with several pre-tokenizers.
func TestGGUFByteTokens(t *testing.T) {
	merges := []string{"h e", "Ġ he", "l l", "he l", "1 2", "12 3"}
	g := loadGGUF(t, bpeFile("llama-bpe", merges...).encoded())
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
	// llama.cpp begins a text with token 11 if such a file names no token for that.
	if !slices.Equal(tok.Before(), []uint32{11}) || !tok.special[0] || tok.special[1] {
		t.Errorf("before %d", tok.Before())
	}
	if one := loadGGUF(t, bpeFile("qwen2", merges...).encoded()).Tokenizer; len(one.Before()) != 0 || len(one.Encode(nil, "123")) != 3 {
		t.Errorf("qwen2: before %d, 123 is %d", one.Before(), one.Encode(nil, "123"))
	}
}

// TestLoadGGUFBytePairErrors checks the errors for byte-level vocabularies that are not supported.
func TestLoadGGUFBytePairErrors(t *testing.T) {
	bad := bpeFile("qwen2", "h e")
	bad.addPair("tokenizer.ggml.merges", []string{"h i"})
	unmerged := bpeFile("qwen2")
	unmerged.addPair("tokenizer.ggml.merges", []string{"h"})
	for message, f := range map[string]*ggufFile{
		"convert the model again":                          bpeFile("", "h e"),
		`pre-tokenizer "falcon" is not supported`:          bpeFile("falcon", "h e"),
		`the vocabulary lacks "h", "i" or their`:           bad,
		`merge 0: "h" is not two tokens separated by`:      unmerged,
		"add_bos_token is true, but bos_token_id is not":   glmFileWithBOS(),
		`Phi-3's special tokens, which strip what follows`: phiFile(),
	} {
		src := f.encoded()
		if _, err := LoadGGUF(bytes.NewReader(src), int64(len(src))); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%v, want %q", err, message)
		}
	}
}

// glmFileWithBOS returns a file that sets add_bos_token without a token for it.
func glmFileWithBOS() *ggufFile {
	f := bpeFile("glm4", "h e")
	f.addPair("tokenizer.ggml.add_bos_token", true)
	return f
}

// phiFile returns a file of a Phi-3 model.
func phiFile() *ggufFile {
	f := bpeFile("qwen2", "h e")
	f.addPair("general.name", "Phi-3.5 mini")
	return f
}
