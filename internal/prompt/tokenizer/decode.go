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
	// tokenSteps apply to each token. Then, if byteFallback is set, tokens like <0xE4> become bytes.
	// Finally textSteps apply to the concatenated text.
	tokenSteps, textSteps []decodeStep
	byteFallback          bool
	// spaceBetween puts a space between tokens, as the reference does for a file without a decoder.
	spaceBetween bool
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
	decodeMetaspace                   // ▁ becomes a space, or nothing in the first token
	decodeMetaspaceAll
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
		d.spaceBetween = true
		return d, nil
	}

	fused := false
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
			if len(d.tokenSteps) > 0 || d.byteFallback || fused {
				return errors.New("decoder ByteLevel after another is not supported")
			}
			d.byteLevel = true
		case c.Type == "ByteFallback":
			if fused || d.byteFallback {
				return errors.New("decoder ByteFallback after Fuse is not supported")
			}
			d.byteFallback = true
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
			case fused:
				d.textSteps = append(d.textSteps, step)
			case d.byteFallback:
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
		scheme, err := readScheme(c.PrependScheme, c.AddPrefix)
		kind := decodeMetaspace
		if scheme == prependNever {
			kind = decodeMetaspaceAll
		}
		return decodeStep{kind: kind, from: c.Replacement}, err
	}
	return decodeStep{}, fmt.Errorf("decoder %q is not supported; ByteLevel, Replace, ByteFallback, Fuse, Strip and Metaspace are", c.Type)
}

// apply returns token after the step. First is set for the first token of a text.
func (st *decodeStep) apply(token []byte, first bool) []byte {
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
		if first {
			return bytes.ReplaceAll(token, []byte(st.from), nil)
		}
		return bytes.ReplaceAll(token, []byte(st.from), []byte{' '})
	case decodeMetaspaceAll:
		return bytes.ReplaceAll(token, []byte(st.from), []byte{' '})
	}

	if !bytes.Contains(token, []byte(st.from)) {
		return token
	}
	return bytes.ReplaceAll(token, []byte(st.from), []byte(st.to))
}

// appendToken appends the text of a token before the decoding steps. Ok is false for an id that is not in
// the vocabulary.
func (t *Tokenizer) appendToken(dst []byte, id uint32) (out []byte, ok bool) {
	if b, ok := t.addedBytes[id]; ok {
		return append(dst, b...), true
	}
	if !t.vocab.has(id) {
		return dst, false
	}

	b := t.vocab.bytesOf(id)
	if t.alphabet == markedText && !t.vocab.isUnspellable(id) {
		return markedText.encode(dst, string(b)), true
	}
	return append(dst, b...), true
}

// AppendDecode appends the bytes of each id to dst, including special tokens. It treats each token alone: the
// beginning of a text gets no special treatment, and the bytes may end inside a character. Ids outside the
// vocabulary add nothing. See [Tokenizer.Decode] and [Decoder] for text.
func (t *Tokenizer) AppendDecode(dst []byte, ids ...uint32) []byte {
	for _, id := range ids {
		if b, ok := t.byteTokens[id]; ok {
			dst = append(dst, b)
			continue
		}
		if t.decoding.byteLevel {
			dst, _ = t.appendToken(dst, id)
			continue
		}
		token, _ := t.appendToken(nil, id)
		for i := range t.decoding.tokenSteps {
			token = t.decoding.tokenSteps[i].apply(token, false)
		}
		dst = append(dst, token...)
	}
	return dst
}

// Decode appends the text of ids to dst, as the reference decodes a complete list of ids. Bytes that form no
// character become U+FFFD. SkipSpecial leaves special tokens out.
func (t *Tokenizer) Decode(dst []byte, ids []uint32, skipSpecial bool) []byte {
	d := Decoder{t: t, SkipSpecial: skipSpecial, atOnce: true}
	for _, id := range ids {
		dst = d.Append(dst, id)
	}
	return d.Flush(dst)
}

// Decoder decodes a stream of ids. It returns whole characters, and each special token in one part. All parts
// together equal the result of [Tokenizer.Decode], with one exception. In a run of single-byte tokens, a
// Decoder returns each character as soon as it is complete. Decode replaces the whole run by U+FFFD if any
// byte of it is not UTF-8. The zero value is not usable; see [Tokenizer.NewDecoder]. A Decoder belongs to
// one goroutine.
//
//	event                        effect
//	token of text                pending bytes are returned first, then the token's text
//	single-byte token            its byte is added to pending; whole characters are returned
//	skipped special token        none
//	end of the stream (Flush)    pending bytes are returned, and the Decoder is as new
type Decoder struct {
	t *Tokenizer
	// pending holds the first bytes of an incomplete character. It has at most 3 bytes after Append
	// returns. With atOnce it holds a whole run of single-byte tokens.
	pending []byte
	token   []byte
	started bool
	atOnce  bool
	// stripped counts how often each of decoding.textSteps has stripped; -1 is a step that is finished.
	stripped []int
	// SkipSpecial leaves special tokens out.
	SkipSpecial bool
}

