package tokenizer

import "errors"

// Tokenizer is a loaded vocabulary.
type Tokenizer struct{}

// Load reads a tokenizer.json. It keeps no reference to json.
func Load(json []byte) (*Tokenizer, error) {
	return nil, errors.New("load tokenizer.json: no kind of vocabulary is supported yet")
}

// Encode appends the ids of text to dst. Special tokens are not added; those that stand in
// the text are recognised.
func (t *Tokenizer) Encode(dst []uint32, text string) []uint32 { return dst }
