package prompt

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/tokenizer"
)

// maxFile bounds each file of a folder; the largest vocabularies are some 35 MB.
const maxFile = 256 << 20

// Load reads a model folder in the layout of Hugging Face. tokenizer.json is required;
// tokenizer_config.json, special_tokens_map.json, chat_template.jinja and config.json are optional.
// An error names the file at fault and what to do.
func Load(fsys fs.FS) (*Model, error) {
	m, err := load(folder{fsys})
	if err != nil {
		return nil, fmt.Errorf("load model folder: %w", err)
	}
	return m, nil
}

func load(f folder) (*Model, error) {
	m := &Model{}
	vocabulary, err := f.read("tokenizer.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, f.withoutTokenizer()
	}
	if err != nil {
		return nil, err
	}

	m.tokenizer, err = tokenizer.Load(vocabulary)
	if err != nil {
		return nil, err
	}

	var tc tokenizerConfig
	if err = f.json("tokenizer_config.json", &tc); err != nil {
		return nil, err
	}
	if err = m.loadTokens(f, &tc); err != nil {
		return nil, err
	}

	m.loadSurroundings(&tc)
	if err = m.loadTemplates(f, &tc); err != nil {
		return nil, err
	}
	return m, m.loadConfig(f, &tc)
}

// folder reads files. Its errors name the file.
type folder struct{ fs.FS }

func (f folder) read(name string) ([]byte, error) {
	info, err := fs.Stat(f.FS, name)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s is larger than %d MiB", name, maxFile>>20)
	}
	return fs.ReadFile(f.FS, name)
}

func (f folder) has(name string) bool {
	_, err := fs.Stat(f.FS, name)
	return err == nil
}

