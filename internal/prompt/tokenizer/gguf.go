package tokenizer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// GGUF is the part of a .gguf file that describes a model's input.
type GGUF struct {
	Tokenizer *Tokenizer
	// ContextLength is the length that the model was trained for, in tokens; 0 is unknown.
	ContextLength int
	// ChatTemplate is empty for a base model.
	ChatTemplate string
	// Tokens are the named special tokens, by the names that templates use (bos_token, …).
	Tokens map[string]string
}

// LoadGGUF reads the vocabulary of a .gguf file of size bytes; the tensors behind it are not
// touched. Ids are what llama.cpp gives, because that is what serves such files: its special
// tokens are found longest first, and it does not normalize. Supported are vocabularies of
// SentencePiece (tokenizer.ggml.model "llama") and of byte-pair encoding ("gpt2") with the
// pre-tokenizers that llamaPre lists; others are refused.
func LoadGGUF(r io.ReaderAt, size int64) (*GGUF, error) {
	m, err := readMetadata(r, size)
	if err == nil {
		var g *GGUF
		g, err = m.loadTokenizer()
		if err == nil {
			return g, nil
		}
	}
	return nil, fmt.Errorf("load GGUF: %w", err)
}

// metadata is the part of a file's key-value pairs that we read.
type metadata struct {
	values map[string]any // uint64, int64, float64, bool, string
	tokens []string
	merges []string
	scores []float32
	types  []int32
}

// Bounds on what a file may claim; the largest vocabularies have some 260,000 tokens.
const (
	maxPairs       = 1 << 16
	maxStringBytes = 16 << 20
	maxTokens      = maxID + 1
)

func readMetadata(r io.ReaderAt, size int64) (*metadata, error) {
	g := &ggufReader{r: bufio.NewReaderSize(io.NewSectionReader(r, 0, size), 1<<16), left: size}
	if string(g.readBytes(4)) != "GGUF" {
		return nil, errors.New("it is not a GGUF file")
	}
	if v := g.readUint32(); g.err == nil && (v < 2 || v > 3) {
		return nil, fmt.Errorf("version %d is not supported; 2 and 3 are", v)
	}

	g.readUint64() // tensors
	pairs := g.readUint64()
	if pairs > maxPairs {
		return nil, fmt.Errorf("it claims %d key-value pairs", pairs)
	}

	m := &metadata{values: map[string]any{}}
	for range pairs {
		m.readPair(g)
		if g.err != nil {
			return nil, g.err
		}
	}
	return m, nil
}

// read reads one pair and keeps it if it is of use.
func (m *metadata) readPair(g *ggufReader) {
	key := g.readString()
	kind := g.readUint32()
	if kind != ggufArray {
		if v := g.readValue(kind); isUsedKey(key) {
			m.values[key] = v
		}
		return
	}

	element, n := g.readUint32(), g.readUint64()
	var into func()
	switch {
	case key == "tokenizer.ggml.tokens" && element == ggufString:
		into = func() { m.tokens = append(m.tokens, g.readString()) }
	case key == "tokenizer.ggml.merges" && element == ggufString:
		into = func() { m.merges = append(m.merges, g.readString()) }
	case key == "tokenizer.ggml.scores" && element == ggufFloat32:
		into = func() { m.scores = append(m.scores, math.Float32frombits(g.readUint32())) }
	case key == "tokenizer.ggml.token_type" && element == ggufInt32:
		into = func() { m.types = append(m.types, int32(g.readUint32())) }
	default:
		into = func() { g.readValue(element) }
	}

	if n > 8*maxTokens {
		g.fail(fmt.Errorf("%s claims %d elements", key, n))
	}

	for i := uint64(0); i < n && g.err == nil; i++ {
		into()
	}
}

func isUsedKey(key string) bool {
	return strings.HasPrefix(key, "tokenizer.") || strings.HasPrefix(key, "general.") || strings.HasSuffix(key, ".context_length")
}

// The types of GGUF values that need a name.
const (
	ggufInt32   = 5
	ggufFloat32 = 6
	ggufString  = 8
	ggufArray   = 9
)

// ggufReader reads forward and keeps the first error.
type ggufReader struct {
	r    *bufio.Reader
	left int64 // bytes of the file
	err  error
	buf  [8]byte
}

func (g *ggufReader) fail(err error) {
	if g.err == nil {
		g.err = err
	}
}

// bytes reads n bytes, at most 8, valid until the next call.
func (g *ggufReader) readBytes(n int) []byte {
	b := g.buf[:n]
	clear(b)

	if g.err == nil {
		if _, err := io.ReadFull(g.r, b); err != nil {
			g.fail(errors.New("it ends in the middle of its metadata"))
		}
		g.left -= int64(n)
	}
	return b
}