// NewDecoder returns a decoder of t's ids.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{t: t} }

// Append appends to dst the text that the next id of the stream completes. Bytes that can be part of no
// character become U+FFFD.
func (d *Decoder) Append(dst []byte, id uint32) []byte {
	if d.SkipSpecial && d.t.skipped[id] {
		return dst
	}
	decoding := &d.t.decoding
	if decoding.byteLevel {
		d.pending, _ = d.t.appendToken(d.pending, id)
		d.pending, dst = d.appendComplete(d.pending, dst)
		return dst
	}

	if b, ok := d.t.byteTokens[id]; ok && decoding.byteFallback {
		d.started = true
		d.pending = append(d.pending, b)
		if d.atOnce {
			return dst
		}
		return d.appendText(dst, d.takeBytes(false))
	}

	token, ok := d.t.appendToken(d.token[:0], id)
	d.token = token
	if !ok {
		return dst
	}

	dst = d.appendText(dst, d.takeBytes(true))
	if decoding.spaceBetween && d.started {
		dst = append(dst, ' ')
	}

	for i := range decoding.tokenSteps {
		token = decoding.tokenSteps[i].apply(token, !d.started)
	}
	d.started = true
	return d.appendText(dst, token)
}

// appendComplete appends the complete characters of b to dst and returns the rest of b. Bytes that can be
// part of no character become one U+FFFD for each longest beginning of a character, as Unicode recommends.
func (d *Decoder) appendComplete(b, dst []byte) (rest, out []byte) {
	rest = b
	for len(rest) > 0 {
		r, n := utf8.DecodeRune(rest)
		if r == utf8.RuneError && n == 1 {
			n = invalidLength(rest)
			if n == len(rest) && beginsRune(rest) {
				break
			}
		}
		dst, rest = utf8.AppendRune(dst, r), rest[n:]
	}

	return b[:copy(b, rest)], dst
}

// invalidLength returns the number of bytes of b that become one U+FFFD: the longest beginning of a character, or one byte. B must not
// begin with a complete character.
func invalidLength(b []byte) int {
	n := 1
	for n < len(b) && n < utf8.UTFMax && beginsRune(b[:n+1]) {
		n++
	}
	return n
}

// beginsRune reports whether b is an incomplete beginning of a character.
func beginsRune(b []byte) bool { return !utf8.FullRune(b) }

// takeBytes removes text from pending and returns it. At the end of a run of single-byte tokens it removes
// all bytes, otherwise only complete characters.
func (d *Decoder) takeBytes(end bool) []byte {
	if len(d.pending) == 0 {
		return nil
	}
	var out []byte
	if d.atOnce && !utf8.Valid(d.pending) {
		out = bytes.Repeat([]byte("\ufffd"), len(d.pending))
		d.pending = d.pending[:0]
		return out
	}

	rest := d.pending
	for len(rest) > 0 && (end || utf8.FullRune(rest)) {
		r, n := utf8.DecodeRune(rest)
		out, rest = utf8.AppendRune(out, r), rest[n:]
	}
	d.pending = d.pending[:copy(d.pending, rest)]
	return out
}

// appendText appends text to dst after applying textSteps. The state of the steps that strip is in
// d.stripped, because the beginning of the text may come in several parts.
func (d *Decoder) appendText(dst, text []byte) []byte {
	for i := range d.t.decoding.textSteps {
		st := &d.t.decoding.textSteps[i]
		if st.kind != decodeStrip {
			text = st.apply(text, false)
			continue
		}
		if len(d.stripped) <= i {
			d.stripped = append(d.stripped, make([]int, i+1-len(d.stripped))...)
		}
		for len(text) > 0 && d.stripped[i] >= 0 {
			rest, ok := bytes.CutPrefix(text, []byte(st.from))
			d.stripped[i]++
			if !ok || d.stripped[i] > st.maxStrip {
				d.stripped[i] = -1
				break
			}
			text = rest
		}
	}
	return append(dst, text...)
}

// Flush appends the text that is left at the end of the stream to dst, with U+FFFD for an incomplete
// character. The decoder is then ready for another stream.
func (d *Decoder) Flush(dst []byte) []byte {
	if len(d.pending) > 0 && d.t.decoding.byteLevel {
		dst = utf8.AppendRune(dst, utf8.RuneError)
	} else {
		dst = d.appendText(dst, d.takeBytes(true))
	}

	d.pending = d.pending[:0]
	d.stripped = d.stripped[:0]
	d.started = false
	return dst
}
