package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
	"unsafe"
)

// spm has the settings of llama.cpp's encoding for SentencePiece vocabularies. It differs from other byte-pair
// encoding in three points:
//   - The pair whose joined text has the best score is joined first.
//   - A character without a token becomes the tokens of its bytes.
//   - Longer special tokens are found before shorter ones.
type spm struct {
	// spacePrefix puts a space before text at the beginning and after special tokens.
	spacePrefix bool
}

// The types of tokens in a GGUF file.
const (
	typeNormal = 1 + iota
	typeUnknown
	typeControl
	typeUser
	typeUnused
	typeByte
)

// specialNames are the tokens that llama.cpp treats as special, whatever type the file gives them.
var specialNames = []string{"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
	"<|endoftext|>",
	"</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>",
	"<|tool_response>",
	"<｜end▁of▁sentence｜>", "[e~[", "<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"}

// specialNameGroups are groups of names with the same role. llama.cpp treats only one token of a group as
// special: the first in the order of a hash table, which varies. So a vocabulary with two of them is
// supported only if the file marks each as special.
var specialNameGroups = [][]string{
	{"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>", "<|prefix|>"},
	{"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>", "<|suffix|>"},
	{"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>", "<|middle|>"},
	{"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"},
	{"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"},
	{"<|file_sep|>"},
}

// loadSPM builds the tokenizer of a SentencePiece vocabulary.
func (m *metadata) loadSPM() (*Tokenizer, error) {
	n := len(m.tokens)
	switch {
	case n == 0 || n > maxTokens:
		return nil, fmt.Errorf("the vocabulary has %d tokens; 1 to %d are accepted", n, maxTokens)
	case len(m.scores) != n || len(m.types) != n:
		return nil, fmt.Errorf("the vocabulary has %d tokens, %d scores and %d token types", n, len(m.scores), len(m.types))
	}

	t := &Tokenizer{
		encoders: newEncoders(), alphabet: plainText, addedTokens: addedTokens{longestFirst: true},
		spm: &spm{spacePrefix: m.flag("tokenizer.ggml.add_space_prefix", true)},
	}
	t.chars = newChars()
	t.chars.firstPart, t.chars.unknownApart = uint32(n), true
	t.vocab = &vocabulary{}

	for id, token := range m.tokens {
		if token == "" || !utf8.ValidString(token) {
			return nil, fmt.Errorf("token %d is empty or not UTF-8", id)
		}
		if err := t.vocab.addToken([]byte(token), uint32(id)); err != nil {
			return nil, err
		}
	}

	t.vocab.buildIndex()
	t.wholePieces = make(idSet, n/64+1)
	t.decoding = decoding{tokenSteps: []decodeStep{{kind: decodeReplace, from: lowerBlock, to: " "}}}
	if err := t.loadBytes(); err != nil {
		return nil, err
	}
	if err := t.loadChars(m.tokens); err != nil {
		return nil, err
	}
	if err := t.loadPairs(m.tokens, m.scores); err != nil {
		return nil, err
	}
	return t, t.loadSpecials(m)
}

// loadBytes sets the token of each byte.
func (t *Tokenizer) loadBytes() error {
	for b := range t.chars.byteIDs {
		id := t.vocab.lookup(fmt.Appendf(nil, "<0x%02X>", b))
		if id == none {
			id = t.vocab.lookup([]byte{byte(b)})
		}
		if id == none {
			return fmt.Errorf("the vocabulary has no token for byte %#02x", b)
		}
		t.chars.byteIDs[b] = id
	}

	t.byteIDs = t.chars.byteIDs
	return nil
}

// loadChars sets a symbol for each character that occurs in a token, and marks the pairs of characters that
// occur together in a token. Text is never cut inside such a pair.
func (t *Tokenizer) loadChars(tokens []string) error {
	c := t.chars
	for _, token := range tokens {
		last := rune(-1)
		for i, r := range token {
			if last >= 0 {
				c.markJoined(last, r)
			}
			last = r
			if c.symbol(r) != none {
				continue
			}
			char := token[i : i+utf8.RuneLen(r)]
			id := t.vocab.lookup([]byte(char))
			if id == none {
				id = c.firstPart + uint32(len(c.partIDs))
				c.partIDs = append(c.partIDs, c.byteIDsOf(char))
			}
			c.setSymbol(r, id)
		}
	}

	if int(c.firstPart)+len(c.partIDs) > maxTokens {
		return fmt.Errorf("the vocabulary has more than %d tokens and characters", maxTokens)
	}
	return nil
}

