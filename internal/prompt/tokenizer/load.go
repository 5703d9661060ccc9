package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Load reads a tokenizer.json. It keeps no reference to src. The error for a file with an unsupported part
// names the part.
func Load(src []byte) (*Tokenizer, error) {
	t, err := loadFile(src)
	if err != nil {
		return nil, fmt.Errorf("load tokenizer.json: %w", err)
	}
	return t, nil
}

// loadFile builds a tokenizer from a tokenizer.json. The symbols of the model are bytes if its pre-tokenizer
// is ByteLevel, else characters.
func loadFile(src []byte) (*Tokenizer, error) {
	f, err := readFile(src)
	if err != nil {
		return nil, err
	}
	if err = f.Model.checkSupported(); err != nil {
		return nil, err
	}

	t := &Tokenizer{encoders: newEncoders(), ignoreMerges: f.Model.IgnoreMerges}
	t.normalSteps, err = readNormalizer(nil, f.Normalizer)
	if err == nil {
		err = checkGrowth(t.normalSteps)
	}
	if err != nil {
		return nil, err
	}

	ofBytes := false
	t.stages, ofBytes, err = readPreTokenizer(f.PreTokenizer)
	if err != nil {
		return nil, err
	}

	t.decoding, err = readDecoder(f.Decoder)
	if err != nil {
		return nil, err
	}

	for i := range t.stages {
		if t.stages[i].scheme == prependFirst && !keepsBeginning(t.normalSteps) {
			return nil, errors.New("pre_tokenizer Metaspace with prepend_scheme first, after a normalizer that may change where a " +
				"text begins, is not supported")
		}
	}

	if ofBytes != t.decoding.byteLevel {
		return nil, errors.New("one of pre_tokenizer and decoder is ByteLevel and the other is not, which is not supported")
	}

	t.alphabet = byteLevel
	if !ofBytes {
		t.alphabet = plainText
		t.foldSpaces(f)
	}
	if err = t.loadModel(&f.Model); err != nil {
		return nil, err
	}
	if err = t.loadAdded(f.AddedTokens); err != nil {
		return nil, err
	}

	t.before, t.after, err = readPostProcessor(f.PostProcessor)
	if err != nil {
		return nil, err
	}
	t.measureTokens()
	return t, nil
}

// foldSpaces makes the vocabulary accept a space for ▁, so that normalizer and pre-tokenizer need not write ▁
// for each space of a text. It does so only if no step in between can see the difference. Without the rewriting,
// text is encoded without a copy.
func (t *Tokenizer) foldSpaces(f *file) {
	if t.ignoreMerges {
		return // whole words are looked up with ▁
	}
	if len(t.stages) == 1 && t.stages[0].kind == stageMetaspace {
		t.alphabet = markedText
		return
	}

	for _, a := range f.AddedTokens {
		if a.Normalized {
			return // this token is searched for in the text with ▁
		}
	}

	for i := range t.stages {
		if st := &t.stages[i]; st.kind != stageMatch || st.finder != literal(" ") || st.invert {
			return
		}
	}

	if steps, ok := foldable(t.normalSteps); ok {
		t.normalSteps = steps
		t.stages = nil
		t.alphabet = markedText
	}
}

// loadModel sets the vocabulary and the merges, and all fields that depend on them.
func (t *Tokenizer) loadModel(m *modelConfig) (err error) {
	t.vocab, err = readVocabulary(m.vocab, t.alphabet)
	if err != nil {
		return fmt.Errorf("model.vocab: %w", err)
	}

	if t.alphabet == byteLevel {
		err = t.loadBytesModel(m)
	} else {
		err = t.loadCharsModel(m)
	}

	if err == nil {
		t.findWholePieces(m.IgnoreMerges && t.chars == nil)
	}
	return err
}

// loadBytesModel loads a model whose symbols are bytes.
func (t *Tokenizer) loadBytesModel(m *modelConfig) (err error) {
	t.merges, err = readMerges(m.merges, t.alphabet, t.vocab, nil)
	if err != nil {
		return fmt.Errorf("model.merges: %w", err)
	}

	for b := range t.byteIDs {
		t.byteIDs[b] = t.vocab.lookup([]byte{byte(b)})
		if t.byteIDs[b] == none && (m.UnkToken != nil || m.ByteFallback) && inUTF8(byte(b)) {
			return fmt.Errorf("the vocabulary has no token for byte %#02x, but an unk_token or byte_fallback, which is not supported "+
				"with ByteLevel", b)
		}
	}
	return nil
}