func (g *ggufReader) readUint32() uint32 { return binary.LittleEndian.Uint32(g.readBytes(4)) }
func (g *ggufReader) readUint64() uint64 { return binary.LittleEndian.Uint64(g.readBytes(8)) }

func (g *ggufReader) readString() string {
	n := g.readUint64()
	if g.err != nil || n > maxStringBytes || int64(n) > g.left {
		g.fail(fmt.Errorf("it claims a text of %d bytes", n))
		return ""
	}

	b := make([]byte, n)
	if _, err := io.ReadFull(g.r, b); err != nil {
		g.fail(errors.New("it ends in the middle of its metadata"))
	}

	g.left -= int64(n)
	return string(b)
}

// value reads a value of a kind that is not an array.
func (g *ggufReader) readValue(kind uint32) any {
	switch kind {
	case 0:
		return uint64(g.readBytes(1)[0])
	case 1:
		return int64(int8(g.readBytes(1)[0]))
	case 2:
		return uint64(binary.LittleEndian.Uint16(g.readBytes(2)))
	case 3:
		return int64(int16(binary.LittleEndian.Uint16(g.readBytes(2))))
	case 4:
		return uint64(g.readUint32())
	case ggufInt32:
		return int64(int32(g.readUint32()))
	case ggufFloat32:
		return float64(math.Float32frombits(g.readUint32()))
	case 7:
		return g.readBytes(1)[0] != 0
	case ggufString:
		return g.readString()
	case 10:
		return g.readUint64()
	case 11:
		return int64(g.readUint64())
	case 12:
		return math.Float64frombits(g.readUint64())
	}

	g.fail(fmt.Errorf("it has a value of unknown type %d", kind))
	return nil
}

func (m *metadata) text(key string) string { s, _ := m.values[key].(string); return s }

// flag is a bool of the file, or what llama.cpp takes where it is absent.
func (m *metadata) flag(key string, absent bool) bool {
	if v, ok := m.values[key].(bool); ok {
		return v
	}
	return absent
}

// number is a whole number that is not negative; -1 where it is absent.
func (m *metadata) number(key string) int {
	switch v := m.values[key].(type) {
	case uint64:
		if v < math.MaxInt32 {
			return int(v)
		}
	case int64:
		if v >= 0 && v < math.MaxInt32 {
			return int(v)
		}
	}
	return -1
}

func (m *metadata) loadTokenizer() (*GGUF, error) {
	if name := strings.ToLower(m.text("general.name")); strings.Contains(name, "phi-3") || strings.Contains(name, "phi3") {
		return nil, errors.New("Phi-3's special tokens, which strip what follows them, are not supported")
	}
	var t *Tokenizer
	var err error

	around := surroundings{bos: 1, addBOS: true}
	switch model := m.text("tokenizer.ggml.model"); model {
	case "llama":
		t, err = m.loadSPM()
	case "gpt2":
		t, around, err = m.loadBPE()
	default:
		err = fmt.Errorf("a vocabulary of type %q is not supported; SentencePiece (\"llama\") and byte-pair encoding (\"gpt2\") are", model)
	}

	if err != nil {
		return nil, err
	}

	g := &GGUF{Tokenizer: t, Tokens: map[string]string{}, ChatTemplate: m.text("tokenizer.chat_template")}
	for name, key := range map[string]string{"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"} {
		if id := m.number("tokenizer.ggml." + key + "_token_id"); id >= 0 && id < len(m.tokens) {
			g.Tokens[name] = m.tokens[id]
		}
	}

	g.ContextLength = max(0, m.number(m.text("general.architecture")+".context_length"))
	return g, m.setSurroundings(t, around)
}

// surroundings are llama.cpp's defaults for a file that does not set them: the id of the token that
// begins a text, -1 for none, and whether to put it before a text.
type surroundings struct {
	bos    int
	addBOS bool
}

// surround sets what is put around a text.
func (m *metadata) setSurroundings(t *Tokenizer, absent surroundings) error {
	for _, s := range []struct {
		key, flag string
		add       bool
		id        int
		into      *[]uint32
	}{{"bos", "add_bos_token", absent.addBOS, absent.bos, &t.before}, {"eos", "add_eos_token", false, -1, &t.after}} {
		if !m.flag("tokenizer.ggml."+s.flag, s.add) {
			continue
		}
		id := m.number("tokenizer.ggml." + s.key + "_token_id")
		if id < 0 {
			id = s.id
		}
		if id < 0 || id >= len(m.tokens) {
			return fmt.Errorf("%s is true, but %s_token_id is not set", s.flag, s.key)
		}
		*s.into = []uint32{uint32(id)}
	}
	return nil
}
