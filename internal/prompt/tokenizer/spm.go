package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
	"unsafe"
)

// spm is byte-pair encoding as SentencePiece has it: no pre-tokenizer, text is cut into
// characters, and the pair whose joined text has the best score is joined first. A character
// that is no token is spelled in bytes.
//
// Without a pre-tokenizer a whole text would be one piece. But no token is ever made across two
// characters that stand beside each other in no token, so that a text may be cut there: the
// pieces are short, and the cache of pieces works as it does elsewhere.
type spm struct {
	// ascii and chars are the symbols of characters. A character that occurs in tokens but is
	// none itself has a symbol from first on, and is written as what spelled says.
	ascii   [utf8.RuneSelf]uint32
	chars   map[rune]uint32
	first   uint32
	spelled [][]uint32
	bytes   [256]uint32
	// joined has a bit for each pair of characters that some token holds side by side, by
	// hash: a collision only makes a piece longer.
	joined []uint64
	// spacePrefix puts a space before text at the beginning and behind special tokens.
	spacePrefix bool
}

const joinedBits = 22

func joinedHash(a, b rune) uint32 {
	return uint32((uint64(a)<<21 | uint64(b)) * 0x9e3779b97f4a7c15 >> (64 - joinedBits))
}

func (s *spm) mayJoin(a, b rune) bool {
	h := joinedHash(a, b)
	return s.joined[h>>6]&(1<<(h&63)) != 0
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

// controlLike are the tokens that llama.cpp takes for special whatever their type.
var controlLike = []string{"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>",
	"</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
	"<｜end▁of▁sentence｜>", "[e~[", "<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"}

// firstControlLike are groups of tokens of which llama.cpp takes one for special, whichever it
// meets first in a hash table; a file with two that are not marked cannot be done exactly.
var firstControlLike = [][]string{
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
		return nil, fmt.Errorf("it has %d tokens", n)
	case len(m.scores) != n || len(m.types) != n:
		return nil, fmt.Errorf("it has %d tokens, %d scores and %d token types", n, len(m.scores), len(m.types))
	}
	t := &Tokenizer{encoders: newEncoders(), spm: &spm{chars: map[rune]uint32{}, first: uint32(n), joined: make([]uint64, 1<<joinedBits/64)}}
	t.spm.spacePrefix = m.flag("tokenizer.ggml.add_space_prefix", true)
	t.vocab = &vocabulary{}
	for id, token := range m.tokens {
		if token == "" || !utf8.ValidString(token) {
			return nil, fmt.Errorf("token %d is empty or not UTF-8", id)
		}
		if err := t.vocab.add([]byte(token), uint32(id)); err != nil {
			return nil, err
		}
	}
	t.vocab.index()
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

// loadBytes finds the tokens that stand for single bytes.
func (t *Tokenizer) loadBytes() error {
	for b := range t.spm.bytes {
		id := t.vocab.lookup(fmt.Appendf(nil, "<0x%02X>", b))
		if id == none {
			id = t.vocab.lookup([]byte{byte(b)})
		}
		if id == none {
			return fmt.Errorf("there is no token for byte %#02x", b)
		}
		t.spm.bytes[b] = id
	}
	t.byteIDs = t.spm.bytes
	return nil
}

// loadChars gives each character that tokens hold a symbol, and notes which stand together.
func (t *Tokenizer) loadChars(tokens []string) error {
	s := t.spm
	for i := range s.ascii {
		s.ascii[i] = none
	}
	for _, token := range tokens {
		last := rune(-1)
		for i, r := range token {
			if last >= 0 {
				h := joinedHash(last, r)
				s.joined[h>>6] |= 1 << (h & 63)
			}
			last = r
			if _, known := s.chars[r]; known {
				continue
			}
			char := token[i : i+utf8.RuneLen(r)]
			id := t.vocab.lookup([]byte(char))
			if id == none {
				id = s.first + uint32(len(s.spelled))
				s.spelled = append(s.spelled, s.spell(char))
			}
			if s.chars[r] = id; r < utf8.RuneSelf {
				s.ascii[r] = id
			}
		}
	}
	if int(s.first)+len(s.spelled) > maxTokens {
		return errors.New("it has too many tokens and characters")
	}
	return nil
}

func (s *spm) spell(char string) (ids []uint32) {
	for i := range len(char) {
		ids = append(ids, s.bytes[char[i]])
	}
	return ids
}

// loadPairs finds every pair of symbols whose joined text is a token. The pairs of one token
// share its rank: better scores first. Tokens of equal score share a turn, in which the
// leftmost pair is joined first.
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
			l, r := t.symbol(token[:i]), t.symbol(token[i:])
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
	if t.merges, err = newMerges(len(pairs)); err != nil {
		return err
	}
	m := t.merges
	turn, tied := uint32(0), false
	for i, p := range pairs {
		if i == 0 || pairs[i-1].to != p.to {
			if i > 0 && scores[pairs[i-1].to] == scores[p.to] {
				tied = true
			} else {
				turn = uint32(len(m.becomes))
			}
			m.becomes = append(m.becomes, p.to)
			m.turns = append(m.turns, turn)
		}
		m.put(p.left, p.right, uint64(len(m.becomes)-1))
	}
	if !tied {
		m.turns = nil
	}
	return nil
}