// loadCharsModel loads a model whose symbols are characters.
func (t *Tokenizer) loadCharsModel(m *modelConfig) (err error) {
	c := newChars()
	t.chars = c
	c.markedSpaces = t.alphabet == markedText
	c.byteFallback = m.ByteFallback
	c.fuseUnknown = m.FuseUnk
	c.unknownMayJoin = !m.ByteFallback
	t.byteTokens = map[uint32]byte{}

	for i := range t.vocab.spans {
		id := uint32(i)
		if !t.vocab.has(id) {
			continue
		}
		text := t.vocab.bytesOf(id)
		if b, ok := byteToken(text); ok {
			t.byteTokens[id] = b
		}
		if r, n := utf8.DecodeRune(text); n == len(text) && !t.vocab.isUnspellable(id) {
			c.setSymbol(r, id)
		}
	}

	for b := range c.byteIDs {
		c.byteIDs[b] = t.vocab.lookup(fmt.Appendf(nil, "<0x%02X>", b))
		c.unknownMayJoin = c.unknownMayJoin || c.byteIDs[b] == none && inUTF8(byte(b))
	}
	if m.UnkToken != nil {
		c.unknown = t.vocab.idOfSpelling(t.alphabet, []byte(*m.UnkToken))
		if c.unknown == none {
			return fmt.Errorf("model.unk_token %q is not in the vocabulary", *m.UnkToken)
		}
	}

	t.merges, err = readMerges(m.merges, t.alphabet, t.vocab, func(l, r []byte, left, right uint32) {
		a, _ := utf8.DecodeLastRune(l)
		b, _ := utf8.DecodeRune(r)
		c.markJoined(a, b)
		c.unknownMayJoin = c.unknownMayJoin || left == c.unknown || right == c.unknown || slices.Contains(c.byteIDs[:], left) ||
			slices.Contains(c.byteIDs[:], right)
	})

	if err != nil {
		return fmt.Errorf("model.merges: %w", err)
	}
	return nil
}

// byteToken returns the byte of a token like <0xE4>. Like the decoder of the reference it also accepts a sign,
// as in <0x+4>.
func byteToken(token []byte) (byte, bool) {
	if len(token) != 6 || !bytes.HasPrefix(token, []byte("<0x")) || token[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(strings.TrimPrefix(string(token[3:5]), "+"), 16, 8)
	return byte(b), err == nil
}

// inUTF8 reports whether b can occur in UTF-8 text.
func inUTF8(b byte) bool { return b < 0xc0 || b > 0xc1 && b < 0xf5 }

// findWholePieces sets t.wholePieces: the tokens that are the result of encoding their own text. With
// ignoreMerges that is every token. Otherwise there are tokens that merging never produces.
func (t *Tokenizer) findWholePieces(ignoreMerges bool) {
	t.wholePieces = make(idSet, len(t.vocab.spans)/64+1)
	e := encoder{t: t}
	for i := range t.vocab.spans {
		id := uint32(i)
		if !t.vocab.has(id) || t.vocab.isUnspellable(id) {
			continue
		}
		if ignoreMerges {
			t.wholePieces.add(id)
		} else if t.encodesToItself(&e, id) {
			t.wholePieces.add(id)
		}
	}
}

// encodesToItself reports whether merging the text of id produces exactly id.
func (t *Tokenizer) encodesToItself(e *encoder, id uint32) bool {
	if t.chars == nil {
		out := e.mergeBytes(t.vocab.bytesOf(id))
		return len(out) == 1 && out[0] == id
	}
	e.out = e.out[:0]
	e.encodeChars(t.vocab.bytesOf(id))
	return len(e.out) == 1 && e.out[0] == id
}

// loadAdded loads the added tokens. It assigns their ids as the reference does, which ignores the ids in the
// file: a token of the vocabulary keeps its id, and the others get the next ids after the vocabulary. A file
// with other ids is refused. Of tokens with the same content the last one counts, at the place of the first.
func (t *Tokenizer) loadAdded(tokens []addedToken) error {
	t.added, t.normalized = newMatcher(), newMatcher()
	t.addedIDs = map[string]uint32{}
	t.addedBytes = map[uint32][]byte{}
	t.special = map[uint32]bool{}
	scratch := encoder{t: t}
	next := uint32(t.vocab.count)

	last := map[string]addedToken{}
	var order []string
	for _, a := range tokens {
		if a.Content == "" {
			continue
		}
		if _, repeated := last[a.Content]; !repeated {
			order = append(order, a.Content)
		}
		last[a.Content] = a
	}

	for _, content := range order {
		a := last[content]
		id := t.vocab.idOfSpelling(t.alphabet, []byte(content))
		if id == none {
			id = next
			next++
		}
		if id != a.ID {
			return fmt.Errorf("added token %q has id %d in the file, but engines give it %d: correct the file", content, a.ID, id)
		}
		matcher, pattern := t.added, content
		if a.Normalized {
			matcher = t.normalized
			pattern = strings.Clone(scratch.normalize(content, t.normalSteps))
			if pattern == "" {
				return fmt.Errorf("added token %q is empty after normalization", content)
			}
		}
		if err := matcher.addToken(a, pattern); err != nil {
			return err
		}
		t.longestAdded = max(t.longestAdded, len(content), len(pattern))
		t.addedIDs[content], t.addedBytes[id] = id, t.decodedBytes(pattern)
		if t.chars != nil {
			delete(t.byteTokens, id)
			if b, ok := byteToken([]byte(pattern)); ok {
				t.byteTokens[id] = b
			}
		}
		t.special[id] = a.Special
	}
	return nil
}

// decodedBytes returns the bytes of an added token in decoded text. With ByteLevel, a content in that alphabet
// stands for bytes; all other content stands for itself.
func (t *Tokenizer) decodedBytes(token string) []byte {
	if t.alphabet == byteLevel {
		if b, ok := byteLevel.decode(nil, []byte(token)); ok {
			return b
		}
	}
	return []byte(token)
}
