package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
)

// file is a decoded tokenizer.json, in which the vocabulary and the merges are still JSON.
type file struct {
	Version       string
	AddedTokens   []addedToken
	Normalizer    *normalizerConfig
	PreTokenizer  *preTokenizerConfig
	PostProcessor *postProcessorConfig
	Decoder       *decoderConfig
	Model         modelConfig
}

// modelConfig is the model of a tokenizer.json.
type modelConfig struct {
	Type                    string   `json:"type"`
	Dropout                 *float64 `json:"dropout"`
	UnkToken                *string  `json:"unk_token"`
	ContinuingSubwordPrefix *string  `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string  `json:"end_of_word_suffix"`
	ByteFallback            bool     `json:"byte_fallback"`
	IgnoreMerges            bool     `json:"ignore_merges"`
	FuseUnk                 bool     `json:"fuse_unk"`

	vocab, merges []byte
}

// readFile decodes a tokenizer.json.
func readFile(src []byte) (*file, error) {
	if err := validText(src); err != nil {
		return nil, err
	}
	f := &file{}
	t := newJSONReader(src)
	err := t.readObject(func(key []byte) error {
		k := string(key)
		if k == "model" {
			return f.Model.readFrom(t)
		}
		raw, err := t.skipValue()
		if err != nil {
			return err
		}
		target := map[string]any{"version": &f.Version, "added_tokens": &f.AddedTokens, "normalizer": &f.Normalizer,
			"pre_tokenizer": &f.PreTokenizer, "post_processor": &f.PostProcessor, "decoder": &f.Decoder}[k]
		if target == nil {
			return nil // truncation and padding, which engines switch off
		}
		if err := json.Unmarshal(raw, target); err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
		return nil
	})

	if err != nil {
		return f, err
	}
	t.SkipSpace()
	if t.At < len(src) {
		t.Fail("unexpected data after the object")
	}
	return f, t.failure()
}

// readFrom reads the model. It keeps the vocabulary and the merges as JSON and decodes the rest with
// encoding/json.
func (m *modelConfig) readFrom(t *jsonReader) error {
	rest := []byte{'{'}
	err := t.readObject(func(key []byte) error {
		k := string(key)
		raw, err := t.skipValue()
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

// checkSupported returns an error for a model other than byte-pair encoding, and for options of it that are
// not supported.
func (m *modelConfig) checkSupported() error {
	set := func(s *string) bool { return s != nil && *s != "" }
	switch {
	case m.Type != "BPE" && m.Type != "":
		return fmt.Errorf("model type %q is not supported; BPE is", m.Type)
	case m.vocab == nil || m.merges == nil:
		return errors.New("the model has no vocab or no merges")
	case m.Dropout != nil && *m.Dropout != 0:
		return errors.New("dropout is random, so that engines compute other ids: set it to null")
	case set(m.ContinuingSubwordPrefix) || set(m.EndOfWordSuffix):
		return errors.New("continuing_subword_prefix and end_of_word_suffix are not supported")
	}

	return nil
}
