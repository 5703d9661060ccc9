package messages

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// tag names a field as the wire does: its number, and the type of its value.
type tag uint64

const (
	varint = tag(protowire.VarintType) // numbers
	length = tag(protowire.BytesType)  // text, bytes and messages
)

var errTwice = errors.New("read a protobuf message: a field that may come once came twice")

// walk goes over the fields of a message:
//
//	for w := over(message); w.next(); {
//		switch w.tag { case 2<<3 | length: use(w.bytes) … }
//	}
//
// Its error is to be asked for at the end.
type walk struct {
	rest   []byte
	tag    tag
	bytes  []byte // of a field of type length
	number uint64 // of a field of type varint
	err    error
}

func over(message []byte) walk { return walk{rest: message} }

func (w *walk) next() bool {
	if len(w.rest) == 0 || w.err != nil {
		return false
	}
	field, kind, n := protowire.ConsumeTag(w.rest)
	if w.advance(n) {
		w.tag = tag(field)<<3 | tag(kind)
		switch kind {
		case protowire.BytesType:
			w.bytes, n = protowire.ConsumeBytes(w.rest)
		case protowire.VarintType:
			w.number, n = protowire.ConsumeVarint(w.rest)
		default:
			n = protowire.ConsumeFieldValue(field, kind, w.rest)
		}
		w.advance(n)
	}
	return w.err == nil
}

// advance takes n bytes; a negative n is protowire's error.
func (w *walk) advance(n int) bool {
	if n < 0 {
		w.err = fmt.Errorf("read a protobuf message: %w", protowire.ParseError(n))
		return false
	}
	w.rest = w.rest[n:]
	return true
}

// once notes that a field that is a message has come; twice is an error.
func (w *walk) once(seen *bool) bool {
	if *seen {
		w.err = errTwice
	}
	*seen = true
	return w.err == nil
}