// symbol is the symbol of a text: its token, or that of the one character it is.
func (t *Tokenizer) symbol(s string) uint32 {
	if r, n := utf8.DecodeRuneInString(s); n == len(s) {
		if id, ok := t.spm.chars[r]; ok {
			return id
		}
	}
	return t.vocab.lookup(view(s))
}

// loadSpecials finds the tokens that are searched for in text.
func (t *Tokenizer) loadSpecials(m *metadata) error {
	types := slices.Clone(m.types)
	for _, name := range controlLike {
		if id := t.vocab.lookup([]byte(name)); id != none && types[id] != typeUser {
			types[id] = typeControl
		}
	}
	for _, group := range firstControlLike {
		var found []uint32
		marked := true
		for _, name := range group {
			if id := t.vocab.lookup([]byte(name)); id != none {
				found = append(found, id)
				marked = marked && (types[id] == typeControl || types[id] == typeUser)
			}
		}
		if len(found) > 1 && !marked {
			return fmt.Errorf("tokens %q and %q are alike, and not both marked as special: which one is, engines leave to chance",
				m.tokens[found[0]], m.tokens[found[1]])
		}
		for _, id := range found {
			if types[id] != typeUser {
				types[id] = typeControl
			}
		}
	}
	t.added, t.normalized = newMatcher(), newMatcher()
	t.addedIDs, t.addedBytes, t.special = map[string]uint32{}, map[uint32][]byte{}, map[uint32]bool{}
	for id, kind := range types {
		token := m.tokens[id]
		switch kind {
		case typeControl, typeUser, typeUnknown:
			if err := t.added.add(addedToken{ID: uint32(id), Content: token}, token); err != nil {
				return err
			}
			t.addedIDs[token], t.addedBytes[uint32(id)] = uint32(id), []byte(token)
			t.special[uint32(id)] = kind != typeUser
		case typeByte:
			if b := slices.Index(t.spm.bytes[:], uint32(id)); b >= 0 {
				t.addedBytes[uint32(id)] = []byte{byte(b)}
			}
		}
	}
	return nil
}

const lowerBlock = "▁" // what SentencePiece writes for a space

// spmText encodes what stands between special tokens.
func (e *encoder) spmText(text string) {
	buf := e.spaced[:0]
	if e.t.spm.spacePrefix && e.afterSpecial {
		buf = append(buf, lowerBlock...)
	}
	e.afterSpecial = false
	for i := range len(text) {
		if text[i] == ' ' {
			buf = append(buf, lowerBlock...)
		} else {
			buf = append(buf, text[i])
		}
	}
	e.spaced = buf
	s := unsafe.String(unsafe.SliceData(buf), len(buf))
	start, last := 0, rune(-1)
	for i := 0; i < len(s); {
		r, n := rune(s[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRuneInString(s[i:])
		}
		if last >= 0 && !e.t.spm.mayJoin(last, r) {
			e.piece(s[start:i])
			start = i
		}
		last = r
		i += n
	}
	if start < len(s) {
		e.piece(s[start:])
	}
}

// spmMerge appends the ids of a piece. A character that no token holds joins nothing, so that
// what stands on its two sides is merged apart.
func (e *encoder) spmMerge(key []byte) {
	s := e.t.spm
	e.symbols = e.symbols[:0]
	for i := 0; i < len(key); {
		r, n := rune(key[i]), 1
		id := none
		if r < utf8.RuneSelf {
			id = s.ascii[r]
		} else if r, n = utf8.DecodeRune(key[i:]); r != utf8.RuneError || n > 1 {
			if known, ok := s.chars[r]; ok {
				id = known
			}
		}
		if id == none {
			e.spmFlush()
			for _, b := range key[i : i+n] {
				e.out = append(e.out, s.bytes[b])
			}
		} else {
			e.symbols = append(e.symbols, id)
		}
		i += n
	}
	e.spmFlush()
}

func (e *encoder) spmFlush() {
	s := e.t.spm
	for _, id := range e.merger.merge(e.t.merges, e.symbols) {
		if id < s.first {
			e.out = append(e.out, id)
		} else {
			e.out = append(e.out, s.spelled[id-s.first]...)
		}
	}
	e.symbols = e.symbols[:0]
}
