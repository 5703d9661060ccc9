package tokenizer

import (
	"bytes"
	"unicode/utf8"
)

// AppendDecode appends the bytes that ids stand for, special tokens included, to dst. Ids out
// of the vocabulary stand for nothing. A sequence of ids may end inside a character; see
// [Decoder].
func (t *Tokenizer) AppendDecode(dst []byte, ids ...uint32) []byte {
	for _, id := range ids {
		if b, ok := t.addedBytes[id]; ok {
			dst = append(dst, b...)
		} else if t.spm != nil && t.vocab.has(id) {
			dst = append(dst, bytes.ReplaceAll(t.vocab.bytes(id), []byte(lowerBlock), []byte{' '})...)
		} else if t.vocab.has(id) {
			dst = append(dst, t.vocab.bytes(id)...)
		}
	}
	return dst
}

// Decoder decodes a stream of ids: what it gives out is whole characters. The zero value is
// not usable; see [Tokenizer.NewDecoder]. It belongs to one goroutine.
type Decoder struct {
	t *Tokenizer
	// pending is the beginning of a character whose end has not come yet, at most 3 bytes
	// once Append returns.
	pending []byte
	// SkipSpecial leaves special tokens out.
	SkipSpecial bool
}

// NewDecoder returns a decoder of t's ids.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{t: t} }

// Append appends to dst the text that is complete once id has come. Bytes that can never
// become a character are U+FFFD.
func (d *Decoder) Append(dst []byte, id uint32) []byte {
	if d.SkipSpecial && d.t.Special(id) {
		return dst
	}
	d.pending = d.t.AppendDecode(d.pending, id)
	rest := d.pending
	for len(rest) > 0 && utf8.FullRune(rest) {
		r, n := utf8.DecodeRune(rest)
		dst, rest = utf8.AppendRune(dst, r), rest[n:]
	}
	d.pending = d.pending[:copy(d.pending, rest)]
	return dst
}

// Flush appends what is left at the end of the stream, an unfinished character as one U+FFFD,
// and makes the decoder ready for another stream.
func (d *Decoder) Flush(dst []byte) []byte {
	if len(d.pending) > 0 {
		dst = utf8.AppendRune(dst, utf8.RuneError)
	}
	d.pending = d.pending[:0]
	return dst
}
