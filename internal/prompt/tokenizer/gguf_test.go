package tokenizer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// ggufFile writes the metadata of a .gguf file.
type ggufFile struct {
	bytes.Buffer
	pairs int
}

func (f *ggufFile) put(v any) {
	if s, ok := v.(string); ok {
		_ = binary.Write(f, binary.LittleEndian, uint64(len(s)))
		f.WriteString(s)
		return
	}
	_ = binary.Write(f, binary.LittleEndian, v)
}

func (f *ggufFile) pair(key string, v any) {
	f.pairs++
	f.put(key)
	array := func(kind uint32, n int) {
		f.put(uint32(ggufArray))
		f.put(kind)
		f.put(uint64(n))
	}
	switch v := v.(type) {
	case string:
		f.put(uint32(ggufString))
		f.put(v)
	case bool:
		f.put(uint32(7))
		f.put(v)
	case uint32:
		f.put(uint32(4))
		f.put(v)
	case []string:
		array(ggufString, len(v))
		for _, s := range v {
			f.put(s)
		}
	case []float32:
		array(ggufFloat32, len(v))
		f.put(v)
	case []int32:
		array(ggufInt32, len(v))
		f.put(v)
	}
}

func (f *ggufFile) file() []byte {
	var head ggufFile
	head.WriteString("GGUF")
	head.put(uint32(3))
	head.put(uint64(0))
	head.put(uint64(f.pairs))
	return append(head.Bytes(), f.Bytes()...)
}

// spmVocabulary is bytes, specials, and tokens with scores.
type spmVocabulary struct {
	tokens []string
	scores []float32
	types  []int32
}

func newSPMVocabulary() *spmVocabulary {
	v := &spmVocabulary{}
	v.add("<unk>", 0, typeUnknown)
	v.add("<s>", 0, typeControl)
	v.add("</s>", 0, typeControl)
	for b := range 256 {
		v.add(fmt.Sprintf("<0x%02X>", b), 0, typeByte)
	}
	return v
}

func (v *spmVocabulary) add(token string, score float32, kind int32) {
	if !slices.Contains(v.tokens, token) {
		v.tokens, v.scores, v.types = append(v.tokens, token), append(v.scores, score), append(v.types, kind)
	}
}

func (v *spmVocabulary) file(prefix bool) []byte {
	f := &ggufFile{}
	f.pair("general.architecture", "test")
	f.pair("test.context_length", uint32(4096))
	f.pair("tokenizer.ggml.model", "llama")
	f.pair("tokenizer.ggml.tokens", v.tokens)
	f.pair("tokenizer.ggml.scores", v.scores)
	f.pair("tokenizer.ggml.token_type", v.types)
	f.pair("tokenizer.ggml.bos_token_id", uint32(1))
	f.pair("tokenizer.ggml.add_space_prefix", prefix)
	return f.file()
}

