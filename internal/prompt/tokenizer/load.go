package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// file is a tokenizer.json. The large parts of its model stay raw.
type file struct {
	Version       string
	AddedTokens   []addedToken
	Normalizer    *normalizerConfig
	PreTokenizer  *preTokenizerConfig
	PostProcessor *postProcessorConfig
	Decoder       *struct{ Type string }
	Model         modelConfig
}

type normalizerConfig struct {
	Type        string             `json:"type"`
	Normalizers []normalizerConfig `json:"normalizers"`
}

type preTokenizerConfig struct {
	Type          string               `json:"type"`
	PreTokenizers []preTokenizerConfig `json:"pretokenizers"`
	// Split
	Pattern  struct{ Regex, String *string } `json:"pattern"`
	Behavior string                          `json:"behavior"`
	Invert   bool                            `json:"invert"`
	// ByteLevel
	AddPrefixSpace bool  `json:"add_prefix_space"`
	UseRegex       *bool `json:"use_regex"`
}

type modelConfig struct {
	Type                    string   `json:"type"`
	Dropout                 *float64 `json:"dropout"`
	UnkToken                *string  `json:"unk_token"`
	ContinuingSubwordPrefix *string  `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string  `json:"end_of_word_suffix"`
	ByteFallback            bool     `json:"byte_fallback"`
	IgnoreMerges            bool     `json:"ignore_merges"`

	vocab, merges []byte
}

// readFile takes a tokenizer.json apart.
func readFile(src []byte) (*file, error) {
	if err := validText(src); err != nil {
		return nil, err
	}
	f := &file{}
	t := text{src: src}
	err := t.object(func(key []byte) error {
		k := string(key)
		if k == "model" {
			return f.Model.read(&t)
		}
		raw, err := t.value()
		if err != nil {
			return err
		}
		into := map[string]any{"version": &f.Version, "added_tokens": &f.AddedTokens, "normalizer": &f.Normalizer,
			"pre_tokenizer": &f.PreTokenizer, "post_processor": &f.PostProcessor, "decoder": &f.Decoder}[k]
		if into == nil {
			return nil // truncation and padding: engines switch them off
		}
		if err := json.Unmarshal(raw, into); err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
		return nil
	})
	if err == nil && !t.done() {
		err = t.fail()
	}
	return f, err
}

func (m *modelConfig) read(t *text) error {
	rest := []byte{'{'}
	err := t.object(func(key []byte) error {
		k := string(key)
		raw, err := t.value()
		switch {
		case err != nil:
			return err
		case k == "vocab":
			m.vocab = raw
		case k == "merges":
			m.merges = raw
		default:
			if len(rest) > 1 {
				rest = append(rest, ',')
			}
			rest = fmt.Appendf(rest, "%q:%s", k, raw)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(append(rest, '}'), m); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	return nil
}

// check refuses the models that are not byte-pair encoding as we do it.
func (m *modelConfig) check() error {
	set := func(s *string) bool { return s != nil && *s != "" }
	switch {
	case m.Type != "BPE" && m.Type != "":
		return fmt.Errorf("model type %q is not supported; BPE is", m.Type)
	case m.vocab == nil || m.merges == nil:
		return errors.New("the model has no vocab or no merges")
	case m.Dropout != nil && *m.Dropout != 0:
		return errors.New("dropout is random: set it to null")
	case set(m.ContinuingSubwordPrefix) || set(m.EndOfWordSuffix):
		return errors.New("continuing_subword_prefix and end_of_word_suffix are not supported")
	case m.ByteFallback:
		return errors.New("byte_fallback (SentencePiece) is not supported; byte-level BPE is")
	}
	return nil
}

// patterns are the expressions whose pieces we find exactly, as files spell them. Anything
// else is refused: an expression that is nearly one of these has other pieces.
var patterns = map[string]splitter{
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: llama3,
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:      qwen,
	o200kPattern:        o200k,
	gpt2Pattern:         gpt2,
	`\p{N}{1,3}`:        digits3,
	"[一-龥\u3040-ゟ゠-ヿ]+": cjk,
	deepseekPattern:     deepseek,
}

const (
	gpt2Pattern  = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	o200kPattern = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	deepseekPattern = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|" +
		"\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

// pipeline is a pre-tokenizer: the splits in order.
type pipeline struct {
	splitters   []splitter
	prefixSpace bool
}

func readPreTokenizer(c *preTokenizerConfig) (pipeline, error) {
	var p pipeline
	if c == nil {
		return p, errors.New("there is no pre_tokenizer; byte-level BPE needs one of type ByteLevel")
	}
	stages := []preTokenizerConfig{*c}
	if c.Type == "Sequence" {
		stages = c.PreTokenizers
	}
	bytes := false
	for _, s := range stages {
		if bytes {
			return p, fmt.Errorf("pre_tokenizer %s after ByteLevel is not supported", s.Type)
		}
		switch s.Type {
		case "Split":
			split, err := s.splitter()
			if err != nil {
				return p, err
			}
			p.splitters = append(p.splitters, split)
		case "ByteLevel":
			bytes = true
			if p.prefixSpace = s.AddPrefixSpace; p.prefixSpace && len(p.splitters) > 0 {
				return p, errors.New("pre_tokenizer ByteLevel with add_prefix_space after a Split is not supported")
			}
			if s.UseRegex == nil || *s.UseRegex {
				p.splitters = append(p.splitters, gpt2)
			}
		default:
			return p, fmt.Errorf("pre_tokenizer %q is not supported; Split and ByteLevel are", s.Type)
		}
	}
	if !bytes {
		return p, errors.New("the pre_tokenizer does not end with ByteLevel; only byte-level BPE is supported")
	}
	return p, nil
}

// splitter is the hand-written twin of a Split's expression.
func (c *preTokenizerConfig) splitter() (splitter, error) {
	if c.Pattern.Regex == nil {
		return nil, errors.New("pre_tokenizer Split by a plain string is not supported")
	}
	split, ok := patterns[*c.Pattern.Regex]
	if !ok {
		return nil, fmt.Errorf("pre_tokenizer Split by the expression %s is not supported", *c.Pattern.Regex)
	}
	// Where an expression leaves nothing over, to remove what it does not match is to keep
	// each match apart. Those that do leave something over only come isolated.
	whole := split != nil && !slices.Contains([]string{`\p{N}{1,3}`, "[一-龥\u3040-ゟ゠-ヿ]+", deepseekPattern}, *c.Pattern.Regex)
	switch {
	case c.Behavior == "Isolated" && !c.Invert:
	case c.Behavior == "Removed" && c.Invert && whole:
	default:
		return nil, fmt.Errorf("pre_tokenizer Split with behavior %s, invert %t is not supported", c.Behavior, c.Invert)
	}
	return split, nil
}

// readNormalizer says whether text is put into NFC, the one normalization that is done.
func readNormalizer(c *normalizerConfig) (nfc bool, err error) {
	switch {
	case c == nil:
		return false, nil
	case c.Type == "NFC":
		return true, nil
	case c.Type == "Sequence":
		for i := range c.Normalizers {
			one, err := readNormalizer(&c.Normalizers[i])
			if err != nil {
				return false, err
			}
			nfc = nfc || one
		}
		return nfc, nil
	}
	return false, fmt.Errorf("normalizer %q is not supported; NFC is", c.Type)
}

// Load reads a tokenizer.json. It keeps no reference to src. An error names the part that
// cannot be done exactly.
func Load(src []byte) (*Tokenizer, error) {
	t, err := load(src)
	if err != nil {
		return nil, fmt.Errorf("load tokenizer.json: %w", err)
	}
	return t, nil
}

func load(src []byte) (*Tokenizer, error) {
	f, err := readFile(src)
	if err != nil {
		return nil, err
	}
	if err = f.Model.check(); err != nil {
		return nil, err
	}
	t := &Tokenizer{encoders: newEncoders()}
	if t.nfc, err = readNormalizer(f.Normalizer); err != nil {
		return nil, err
	}
	if t.pipeline, err = readPreTokenizer(f.PreTokenizer); err != nil {
		return nil, err
	}
	if f.Decoder == nil || f.Decoder.Type != "ByteLevel" {
		return nil, errors.New("the decoder is not ByteLevel; only byte-level BPE is supported")
	}
	if err = t.loadModel(&f.Model); err != nil {
		return nil, err
	}
	if err = t.loadAdded(f.AddedTokens); err != nil {
		return nil, err
	}
	if t.before, t.after, err = readPostProcessor(f.PostProcessor); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Tokenizer) loadModel(m *modelConfig) (err error) {
	if t.vocab, err = readVocabulary(m.vocab, byteLevel); err != nil {
		return fmt.Errorf("model.vocab: %w", err)
	}
	if t.merges, err = readMerges(m.merges, byteLevel, t.vocab); err != nil {
		return fmt.Errorf("model.merges: %w", err)
	}
	for b := range t.byteIDs {
		t.byteIDs[b] = t.vocab.lookup([]byte{byte(b)})
		if t.byteIDs[b] == none && m.UnkToken != nil && inUTF8(byte(b)) {
			return fmt.Errorf("the vocabulary has no token for byte %#02x and an unk_token for it, which is not supported", b)
		}
	}
	t.markWhole(m.IgnoreMerges)
	return nil
}

// inUTF8 says whether b occurs in any UTF-8 text.
func inUTF8(b byte) bool { return b < 0xc0 || b > 0xc1 && b < 0xf5 }

// markWhole finds the tokens that a piece equal to them becomes: those that merging makes of
// their own bytes, or all where the file says to ignore merges.
func (t *Tokenizer) markWhole(ignoreMerges bool) {
	t.whole = make(idSet, len(t.vocab.spans)/64+1)
	e := encoder{t: t}
	for i := range t.vocab.spans {
		id := uint32(i)
		if !t.vocab.has(id) || t.vocab.isOdd(id) {
			continue
		}
		if ignoreMerges {
			t.whole.add(id)
		} else if out := e.merge(t.vocab.bytes(id)); len(out) == 1 && out[0] == id {
			t.whole.add(id)
		}
	}
}

// loadAdded gives the added tokens their ids as the reference does: a token of the vocabulary
// keeps its own, the others count on from its size. What the file says must agree.
func (t *Tokenizer) loadAdded(tokens []addedToken) error {
	t.added, t.normalized = newMatcher(), newMatcher()
	t.addedIDs, t.addedBytes, t.special = map[string]uint32{}, map[uint32][]byte{}, map[uint32]bool{}
	var scratch normalizer
	next := uint32(t.vocab.count)
	last := map[string]addedToken{}
	var order []string
	for _, a := range tokens {
		if a.Content == "" {
			continue
		}
		if _, again := last[a.Content]; !again {
			order = append(order, a.Content)
		}
		last[a.Content] = a
	}
	for _, content := range order {
		a := last[content]
		id := t.vocab.id(byteLevel, []byte(content))
		if id == none {
			id = next
			next++
		}
		if id != a.ID {
			return fmt.Errorf("added token %q has id %d in the file, but engines give it %d: correct the file", content, a.ID, id)
		}
		b, ok := byteLevel.decode(nil, []byte(content))
		if !ok {
			b = []byte(content)
		}
		t.addedIDs[content], t.addedBytes[id] = id, b
		if a.Special {
			t.special[id] = true
		}
		where, pattern := t.added, content
		if a.Normalized {
			where = t.normalized
			if t.nfc {
				pattern = string(scratch.nfc(content))
			}
		}
		if err := where.add(a, pattern); err != nil {
			return err
		}
	}
	return nil
}
