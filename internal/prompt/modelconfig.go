package prompt

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// modelConfig is the part of config.json that affects prompts. A multimodal model has the values of its
// language model in TextConfig.
type modelConfig struct {
	contextLengths
	VocabSize     int          `json:"vocab_size"`
	TextConfig    *modelConfig `json:"text_config"`
	Architectures []string     `json:"architectures"`
	Type          string       `json:"model_type"`
}

// mediaKeys are the keys of config.json that only models with images, audio or video as input have.
var mediaKeys = []string{"vision_config", "audio_config", "visual", "vision_encoder", "mm_vision_tower", "image_token_id",
	"image_token_index",
	"audio_token_id", "video_token_id", "img_processor", "embd_layer", "thinker_config"}

// textOnly reports whether the model of a folder certainly accepts no other input than text. Such a folder
// names only causal language models and has no file or key that other inputs need. In doubt textOnly
// returns false, because a wrong true would refuse valid requests.
func textOnly(f folder, c *modelConfig) (bool, error) {
	causal := len(c.Architectures) > 0 && c.TextConfig == nil
	for _, a := range c.Architectures {
		causal = causal && strings.HasSuffix(a, "ForCausalLM")
	}
	if !causal || f.has("preprocessor_config.json") || f.has("processor_config.json") {
		return false, nil
	}

	var keys map[string]json.RawMessage
	if err := f.readJSON("config.json", &keys); err != nil {
		return false, err
	}

	for _, key := range mediaKeys {
		if _, ok := keys[key]; ok {
			return false, nil
		}
	}
	return true, nil
}

// contextLengths holds the context length under each key that models use for it, in tokens, and the
// rotary scaling that extends it.
type contextLengths struct {
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

// contextLength returns the context length that an engine derives when its --max-model-len is not set: the
// smallest length in the file, times the factor of the rotary scaling. It returns +Inf if the file has no
// length.
func (l *contextLengths) contextLength() float64 {
	length := math.Inf(1)
	for _, n := range []float64{l.MaxPositionEmbeddings, l.NPositions, l.MaxSeqLen, l.SeqLength, l.ModelMaxLength, l.MaxSequenceLength,
		l.MaxSeqLength} {
		if n >= 1 {
			length = min(length, n)
		}
	}

	if s := l.RopeScaling; s != nil && s.Factor > 0 {
		// Models name the kind of scaling in rope_type, in type, or in both. The length in the files of
		// these kinds already includes the scaling.
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

// loadConfig sets what config.json decides: whether the model accepts only text, its context length and the
// size of its vocabulary. Without config.json the vocabulary is tokenizer.json's.
func (m *Model) loadConfig(f folder, tc *tokenizerConfig) error {
	var c modelConfig
	err := f.readJSON("config.json", &c)
	if err != nil {
		return err
	}

	m.textOnly, err = textOnly(f, &c)
	if err != nil {
		return err
	}
	m.harmony = c.Type == "gpt_oss"
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
		return fmt.Errorf("config.json has vocab_size %d, but tokenizer.json has ids up to %d: the files belong to different models",
			c.VocabSize, m.tokenizer.VocabSize()-1)
	}
	return nil
}
