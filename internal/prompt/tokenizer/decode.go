package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"
)

// decoding is the decoder of a vocabulary: how ids become text.
type decoding struct {
	// byteLevel is set if a token stands for bytes, which may be a part of a character.
	byteLevel bool
	// tokenSteps apply to each token.
	tokenSteps []decodeStep
}

// decodeStep is one change of a token or of the text.
type decodeStep struct {
	kind     decodeKind
	from, to string
	// maxStrip bounds the number of times that decodeStrip removes from at the beginning.
	maxStrip int
}

type decodeKind uint8

const (
	decodeReplace   decodeKind = iota // from becomes to
	decodeStrip                       // from is removed at the beginning
	decodeMetaspace                   // ▁ becomes a space
)

type decoderConfig struct {
	Type          string          `json:"type"`
	Decoders      []decoderConfig `json:"decoders"`
	Pattern       patternConfig   `json:"pattern"`
	Content       string          `json:"content"`
	Start         int             `json:"start"`
	Stop          int             `json:"stop"`
	Replacement   string          `json:"replacement"`
	PrependScheme *string         `json:"prepend_scheme"`
	AddPrefix     *bool           `json:"add_prefix_space"`
}

// readDecoder reads a decoder. It refuses decoders that cannot run on a stream of tokens, because they need text
// before or after the current token.
func readDecoder(c *decoderConfig) (decoding, error) {
	var d decoding
	if c == nil {
		return d, nil
	}

	fused := false
	fallback := false
	growth := 1
	var read func(c *decoderConfig) error
	read = func(c *decoderConfig) error {
		if c.Type == "Sequence" {
			for i := range c.Decoders {
				if err := read(&c.Decoders[i]); err != nil {
					return err
				}
			}
			return nil
		}
		switch {
		case d.byteLevel && c.Type != "Fuse":
			return fmt.Errorf("decoder %s after ByteLevel is not supported", c.Type)
		case c.Type == "ByteLevel":
			if len(d.tokenSteps) > 0 || fallback || fused {
				return errors.New("decoder ByteLevel after another is not supported")
			}
			d.byteLevel = true
		case c.Type == "ByteFallback":
			if fused || fallback {
				return errors.New("decoder ByteFallback after Fuse is not supported")
			}
			fallback = true
		case c.Type == "Fuse":
			fused = true
		default:
			step, err := c.textStep(fused)
			if err != nil {
				return err
			}
			if step.kind == decodeReplace {
				growth *= max(1, (len(step.to)+len(step.from)-1)/len(step.from))
			}
			if growth > maxGrowth {
				return fmt.Errorf("the decoders may make a token more than %d times longer, which is not supported", maxGrowth)
			}
			switch {
			case fused: // it applies to the whole text, which is not decoded here
			case fallback:
				return fmt.Errorf("decoder %s between ByteFallback and Fuse is not supported", c.Type)
			default:
				d.tokenSteps = append(d.tokenSteps, step)
			}
		}
		return nil
	}

	return d, read(c)
}

// textStep returns the step of a decoder that changes text. Fused is set if the step applies to the
// concatenated text instead of each token.
func (c *decoderConfig) textStep(fused bool) (decodeStep, error) {
	switch c.Type {
	case "Replace":
		if c.Pattern.String == nil || *c.Pattern.String == "" || fused && utf8.RuneCountInString(*c.Pattern.String) > 1 {
			return decodeStep{}, errors.New("decoder Replace is supported only for plain text, and after Fuse only for one character")
		}
		return decodeStep{kind: decodeReplace, from: *c.Pattern.String, to: c.Content}, nil
	case "Strip":
		if c.Stop != 0 || c.Start < 0 || utf8.RuneCountInString(c.Content) != 1 {
			return decodeStep{}, errors.New("decoder Strip at the end is not supported; Strip of one character at the start is")
		}
		return decodeStep{kind: decodeStrip, from: c.Content, maxStrip: c.Start}, nil
	case "Metaspace":
		if fused || utf8.RuneCountInString(c.Replacement) != 1 {
			return decodeStep{}, errors.New("decoder Metaspace after Fuse is not supported")
		}
		_, err := readScheme(c.PrependScheme, c.AddPrefix)
		return decodeStep{kind: decodeMetaspace, from: c.Replacement}, err
	}
	return decodeStep{}, fmt.Errorf("decoder %q is not supported; ByteLevel, Replace, ByteFallback, Fuse, Strip and Metaspace are", c.Type)
}

// apply returns token after the step.
func (st *decodeStep) apply(token []byte) []byte {
	switch st.kind {
	case decodeStrip:
		for range st.maxStrip {
			rest, ok := bytes.CutPrefix(token, []byte(st.from))
			if !ok {
				break
			}
			token = rest
		}
		return token
	case decodeMetaspace:
		return bytes.ReplaceAll(token, []byte(st.from), []byte{' '})
	}

	if !bytes.Contains(token, []byte(st.from)) {
		return token
	}
	return bytes.ReplaceAll(token, []byte(st.from), []byte(st.to))
}

// appendToken appends the text of a token before the decoding steps. An id that is not in the vocabulary adds nothing.
func (t *Tokenizer) appendToken(dst []byte, id uint32) []byte {
	if b, ok := t.addedBytes[id]; ok {
		return append(dst, b...)
	}
	if !t.vocab.has(id) {
		return dst
	}

	b := t.vocab.bytesOf(id)
	if t.alphabet == markedText && !t.vocab.isUnspellable(id) {
		return markedText.encode(dst, string(b))
	}
	return append(dst, b...)
}

// AppendDecode appends the bytes of each id to dst, including special tokens. It treats each token alone: the
// beginning of a text gets no special treatment, and the bytes may end inside a character. Ids outside the
// vocabulary add nothing.
func (t *Tokenizer) AppendDecode(dst []byte, ids ...uint32) []byte {
	for _, id := range ids {
		if b, ok := t.byteTokens[id]; ok {
			dst = append(dst, b)
			continue
		}
		if t.decoding.byteLevel {
			dst = t.appendToken(dst, id)
			continue
		}
		token := t.appendToken(nil, id)
		for i := range t.decoding.tokenSteps {
			token = t.decoding.tokenSteps[i].apply(token)
		}
		dst = append(dst, token...)
	}
	return dst
}
