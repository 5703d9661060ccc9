package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"
)

// decoding is how ids become text again.
type decoding struct {
	// bytes says that tokens spell bytes, whatever characters they end in.
	byteLevel bool
	// each is done to each token; then, where fallback is set, tokens like <0xE4> are bytes;
	// whole is done to all the text at once.
	tokenSteps, textSteps []decodeStep
	byteFallback          bool
	// space stands between tokens, as in the reference where a file has no decoder.
	spaceBetween bool
}

type decodeStep struct {
	kind     decodeKind
	from, to string
	// strip takes away from at the beginning, up to so many times.
	maxStrip int
}

type decodeKind uint8

const (
	decodeReplace decodeKind = iota
	decodeStrip
	decodeMetaspace // ▁ becomes a space, or nothing in the first token
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

// readDecoder reads a decoder. What it may hold is what can be done to a stream as well as to a
// text: nothing that looks back.
func readDecoder(c *decoderConfig) (decoding, error) {
	var d decoding
	if c == nil {
		d.spaceBetween = true
		return d, nil
	}

	fused := false
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

// step is a decoder that changes text.
func (c *decoderConfig) textStep(fused bool) (decodeStep, error) {
	switch c.Type {
	case "Replace":
		if c.Pattern.String == nil || *c.Pattern.String == "" || fused && utf8.RuneCountInString(*c.Pattern.String) > 1 {
			return decodeStep{}, errors.New("decoder Replace of what is no plain text is not supported")
		}
		return decodeStep{kind: decodeReplace, from: *c.Pattern.String, to: c.Content}, nil
	case "Strip":
		if c.Stop != 0 || c.Start < 0 || utf8.RuneCountInString(c.Content) != 1 {
			return decodeStep{}, errors.New("decoder Strip at the end is not supported")
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

// do applies the step to a token, the first of its text or not.
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

// appendToken appends what the file, or for bytes their alphabet, says a token is.
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

// AppendDecode appends the bytes that ids stand for by themselves, special tokens included, to
// dst: what a text begins with is not treated apart, and a sequence of ids may end inside a
// character. Ids out of the vocabulary stand for nothing. See [Tokenizer.Decode] and [Decoder]
// for text.
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

// Decode appends the text of ids, as the reference decodes them all at once: what is no
// character is U+FFFD, and special tokens are left out where skipSpecial is set.
func (t *Tokenizer) Decode(dst []byte, ids []uint32, skipSpecial bool) []byte {
	d := Decoder{t: t, SkipSpecial: skipSpecial, atOnce: true}
	for _, id := range ids {
		dst = d.Append(dst, id)
	}
	return d.Flush(dst)
}

// Decoder decodes a stream of ids: what it gives out is whole characters, and all of a special
// token at once. All of it together is what [Tokenizer.Decode] gives for the ids, but for one
// case: tokens of single bytes are text as soon as they are a character, where Decode gives up
// the whole run of them when any of it is no text. The zero value is not usable; see
// [Tokenizer.NewDecoder]. It belongs to one goroutine.
type Decoder struct {
	t *Tokenizer
	// pending is the beginning of a character whose end has not come yet, at most 3 bytes
	// once Append returns; with complete, a whole run of bytes.
	pending []byte
	token   []byte
	started bool
	atOnce  bool
	// stripped counts what each step of decoding.whole has stripped; -1 when it is done.
	stripped []int
	// SkipSpecial leaves special tokens out.
	SkipSpecial bool
}

// NewDecoder returns a decoder of t's ids.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{t: t} }

// Append appends to dst the text that is complete once id has come. Bytes that can never
// become a character are U+FFFD.
func (d *Decoder) Append(dst []byte, id uint32) []byte {
	if d.SkipSpecial && d.t.skipped[id] {
		return dst
	}
	how := &d.t.decoding
	if how.byteLevel {
		d.pending, _ = d.t.appendToken(d.pending, id)
		d.pending, dst = d.appendComplete(d.pending, dst)
		return dst
	}

	if b, ok := d.t.byteTokens[id]; ok && how.byteFallback {
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
	if how.spaceBetween && d.started {
		dst = append(dst, ' ')
	}

	for i := range how.tokenSteps {
		token = how.tokenSteps[i].apply(token, !d.started)
	}
	d.started = true
	return d.appendText(dst, token)
}

// drain appends the characters of b that are complete to dst, and returns the rest. What can
// be no character is one U+FFFD for as many bytes as might have begun one.
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

// broken is how many bytes of b, which does not begin with a character, are replaced as one:
// the longest beginning of a character.
func invalidLength(b []byte) int {
	n := 1
	for n < len(b) && n < utf8.UTFMax && beginsRune(b[:n+1]) {
		n++
	}
	return n
}

// beginsRune says whether b is the beginning of a character's bytes, and not all of them.
func beginsRune(b []byte) bool { return !utf8.FullRune(b) }

// run takes the text out of the bytes that tokens of single bytes have left: all of it at the
// end of a run, else the whole characters.
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

// text appends text after what is done to the whole of it.
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

// Flush appends what is left at the end of the stream, an unfinished character as U+FFFD, and
// makes the decoder ready for another stream.
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
