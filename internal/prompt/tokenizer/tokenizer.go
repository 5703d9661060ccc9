package tokenizer

// Tokenizer is a loaded vocabulary with the steps around it: added tokens, normalization,
// pre-tokenizer, byte-pair encoding.
type Tokenizer struct {
	normalSteps []normalStep
	stages      []stage
	decoding    decoding

	alphabet    *alphabet
	vocab       *vocabulary
	chars       *chars // nil if symbols are bytes
	merges      *merges
	byteIDs     [256]uint32 // the token of each single byte, or none
	wholePieces idSet       // the tokens that are the encoding of their own text
	// ignoreMerges makes a piece that equals a token that token, without merging.
	ignoreMerges bool

	addedTokens
	byteTokens map[uint32]byte // tokens like <0xE4>
	spm        *spm            // nil but for SentencePiece vocabularies of GGUF files

	before, after []uint32 // special tokens that engines put around a text

	mostPerToken int // see measureTokens
	dropsSpace   bool

	encoders encoders
}

// addedTokens are the tokens of a tokenizer that are searched for in a text before it is cut into pieces.
type addedTokens struct {
	added      *matcher          // in the unchanged text
	normalized *matcher          // in the normalized text
	addedIDs   map[string]uint32 // by content
	addedBytes map[uint32][]byte // the bytes to which they decode
	special    map[uint32]bool
	// longestFirst searches the whole text for longer ones before shorter ones, for GGUF files.
	longestFirst bool
	longestAdded int // bytes of the longest one
}

// VocabSize returns the largest id plus one.
func (t *Tokenizer) VocabSize() int {
	size := len(t.vocab.spans)
	for id := range t.addedBytes {
		size = max(size, int(id)+1)
	}
	return size
}

// ID returns the id of a token in the spelling of its file: "<|im_end|>", or "Ġthe" (SentencePiece: "▁the") for
// " the".
func (t *Tokenizer) ID(token string) (id uint32, ok bool) {
	id, ok = t.addedIDs[token]
	if ok {
		return id, true
	}
	id = t.vocab.idOfSpelling(t.alphabet, []byte(token))
	return id, id != none
}

// Before returns the special tokens that engines put before a text. A rendered chat has them already.
// The caller must not change the slice.
func (t *Tokenizer) Before() []uint32 { return t.before }

// After returns the special tokens that engines put after a text; see Before.
func (t *Tokenizer) After() []uint32 { return t.after }
