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

// LoadGGUF reads the vocabulary of a .gguf file of size bytes. It does not read the tensors after it. The ids are the same as in
// llama.cpp, which serves such files: longer special tokens are found first, and text is not normalized. LoadGGUF supports
// vocabularies of SentencePiece (tokenizer.ggml.model "llama") and of byte-pair encoding ("gpt2") with the pre-tokenizers in
// llamaPre. It refuses all others.
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

// metadata is the part of a file's key-value pairs that the package uses. The slices have one element for
// each token id or merge.
type metadata struct {
	values map[string]any // uint64, int64, float64, bool, string
	tokens []string
	merges []string
	scores []float32
	types  []int32
}

// Bounds on the counts and sizes in a file. The largest known vocabularies have about 260,000 tokens.
const (
	maxPairs       = 1 << 16
	maxStringBytes = 16 << 20
	maxTokens      = maxID + 1
)

// readMetadata reads the header and all key-value pairs of a file.
func readMetadata(r io.ReaderAt, size int64) (*metadata, error) {
	g := &ggufReader{r: bufio.NewReaderSize(io.NewSectionReader(r, 0, size), 1<<16), left: size}
	if string(g.readBytes(4)) != "GGUF" {
		return nil, errors.New("the file does not begin with GGUF: it has another format")
	}
	if v := g.readUint32(); g.err == nil && (v < 2 || v > 3) {
		return nil, fmt.Errorf("version %d is not supported; 2 and 3 are", v)
	}

	g.readUint64() // the number of tensors
	pairs := g.readUint64()
	if pairs > maxPairs {
		return nil, fmt.Errorf("the header has a count of %d key-value pairs; at most %d are accepted", pairs, maxPairs)
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

// readPair reads one key-value pair and stores it in m if the package uses its key.
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
	var readElement func()
	switch {
	case key == "tokenizer.ggml.tokens" && element == ggufString:
		readElement = func() { m.tokens = append(m.tokens, g.readString()) }
	case key == "tokenizer.ggml.merges" && element == ggufString:
		readElement = func() { m.merges = append(m.merges, g.readString()) }
	case key == "tokenizer.ggml.scores" && element == ggufFloat32:
		readElement = func() { m.scores = append(m.scores, math.Float32frombits(g.readUint32())) }
	case key == "tokenizer.ggml.token_type" && element == ggufInt32:
		readElement = func() { m.types = append(m.types, int32(g.readUint32())) }
	default:
		readElement = func() { g.readValue(element) }
	}

	if n > 8*maxTokens {
		g.fail(fmt.Errorf("%s has a count of %d elements; at most %d are accepted", key, n, 8*maxTokens))
	}

	for i := uint64(0); i < n && g.err == nil; i++ {
		readElement()
	}
}

// isUsedKey reports whether metadata stores the value of key.
func isUsedKey(key string) bool {
	return strings.HasPrefix(key, "tokenizer.") || strings.HasPrefix(key, "general.") || strings.HasSuffix(key, ".context_length")
}

// The types of GGUF values, as numbered in the format.
const (
	ggufUint8 = iota
	ggufInt8
	ggufUint16
	ggufInt16
	ggufUint32
	ggufInt32
	ggufFloat32
	ggufBool
	ggufString
	ggufArray
	ggufUint64
	ggufInt64
	ggufFloat64
)

// ggufReader reads a file from front to back. After an error it keeps the first error in err and all reads
// return zeros, so that callers check err only after a group of reads.
type ggufReader struct {
	r    *bufio.Reader
	left int64 // unread bytes of the file
	err  error
	buf  [8]byte
}

// fail sets err, unless it is set already.
func (g *ggufReader) fail(err error) {
	if g.err == nil {
		g.err = err
	}
}

// readBytes reads n bytes, at most 8. They are valid until the next call, and zero after an error.
func (g *ggufReader) readBytes(n int) []byte {
	b := g.buf[:n]
	clear(b)

	if g.err == nil {
		if _, err := io.ReadFull(g.r, b); err != nil {
			g.fail(errTruncated)
		}
		g.left -= int64(n)
	}
	return b
}

func (g *ggufReader) readUint32() uint32 { return binary.LittleEndian.Uint32(g.readBytes(4)) }
func (g *ggufReader) readUint64() uint64 { return binary.LittleEndian.Uint64(g.readBytes(8)) }

// errTruncated is the error for a file that ends too early.
var errTruncated = errors.New("the file ends inside its metadata")

// readString reads a string with its length. It checks the length before it allocates memory, so that a
// corrupt file cannot exhaust memory.
func (g *ggufReader) readString() string {
	n := g.readUint64()
	if g.err != nil || n > maxStringBytes || int64(n) > g.left {
		g.fail(fmt.Errorf("a string has a length of %d bytes, more than the file or than %d", n, maxStringBytes))
		return ""
	}

	b := make([]byte, n)
	if _, err := io.ReadFull(g.r, b); err != nil {
		g.fail(errTruncated)
	}

	g.left -= int64(n)
	return string(b)
}

// readValue reads a value of any type but an array.
func (g *ggufReader) readValue(kind uint32) any {
	switch kind {
	case ggufUint8:
		return uint64(g.readBytes(1)[0])
	case ggufInt8:
		return int64(int8(g.readBytes(1)[0]))
	case ggufUint16:
		return uint64(binary.LittleEndian.Uint16(g.readBytes(2)))
	case ggufInt16:
		return int64(int16(binary.LittleEndian.Uint16(g.readBytes(2))))
	case ggufUint32:
		return uint64(g.readUint32())
	case ggufInt32:
		return int64(int32(g.readUint32()))
	case ggufFloat32:
		return float64(math.Float32frombits(g.readUint32()))
	case ggufBool:
		return g.readBytes(1)[0] != 0
	case ggufString:
		return g.readString()
	case ggufUint64:
		return g.readUint64()
	case ggufInt64:
		return int64(g.readUint64())
	case ggufFloat64:
		return math.Float64frombits(g.readUint64())
	}

	g.fail(fmt.Errorf("a value has the unknown type %d", kind))
	return nil
}

// text returns a string of the file, or "" if it is absent.
func (m *metadata) text(key string) string { s, _ := m.values[key].(string); return s }

// flag returns a bool of the file, or absent if the file does not have it.
func (m *metadata) flag(key string, absent bool) bool {
	if v, ok := m.values[key].(bool); ok {
		return v
	}
	return absent
}

// number returns an integer of the file, or -1 if it is absent, negative or too large.
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

// loadTokenizer builds the result of LoadGGUF from the metadata.
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

	t.measureTokens()
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

// setSurroundings sets the special tokens that t puts around a text. The values of the file have precedence
// over absent, which are the defaults of its type of vocabulary.
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
