package messages

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// tag identifies a field in the encoded message: its number, shifted by three bits, and the type of its value.
type tag uint64

const (
	varint  = tag(protowire.VarintType)  // integers and booleans
	fixed64 = tag(protowire.Fixed64Type) // doubles
	length  = tag(protowire.BytesType)   // text, bytes and messages
)

var errTwice = errors.New("read a protobuf message: a message field occurs twice")

// walk iterates over the fields of an encoded message:
//
//	w := over(message)
//	for w.next() {
//		switch w.tag {
//		case requestRequestBody<<3 | length:
//			use(w.bytes)
//		}
//	}
//	return w.err
//
// The loop body may set err, which ends the loop.
type walk struct {
	rest   []byte
	tag    tag
	bytes  []byte // of a field of type length
	number uint64 // of a field of type varint
	err    error
}

func over(message []byte) walk { return walk{rest: message} }

// next reads the next field. It returns false at the end and after an error.
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

// advance skips n bytes; a negative n is an error of protowire.
func (w *walk) advance(n int) bool {
	if n < 0 {
		w.err = fmt.Errorf("read a protobuf message: %w", protowire.ParseError(n))
		return false
	}
	w.rest = w.rest[n:]
	return true
}

// once records that a message field has occurred. A second time is an error.
func (w *walk) once(seen *bool) bool {
	if *seen {
		w.err = errTwice
	}
	*seen = true
	return w.err == nil
}