// byteIDsOf returns the tokens of the bytes of char.
func (c *chars) byteIDsOf(char string) (ids []uint32) {
	for i := range len(char) {
		ids = append(ids, c.byteIDs[char[i]])
	}
	return ids
}

// loadPairs sets the merges: every pair of symbols whose joined text is a token. SentencePiece files have
// scores instead of merges. All pairs of one token have the same rank, and a better score has a lower rank.
// Tokens of equal score have the same priority, so that the leftmost of their pairs is joined first.
func (t *Tokenizer) loadPairs(tokens []string, scores []float32) error {
	type pair struct{ left, right, to uint32 }
	var pairs []pair
	for id, token := range tokens {
		if math.IsNaN(float64(scores[id])) {
			return fmt.Errorf("the score of token %d is not a number", id)
		}
		for i := range token {
			if i == 0 {
				continue
			}
			l, r := t.symbolOf(token[:i]), t.symbolOf(token[i:])
			if l != none && r != none {
				pairs = append(pairs, pair{l, r, uint32(id)})
			}
		}
	}

	slices.SortStableFunc(pairs, func(a, b pair) int {
		switch x, y := scores[a.to], scores[b.to]; {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return int(a.to) - int(b.to)
	})

	var err error
	t.merges, err = newMerges(len(pairs))
	if err != nil {
		return err
	}

	m := t.merges
	priority, tied := uint32(0), false
	for i, p := range pairs {
		if i == 0 || pairs[i-1].to != p.to {
			if i > 0 && scores[pairs[i-1].to] == scores[p.to] {
				tied = true
			} else {
				priority = uint32(len(m.joined))
			}
			m.joined = append(m.joined, p.to)
			m.priorities = append(m.priorities, priority)
		}
		m.setRank(p.left, p.right, uint64(len(m.joined)-1))
	}

	if !tied {
		m.priorities = nil
	}
	return nil
}

// symbolOf returns the symbol of a text: of a single character its symbol, otherwise the token or none.
func (t *Tokenizer) symbolOf(s string) uint32 {
	if r, n := utf8.DecodeRuneInString(s); n == len(s) {
		if id := t.chars.symbol(r); id != none {
			return id
		}
	}
	return t.vocab.lookup(bytesOf(s))
}

// loadSpecials sets the tokens that are searched for in text before it is encoded. Types come from the file, corrected as llama.cpp
// does by the names of the tokens.
func (t *Tokenizer) loadSpecials(m *metadata) error {
	types := slices.Clone(m.types)
	for _, name := range specialNames {
		if id := t.vocab.idOfSpelling(t.alphabet, []byte(name)); id != none && types[id] != typeUser {
			types[id] = typeControl
		}
	}

	for _, group := range specialNameGroups {
		var found []uint32
		marked := true
		for _, name := range group {
			if id := t.vocab.idOfSpelling(t.alphabet, []byte(name)); id != none {
				found = append(found, id)
				marked = marked && (types[id] == typeControl || types[id] == typeUser)
			}
		}
		if len(found) > 1 && !marked {
			return fmt.Errorf("tokens %q and %q have the same role but are not both marked as special: llama.cpp treats one of them "+
				"as special, at random", m.tokens[found[0]], m.tokens[found[1]])
		}
		for _, id := range found {
			if types[id] != typeUser {
				types[id] = typeControl
			}
		}
	}

	t.added, t.normalized = newMatcher(), newMatcher()
	t.addedIDs = map[string]uint32{}
	t.addedBytes = map[uint32][]byte{}
	t.special = map[uint32]bool{}
	t.byteTokens = map[uint32]byte{}

	for id, kind := range types {
		token := m.tokens[id]
		switch kind {
		case typeControl, typeUser, typeUnknown:
			if err := t.added.addToken(addedToken{ID: uint32(id), Content: token}, token); err != nil {
				return err
			}
			t.addedIDs[token], t.addedBytes[uint32(id)] = uint32(id), []byte(token)
			t.special[uint32(id)] = kind != typeUser
		case typeByte:
			if t.chars == nil {
				continue
			}
			if b := slices.Index(t.chars.byteIDs[:], uint32(id)); b >= 0 {
				t.byteTokens[uint32(id)] = byte(b)
			}
		}
	}

	return nil
}

// encodeSPMText encodes the text between two special tokens.
func (e *encoder) encodeSPMText(text string) {
	buf := e.spmBuffer[:0]
	if e.t.spm.spacePrefix && e.afterSpecial {
		buf = append(buf, lowerBlock...)
	}

	e.afterSpecial = false
	buf = appendMarked(buf, text)
	e.spmBuffer = buf
	if len(buf) > 0 {
		e.encodeInParts(unsafe.String(unsafe.SliceData(buf), len(buf)))
	}
}