// json reads an optional file into v.
func (f folder) json(name string, v any) error {
	raw, err := f.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// withoutTokenizer says what to do about a folder that has no tokenizer.json.
func (f folder) withoutTokenizer() error {
	for name, what := range map[string]string{"tokenizer.model": "SentencePiece", "tekken.json": "tekken", "vocab.json": "slow",
		"tiktoken.model": "tiktoken"} {
		if f.has(name) {
			return fmt.Errorf("tokenizer.json is missing, and a %s vocabulary (%s) is not supported: save the fast tokenizer beside it",
				what, name)
		}
	}
	return errors.New("tokenizer.json is missing: copy it from the model's folder")
}

type tokenizerConfig struct {
	ChatTemplate   json.RawMessage `json:"chat_template"`
	ModelMaxLength float64         `json:"model_max_length"`
	Class          string          `json:"tokenizer_class"`
	AddBOS         *bool           `json:"add_bos_token"`
	AddEOS         *bool           `json:"add_eos_token"`
	specialTokens
}

// specialTokens are the tokens that have a name. A value is text or an object with content.
type specialTokens struct {
	BOS  specialToken `json:"bos_token"`
	EOS  specialToken `json:"eos_token"`
	UNK  specialToken `json:"unk_token"`
	SEP  specialToken `json:"sep_token"`
	PAD  specialToken `json:"pad_token"`
	CLS  specialToken `json:"cls_token"`
	Mask specialToken `json:"mask_token"`
}

type specialToken string

// UnmarshalJSON takes "text" and {"content": "text", …}.
func (t *specialToken) UnmarshalJSON(raw []byte) error {
	var object struct{ Content string }
	if len(raw) > 0 && raw[0] == '{' {
		err := json.Unmarshal(raw, &object)
		*t = specialToken(object.Content)
		return err
	}
	return json.Unmarshal(raw, (*string)(t))
}

// loadTokens takes the named tokens from tokenizer_config.json, and those that it does not
// name from special_tokens_map.json.
func (m *Model) loadTokens(f folder, tc *tokenizerConfig) error {
	var old specialTokens
	if err := f.json("special_tokens_map.json", &old); err != nil {
		return err
	}

	for _, t := range []struct {
		name     string
		new, old specialToken
	}{{"bos_token", tc.BOS, old.BOS}, {"eos_token", tc.EOS, old.EOS}, {"unk_token", tc.UNK, old.UNK}, {"sep_token", tc.SEP, old.SEP},
		{"pad_token", tc.PAD, old.PAD}, {"cls_token", tc.CLS, old.CLS}, {"mask_token", tc.Mask, old.Mask}} {
		text, file := string(t.new), "tokenizer_config.json"
		if text == "" {
			text, file = string(t.old), "special_tokens_map.json"
		}
		if text == "" {
			continue
		}
		if _, ok := m.tokenizer.ID(text); !ok {
			return fmt.Errorf("%s names %q as %s, but tokenizer.json has no such token: the files are of different models", file, text,
				t.name)
		}
		m.tokens = append(m.tokens, namedToken{t.name, text})
	}

	return nil
}

// loadSurroundings finds what is put around a text that is not a chat. The classes named here
// go by tokenizer_config.json; all others by the post-processor of tokenizer.json.
func (m *Model) loadSurroundings(tc *tokenizerConfig) {
	m.before, m.after = m.tokenizer.Before(), m.tokenizer.After()
	switch strings.TrimSuffix(tc.Class, "Fast") {
	case "LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer":
	default:
		return
	}

	m.before, m.after = nil, nil
	if id, ok := m.tokenizer.ID(string(tc.BOS)); ok && (tc.AddBOS == nil || *tc.AddBOS) {
		m.before = []uint32{id}
	}
	if id, ok := m.tokenizer.ID(string(tc.EOS)); ok && tc.AddEOS != nil && *tc.AddEOS {
		m.after = []uint32{id}
	}
}

// loadTemplates finds the chat template: chat_template.jinja, else the one (or the named ones)
// in tokenizer_config.json, else chat_template.json.
func (m *Model) loadTemplates(f folder, tc *tokenizerConfig) error {
	sources := map[string]string{}
	file := "tokenizer_config.json"
	if err := namedTemplates(tc.ChatTemplate, sources); err != nil {
		return fmt.Errorf("read %s: chat_template: %w", file, err)
	}

	switch raw, err := f.read("chat_template.jinja"); {
	case err == nil:
		file = "chat_template.jinja"
		sources = map[string]string{"default": string(raw)}
		if tools, err := f.read("additional_chat_templates/tool_use.jinja"); err == nil {
			sources["tool_use"] = string(tools)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case len(sources) == 0:
		file = "chat_template.json"
		var t struct {
			ChatTemplate json.RawMessage `json:"chat_template"`
		}
		if err := f.json(file, &t); err != nil {
			return err
		}
		if err := namedTemplates(t.ChatTemplate, sources); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
	}

	for name, into := range map[string]**chattemplate.Template{"default": &m.template, "tool_use": &m.withTools} {
		source, ok := sources[name]
		if !ok {
			continue
		}
		t, err := chattemplate.Parse(source)
		if err != nil {
			return fmt.Errorf("read %s: parse template %s: %w", file, name, err)
		}
		*into = t
	}

	if m.withTools == nil {
		m.withTools = m.template
	}
	return nil
}

// namedTemplates reads a template, or a list of {"name", "template"}.
func namedTemplates(raw json.RawMessage, into map[string]string) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	if raw[0] == '"' {
		var one string
		err := json.Unmarshal(raw, &one)
		into["default"] = one
		return err
	}

	var list []struct{ Name, Template string }
	err := json.Unmarshal(raw, &list)

	for _, t := range list {
		into[t.Name] = t.Template
	}
	return err
}

type modelConfig struct {
	lengths
	VocabSize     int          `json:"vocab_size"`
	TextConfig    *modelConfig `json:"text_config"`
	Architectures []string     `json:"architectures"`
}

// seesMedia are the keys of a config.json by which models that take more than text are known.
var seesMedia = []string{"vision_config", "audio_config", "visual", "vision_encoder", "mm_vision_tower", "image_token_id",
	"image_token_index",
	"audio_token_id", "video_token_id", "img_processor", "embd_layer", "thinker_config"}

// textOnly says whether a folder is certainly of a model that takes nothing but text: it
// names causal language models, and nothing that other inputs would need. In doubt it is not.
func textOnly(f folder, c *modelConfig) (bool, error) {
	causal := len(c.Architectures) > 0 && c.TextConfig == nil
	for _, a := range c.Architectures {
		causal = causal && strings.HasSuffix(a, "ForCausalLM")
	}
	if !causal || f.has("preprocessor_config.json") || f.has("processor_config.json") {
		return false, nil
	}

	var keys map[string]json.RawMessage
	if err := f.json("config.json", &keys); err != nil {
		return false, err
	}

	for _, key := range seesMedia {
		if _, ok := keys[key]; ok {
			return false, nil
		}
	}
	return true, nil
}

// lengths are the names that models give to their context length, and how they stretch it.
type lengths struct {
	MaxPositionEmbeddings float64 `json:"max_position_embeddings"`
	NPositions            float64 `json:"n_positions"`
	MaxSeqLen             float64 `json:"max_seq_len"`
	SeqLength             float64 `json:"seq_length"`
	ModelMaxLength        float64 `json:"model_max_length"`
	MaxSequenceLength     float64 `json:"max_sequence_length"`
	MaxSeqLength          float64 `json:"max_seq_length"`
	RopeScaling           *struct {
		Type     string  `json:"type"`
		RopeType string  `json:"rope_type"`
		Factor   float64 `json:"factor"`
		Original float64 `json:"original_max_position_embeddings"`
	} `json:"rope_scaling"`
}

// contextLength is what an engine derives when it is not told: the smallest length named,
// stretched by the rotary scaling where that is not part of it already.
func (l *lengths) contextLength() float64 {
	length := math.Inf(1)
	for _, n := range []float64{l.MaxPositionEmbeddings, l.NPositions, l.MaxSeqLen, l.SeqLength, l.ModelMaxLength, l.MaxSequenceLength,
		l.MaxSeqLength} {
		if n >= 1 {
			length = min(length, n)
		}
	}

	if s := l.RopeScaling; s != nil && s.Factor > 0 {
		switch kind := s.RopeType + s.Type; kind {
		case "su", "longrope", "llama3", "llama3llama3", "mrope", "default", "longropelongrope":
		default:
			if s.Original > 0 {
				length = s.Original
			}
			length *= s.Factor
		}
	}

	return length
}

func (m *Model) loadConfig(f folder, tc *tokenizerConfig) error {
	var c modelConfig
	err := f.json("config.json", &c)
	if err != nil {
		return err
	}

	m.textOnly, err = textOnly(f, &c)
	if err != nil {
		return err
	}
	if c.TextConfig != nil && c.VocabSize == 0 {
		c = *c.TextConfig
	}

	length := c.contextLength()
	if tc.ModelMaxLength >= 1 {
		length = min(length, tc.ModelMaxLength)
	}
	if length < math.MaxInt32 {
		m.context = int(length)
	}

	m.vocabulary = max(c.VocabSize, m.tokenizer.VocabSize())
	if c.VocabSize > 0 && c.VocabSize < m.tokenizer.VocabSize() {
		return fmt.Errorf("config.json says vocab_size %d, but tokenizer.json has ids up to %d: the files are of different models",
			c.VocabSize, m.tokenizer.VocabSize()-1)
	}
	return nil
}
