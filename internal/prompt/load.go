package prompt

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/tokenizer"
)

// maxFileBytes bounds each file of a folder. The largest known vocabularies have about 35 MB.
const maxFileBytes = 256 << 20

// Load reads a model folder in the layout of Hugging Face. tokenizer.json is required;
// tokenizer_config.json, special_tokens_map.json, chat_template.jinja and config.json are optional.
// An error names the file at fault and what to do.
func Load(fsys fs.FS) (*Model, error) {
	m, err := loadFolder(folder{fsys})
	if err != nil {
		return nil, fmt.Errorf("load model folder: %w", err)
	}
	return m, nil
}

// loadFolder builds a model from the files of f. It reads tokenizer.json first, because the other
// files are checked against its vocabulary.
func loadFolder(f folder) (*Model, error) {
	m := &Model{}
	vocabulary, err := f.readFile("tokenizer.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, f.missingTokenizerError()
	}
	if err != nil {
		return nil, err
	}

	m.tokenizer, err = tokenizer.Load(vocabulary)
	if err != nil {
		return nil, err
	}

	var tc tokenizerConfig
	if err = f.readJSON("tokenizer_config.json", &tc); err != nil {
		return nil, err
	}
	if err = m.loadTokens(f, &tc); err != nil {
		return nil, err
	}

	m.loadSurroundingTokens(&tc)
	if err = m.loadTemplates(f, &tc); err != nil {
		return nil, err
	}
	return m, m.loadConfig(f, &tc)
}

// folder reads the files of a model folder. Each error names its file.
type folder struct{ fs.FS }

// readFile returns the content of a file. It refuses a file of more than maxFileBytes.
func (f folder) readFile(name string) ([]byte, error) {
	info, err := fs.Stat(f.FS, name)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFileBytes {
		return nil, fmt.Errorf("%s has %d bytes; at most %d MiB are accepted", name, info.Size(), maxFileBytes>>20)
	}
	return fs.ReadFile(f.FS, name)
}

func (f folder) has(name string) bool {
	_, err := fs.Stat(f.FS, name)
	return err == nil
}

// readJSON decodes an optional file into v. It does not change v if the file does not exist.
func (f folder) readJSON(name string, v any) error {
	raw, err := f.readFile(name)
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

// missingTokenizerError returns the error for a folder without tokenizer.json. If the folder has a
// vocabulary in another format, the error names that format.
func (f folder) missingTokenizerError() error {
	for name, format := range map[string]string{"tokenizer.model": "SentencePiece", "tekken.json": "tekken", "vocab.json": "slow",
		"tiktoken.model": "tiktoken"} {
		if f.has(name) {
			return fmt.Errorf("tokenizer.json is missing, and a %s vocabulary (%s) is not supported: save the fast tokenizer beside it",
				format, name)
		}
	}
	return errors.New("tokenizer.json is missing: copy it from the model's folder")
}

// tokenizerConfig is the part of tokenizer_config.json that affects prompts.
type tokenizerConfig struct {
	ChatTemplate   json.RawMessage `json:"chat_template"`
	ModelMaxLength float64         `json:"model_max_length"`
	Class          string          `json:"tokenizer_class"`
	AddBOS         *bool           `json:"add_bos_token"`
	AddEOS         *bool           `json:"add_eos_token"`
	specialTokens
}

// specialTokens are the special tokens that both tokenizer_config.json and special_tokens_map.json name.
type specialTokens struct {
	BOS  specialToken `json:"bos_token"`
	EOS  specialToken `json:"eos_token"`
	UNK  specialToken `json:"unk_token"`
	SEP  specialToken `json:"sep_token"`
	PAD  specialToken `json:"pad_token"`
	CLS  specialToken `json:"cls_token"`
	Mask specialToken `json:"mask_token"`
}

// specialToken is the text of a special token; it is empty if the file does not name the token.
type specialToken string

// UnmarshalJSON accepts "text" and {"content": "text", …}.
func (t *specialToken) UnmarshalJSON(raw []byte) error {
	var object struct{ Content string }
	if len(raw) > 0 && raw[0] == '{' {
		err := json.Unmarshal(raw, &object)
		*t = specialToken(object.Content)
		return err
	}
	return json.Unmarshal(raw, (*string)(t))
}

// loadTokens sets m.tokens. A token that tokenizer_config.json names has precedence over the same token
// in special_tokens_map.json, which is the older file.
func (m *Model) loadTokens(f folder, tc *tokenizerConfig) error {
	var old specialTokens
	if err := f.readJSON("special_tokens_map.json", &old); err != nil {
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
			return fmt.Errorf("%s sets %s to %q, but tokenizer.json has no such token: the files belong to different models", file,
				t.name, text)
		}
		m.tokens = append(m.tokens, namedToken{t.name, text})
	}

	return nil
}

// loadSurroundingTokens sets the special tokens that engines put before and after a completion prompt.
// The tokenizer classes named here use the switches of tokenizer_config.json. All other classes use the
// post-processor of tokenizer.json.
func (m *Model) loadSurroundingTokens(tc *tokenizerConfig) {
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

// loadTemplates sets the chat templates from the first of these files that has one: chat_template.jinja,
// tokenizer_config.json, chat_template.json. A template named tool_use renders chats with tools; a
// folder without it uses the default template for all chats.
func (m *Model) loadTemplates(f folder, tc *tokenizerConfig) error {
	sources := map[string]string{}
	file := "tokenizer_config.json"
	if err := addTemplates(tc.ChatTemplate, sources); err != nil {
		return fmt.Errorf("read %s: chat_template: %w", file, err)
	}

	switch raw, err := f.readFile("chat_template.jinja"); {
	case err == nil:
		file = "chat_template.jinja"
		sources = map[string]string{"default": string(raw)}
		if tools, err := f.readFile("additional_chat_templates/tool_use.jinja"); err == nil {
			sources["tool_use"] = string(tools)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case len(sources) == 0:
		file = "chat_template.json"
		var t struct {
			ChatTemplate json.RawMessage `json:"chat_template"`
		}
		if err := f.readJSON(file, &t); err != nil {
			return err
		}
		if err := addTemplates(t.ChatTemplate, sources); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
	}

	for name, target := range map[string]**chattemplate.Template{"default": &m.template, "tool_use": &m.withTools} {
		source, ok := sources[name]
		if !ok {
			continue
		}
		t, err := chattemplate.Parse(source)
		if err != nil {
			return fmt.Errorf("read %s: parse template %s: %w", file, name, err)
		}
		*target = t
	}

	if m.withTools == nil {
		m.withTools = m.template
	}
	m.inspect()
	return nil
}

// addTemplates adds the templates of a chat_template value to sources, by name. The value is one template,
// which is added as "default", or a list of {"name", "template"}, or null.
func addTemplates(raw json.RawMessage, sources map[string]string) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	if raw[0] == '"' {
		var source string
		err := json.Unmarshal(raw, &source)
		sources["default"] = source
		return err
	}

	var list []struct{ Name, Template string }
	err := json.Unmarshal(raw, &list)

	for _, t := range list {
		sources[t.Name] = t.Template
	}
	return err
}