func loadGGUF(t testing.TB, src []byte) *GGUF {
	t.Helper()
	g, err := LoadGGUF(bytes.NewReader(src), int64(len(src)))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// plainSPM is the rule itself on texts: join the neighbours whose joined text is the token of
// the best score, the leftmost first, until there are none; spell what is no token in bytes.
func (v *spmVocabulary) plainSPM(text string) (ids []uint32) {
	var parts []string
	for _, r := range strings.ReplaceAll(text, " ", lowerBlock) {
		parts = append(parts, string(r))
	}
	for {
		best, at := float32(math.Inf(-1)), -1
		for i := 0; i+1 < len(parts); i++ {
			if id := slices.Index(v.tokens, parts[i]+parts[i+1]); id >= 0 && (at < 0 || v.scores[id] > best) {
				best, at = v.scores[id], i
			}
		}
		if at < 0 {
			break
		}
		parts = slices.Replace(parts, at, at+2, parts[at]+parts[at+1])
	}
	for _, p := range parts {
		if id := slices.Index(v.tokens, p); id >= 0 {
			ids = append(ids, uint32(id))
			continue
		}
		for i := range len(p) {
			ids = append(ids, uint32(slices.Index(v.tokens, fmt.Sprintf("<0x%02X>", p[i]))))
		}
	}
	return ids
}

// TestSPMAgreesWithPlainRule: the encoder gives the result of the plain rule, on random vocabularies with equal scores.
func TestSPMAgreesWithPlainRule(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	letters := []string{"a", "b", "c", "é", lowerBlock, "你", "z"}
	for range 60 {
		v := newSPMVocabulary()
		v.add(lowerBlock, 0, typeNormal) // or spaces would come back as its bytes
		for range 40 {
			token := ""
			for range 1 + r.IntN(4) {
				token += letters[r.IntN(len(letters)-1)]
			}
			v.add(token, float32(r.IntN(12)), typeNormal)
		}
		tok := loadGGUF(t, v.file(false)).Tokenizer
		for range 60 {
			text := ""
			for range 1 + r.IntN(70) {
				text += strings.ReplaceAll(letters[r.IntN(len(letters))], lowerBlock, " ")
			}
			if got, want := tok.Encode(nil, text), v.plainSPM(text); !slices.Equal(got, want) {
				t.Fatalf("%q: %d, want %d", text, got, want)
			}
			if got := string(tok.AppendDecode(nil, tok.Encode(nil, text)...)); got != text {
				t.Fatalf("%q comes back as %q", text, got)
			}
		}
	}
}

// TestSpecialsLongestFirst: llama.cpp finds longer special tokens first, wherever they stand.
func TestSpecialsLongestFirst(t *testing.T) {
	v := newSPMVocabulary()
	for i, s := range []string{"[ab]", "b][cde]", "[cd", "xx", "xxxx"} {
		v.add(s, 0, []int32{typeControl, typeUser}[i%2])
	}
	tok := loadGGUF(t, v.file(false)).Tokenizer
	for text, want := range map[string][]string{
		"[ab][cd": {"[ab]", "[cd"}, "[ab][cde]": {"[", "a", "b][cde]"}, "xxxxxxx": {"xxxx", "xx", "x"}, "<s>xx": {"<s>", "xx"},
	} {
		var got []string
		for _, id := range tok.Encode(nil, text) {
			got = append(got, string(tok.AppendDecode(nil, id)))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestLoadGGUFReadsTheInputSide: vocabulary, template, context length and special tokens come from the file.
func TestLoadGGUFReadsTheInputSide(t *testing.T) {
	v := newSPMVocabulary()
	v.add(lowerBlock+"a", 1, typeNormal)
	g := loadGGUF(t, v.file(true))
	if g.ContextLength != 4096 || g.Tokens["bos_token"] != "<s>" || !slices.Equal(g.Tokenizer.Before(), []uint32{1}) || len(g.Tokenizer.After()) != 0 {
		t.Errorf("%+v, before %d", g, g.Tokenizer.Before())
	}
	// A space is put before the text at the beginning and behind special tokens.
	id, _ := g.Tokenizer.ID(lowerBlock + "a")
	if got, want := g.Tokenizer.Encode(nil, "a<s>a"), []uint32{id, 1, id}; !slices.Equal(got, want) {
		t.Errorf("%d, want %d", got, want)
	}
	for says, edit := range map[string]func(*spmVocabulary, *ggufFile){
		"type \"bert\" is not supported": func(_ *spmVocabulary, f *ggufFile) { f.pair("tokenizer.ggml.model", "bert") },
		"Phi-3":                          func(_ *spmVocabulary, f *ggufFile) { f.pair("general.name", "Phi-3 mini") },
		"259 tokens, 0 scores":           func(v *spmVocabulary, f *ggufFile) { f.pair("tokenizer.ggml.tokens", v.tokens) },
	} {
		f := &ggufFile{}
		f.pair("tokenizer.ggml.model", "llama")
		edit(newSPMVocabulary(), f)
		src := f.file()
		if _, err := LoadGGUF(bytes.NewReader(src), int64(len(src))); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

// FuzzLoadGGUF: a file is loaded or refused, in memory that its size bounds, and what was
// loaded encodes and decodes.
func FuzzLoadGGUF(f *testing.F) {
	v := newSPMVocabulary()
	f.Add(v.file(true))
	v.add("ab", 2, typeNormal)
	v.add("<x>", 2, typeUser)
	f.Add(v.file(false))
	f.Add(bpeFile("llama-bpe", "h e", "Ġ he").file())
	f.Add(bpeFile("gpt-4o", "a b").file())
	f.Add([]byte("GGUF\x03\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, src []byte) {
		g, err := LoadGGUF(bytes.NewReader(src), int64(len(src)))
		if (err == nil) != (g != nil) {
			t.Fatalf("%v and error %v", g, err)
		}
		if g == nil {
			return
		}
		const text = "ab <x> é你\n"
		if got := g.Tokenizer.AppendDecode(nil, g.Tokenizer.Encode(nil, text)...); !utf8.Valid(got) {
			t.Logf("%q comes back as %q", text, got) // byte tokens may be marked as anything
		}
	})
}
