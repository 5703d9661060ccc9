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

	"github.com/stator-project/stator/test/race"
)

// ggufFile writes the metadata of a .gguf file.
type ggufFile struct {
	bytes.Buffer
	pairs int
}

// writeValue writes v in little-endian order.
func (f *ggufFile) writeValue(v any) {
	if s, ok := v.(string); ok {
		_ = binary.Write(f, binary.LittleEndian, uint64(len(s)))
		f.WriteString(s)
		return
	}
	_ = binary.Write(f, binary.LittleEndian, v)
}

// addPair adds a key-value pair. The type of v determines the type in the file.
func (f *ggufFile) addPair(key string, v any) {
	f.pairs++
	f.writeValue(key)
	array := func(kind uint32, n int) {
		f.writeValue(uint32(ggufArray))
		f.writeValue(kind)
		f.writeValue(uint64(n))
	}
	switch v := v.(type) {
	case string:
		f.writeValue(uint32(ggufString))
		f.writeValue(v)
	case bool:
		f.writeValue(uint32(ggufBool))
		f.writeValue(v)
	case uint32:
		f.writeValue(uint32(4))
		f.writeValue(v)
	case []string:
		array(ggufString, len(v))
		for _, s := range v {
			f.writeValue(s)
		}
	case []float32:
		array(ggufFloat32, len(v))
		f.writeValue(v)
	case []int32:
		array(ggufInt32, len(v))
		f.writeValue(v)
	}
}

// encoded returns the bytes of the file.
func (f *ggufFile) encoded() []byte {
	var head ggufFile
	head.WriteString("GGUF")
	head.writeValue(uint32(3))
	head.writeValue(uint64(0))
	head.writeValue(uint64(f.pairs))
	return append(head.Bytes(), f.Bytes()...)
}

// spmVocabulary is a SentencePiece vocabulary: special tokens, the bytes, and tokens with scores.
type spmVocabulary struct {
	tokens []string
	scores []float32
	types  []int32
}

// newSPMVocabulary returns a vocabulary with the special tokens and all bytes.
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

// ggufBytes returns a .gguf file with the vocabulary. Prefix is its add_space_prefix.
func (v *spmVocabulary) ggufBytes(prefix bool) []byte {
	f := &ggufFile{}
	f.addPair("general.architecture", "test")
	f.addPair("test.context_length", uint32(4096))
	f.addPair("tokenizer.ggml.model", "llama")
	f.addPair("tokenizer.ggml.tokens", v.tokens)
	f.addPair("tokenizer.ggml.scores", v.scores)
	f.addPair("tokenizer.ggml.token_type", v.types)
	f.addPair("tokenizer.ggml.bos_token_id", uint32(1))
	f.addPair("tokenizer.ggml.add_space_prefix", prefix)
	return f.encoded()
}

// loadGGUF loads a file that must be valid.
func loadGGUF(t testing.TB, src []byte) *GGUF {
	t.Helper()
	g, err := LoadGGUF(bytes.NewReader(src), int64(len(src)))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// encodePlainly encodes text by the rule of SentencePiece: it joins the neighbours whose joined text is the
// token of the best score, the leftmost first, until no neighbours form a token. Other characters become
// bytes.
func (v *spmVocabulary) encodePlainly(text string) (ids []uint32) {
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

// TestSPMAgreesWithPlainRule compares the encoder with encodePlainly, on random vocabularies with equal scores.
func TestSPMAgreesWithPlainRule(t *testing.T) {
	race.Skip(t)
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
		tok := loadGGUF(t, v.ggufBytes(false)).Tokenizer
		for range 60 {
			text := ""
			for range 1 + r.IntN(70) {
				text += strings.ReplaceAll(letters[r.IntN(len(letters))], lowerBlock, " ")
			}
			if got, want := tok.Encode(nil, text), v.encodePlainly(text); !slices.Equal(got, want) {
				t.Fatalf("%q: %d, want %d", text, got, want)
			}
			if got := string(tok.AppendDecode(nil, tok.Encode(nil, text)...)); got != text {
				t.Fatalf("%q is decoded to %q", text, got)
			}
		}
	}
}

// TestSpecialsLongestFirst checks that longer special tokens are found first in the whole text, as in llama.cpp.
func TestSpecialsLongestFirst(t *testing.T) {
	v := newSPMVocabulary()
	for i, s := range []string{"[ab]", "b][cde]", "[cd", "xx", "xxxx"} {
		v.add(s, 0, []int32{typeControl, typeUser}[i%2])
	}
	tok := loadGGUF(t, v.ggufBytes(false)).Tokenizer
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

// TestLoadGGUFReadsTheInputSide checks the vocabulary, template, context length and special tokens of a file.
func TestLoadGGUFReadsTheInputSide(t *testing.T) {
	v := newSPMVocabulary()
	v.add(lowerBlock+"a", 1, typeNormal)
	g := loadGGUF(t, v.ggufBytes(true))
	if g.ContextLength != 4096 || g.Tokens["bos_token"] != "<s>" || !slices.Equal(g.Tokenizer.Before(), []uint32{1}) || len(g.Tokenizer.After()) != 0 {
		t.Errorf("%+v, before %d", g, g.Tokenizer.Before())
	}
	// A space is put before the text at the beginning and after special tokens.
	id, _ := g.Tokenizer.ID(lowerBlock + "a")
	if got, want := g.Tokenizer.Encode(nil, "a<s>a"), []uint32{id, 1, id}; !slices.Equal(got, want) {
		t.Errorf("%d, want %d", got, want)
	}
	for message, edit := range map[string]func(*spmVocabulary, *ggufFile){
		"type \"bert\" is not supported": func(_ *spmVocabulary, f *ggufFile) { f.addPair("tokenizer.ggml.model", "bert") },
		"Phi-3":                          func(_ *spmVocabulary, f *ggufFile) { f.addPair("general.name", "Phi-3 mini") },
		"259 tokens, 0 scores":           func(v *spmVocabulary, f *ggufFile) { f.addPair("tokenizer.ggml.tokens", v.tokens) },
	} {
		f := &ggufFile{}
		f.addPair("tokenizer.ggml.model", "llama")
		edit(newSPMVocabulary(), f)
		src := f.encoded()
		if _, err := LoadGGUF(bytes.NewReader(src), int64(len(src))); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%v, want %q", err, message)
		}
	}
}

// FuzzLoadGGUF checks that LoadGGUF returns either a usable tokenizer or an error, with memory bounded by the
// size of the file.
func FuzzLoadGGUF(f *testing.F) {
	v := newSPMVocabulary()
	f.Add(v.ggufBytes(true))
	v.add("ab", 2, typeNormal)
	v.add("<x>", 2, typeUser)
	f.Add(v.ggufBytes(false))
	f.Add(bpeFile("llama-bpe", "h e", "Ġ he").encoded())
	f.Add(bpeFile("gpt-4o", "a b").encoded())
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
