package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// loadBPE builds the tokenizer of a byte-level vocabulary with merges.
func (m *metadata) loadBPE() (*Tokenizer, surroundings, error) {
	around := surroundings{bos: 11} // llama.cpp's own default for this type
	name := m.text("tokenizer.ggml.pre")
	pre, ok := llamaPre[name]
	n := len(m.tokens)
	switch {
	case name == "" || name == "default":
		return nil, around, errors.New("the file does not name its pre-tokenizer (tokenizer.ggml.pre), so that engines guess it: " +
			"convert the model again")
	case !ok:
		return nil, around, fmt.Errorf("pre-tokenizer %q is not supported", name)
	case n == 0 || n > maxTokens:
		return nil, around, fmt.Errorf("the vocabulary has %d tokens; 1 to %d are accepted", n, maxTokens)
	case len(m.types) != n:
		return nil, around, fmt.Errorf("the vocabulary has %d tokens but %d token types", n, len(m.types))
	case m.merges == nil:
		return nil, around, errors.New("the vocabulary has no merges")
	}

	t := &Tokenizer{
		encoders: newEncoders(), alphabet: byteLevel, stages: pre.stages, ignoreMerges: pre.ignoreMerges,
		addedTokens: addedTokens{longestFirst: true},
	}
	t.decoding = decoding{byteLevel: true}
	around.addBOS = pre.addBOS
	if pre.noBOS {
		around.bos = -1
	}
	if err := t.loadTokens(m.tokens); err != nil {
		return nil, around, err
	}
	if err := t.loadMerges(m.merges); err != nil {
		return nil, around, err
	}

	t.findWholePieces(pre.ignoreMerges)
	return t, around, t.loadSpecials(m)
}

// loadTokens sets the vocabulary from the tokens of a file, whose indexes are their ids.
func (t *Tokenizer) loadTokens(tokens []string) error {
	t.vocab = &vocabulary{unspellable: map[string]uint32{}}
	var buf []byte
	for i, token := range tokens {
		id := uint32(i)
		if token == "" {
			token = fmt.Sprintf("[EMPTY_%d]", i) // llama.cpp's name for it
		}
		b, ok := byteLevel.decode(buf[:0], []byte(token))
		buf = b
		if !ok {
			t.vocab.unspellable[token] = id
			b = []byte(token)
		}
		if err := t.vocab.addToken(b, id); err != nil {
			return err
		}
	}

	t.vocab.arena = slices.Clip(t.vocab.arena)
	t.vocab.buildIndex()

	for b := range t.byteIDs {
		t.byteIDs[b] = t.vocab.lookup([]byte{byte(b)})
		if t.byteIDs[b] == none && inUTF8(byte(b)) {
			return fmt.Errorf("the vocabulary has no token for byte %#02x", b)
		}
	}
	return nil
}

// loadMerges reads merges, which are written as "left right", in the order of their ranks. A pair that comes
// twice has the earlier rank, as in llama.cpp.
func (t *Tokenizer) loadMerges(lines []string) (err error) {
	t.merges, err = newMerges(len(lines))
	if err != nil {
		return err
	}

	for i, line := range lines {
		at := strings.IndexByte(line[min(1, len(line)):], ' ') + 1
		if at == 0 {
			return fmt.Errorf("merge %d: %q is not two tokens separated by one space", i, line)
		}
		left, right := []byte(line[:at]), []byte(line[at+1:])
		a, b := t.vocab.idOfSpelling(byteLevel, left), t.vocab.idOfSpelling(byteLevel, right)
		joined := t.vocab.idOfSpelling(byteLevel, append(left, right...))
		if a == none || b == none || joined == none {
			return fmt.Errorf("merge %d: the vocabulary lacks %q, %q or their concatenation", i, line[:at], right)
		}
		if t.merges.rank(a, b) == noRank {
			t.merges.addMerge(a, b, joined)
		}
	}

	return nil
}
