package tokenizer

// Tokenizer is a loaded vocabulary with the steps around it: added tokens, normalization,
// pre-tokenizer, byte-pair encoding.
type Tokenizer struct {
	normalSteps []normalStep
	stages      []stage
	decoding    decoding

	alphabet    *alphabet
	vocab       *vocabulary
	chars       *chars // set where symbols are characters, not bytes
	merges      *merges
	byteIDs     [256]uint32 // the token of each single byte, or none
	wholePieces idSet       // the tokens that a piece equal to them becomes
	// ignoreMerges makes a piece that is a token that token.
	ignoreMerges bool

	added      *matcher // found in the text as it is
	normalized *matcher // found in the normalized text
	addedIDs   map[string]uint32
	addedBytes map[uint32][]byte
	special    map[uint32]bool
	skipped    map[uint32]bool // what decoding leaves out with the special tokens
	byteTokens map[uint32]byte // the tokens like <0xE4>

	// longestFirst finds longer added tokens before shorter ones, wherever they stand: for GGUF
	// files, whose SentencePiece vocabularies have spm too.
	longestFirst bool
	spm          *spm

	before, after []uint32

	encoders encoders
}

// VocabSize is one more than the largest id.
func (t *Tokenizer) VocabSize() int {
	size := len(t.vocab.spans)
	for id := range t.addedBytes {
		size = max(size, int(id)+1)
	}
	return size
}

// ID is the id of a token as its file spells it: "<|im_end|>", or "Ġthe" (SentencePiece:
// "▁the") for " the".
func (t *Tokenizer) ID(token string) (id uint32, ok bool) {
	id, ok = t.addedIDs[token]
	if ok {
		return id, true
	}
	id = t.vocab.idOfSpelling(t.alphabet, []byte(token))
	return id, id != none
}

// Special reports whether id is a special token, which decoding for people leaves out.
func (t *Tokenizer) Special(id uint32) bool { return t.special[id] }

// Before returns the special tokens that engines put before a text. A rendered chat has them already.
// The caller must not change the slice.
func (t *Tokenizer) Before() []uint32 { return t.before }

// After returns the special tokens that engines put after a text; see Before.
func (t *Tokenizer) After() []uint32 { return t.after }
