package kvevent

import (
	"errors"
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

// packReader is a reader of msgpack.
type packReader struct {
	raw    []byte // the bytes that are left
	depth  int
	frames [maxNesting]packFrame
}

// packFrame is a container that was entered.
type packFrame struct {
	left  uint32 // elements, or pairs
	named bool
}

func (r *packReader) reset(raw []byte) { r.raw, r.depth = raw, 0 }

func (r *packReader) kind() kind {
	if len(r.raw) == 0 {
		return kindEnd
	}
	switch msgp.NextType(r.raw) {
	case msgp.NilType:
		return kindNull
	case msgp.IntType, msgp.UintType:
		return kindNumber
	case msgp.StrType:
		return kindText
	case msgp.BinType:
		return kindBytes
	case msgp.ArrayType:
		return kindList
	case msgp.MapType:
		return kindFields
	default:
		return kindOther
	}
}

func (r *packReader) list() error {
	n, rest, err := msgp.ReadArrayHeaderBytes(r.raw)
	return r.enter(n, false, rest, err)
}

func (r *packReader) fields() error {
	n, rest, err := msgp.ReadMapHeaderBytes(r.raw)
	return r.enter(n, true, rest, err)
}

func (r *packReader) enter(n uint32, named bool, rest []byte, err error) error {
	switch {
	case err != nil:
		return err
	case r.depth == maxNesting:
		return errors.New("the message is nested too deeply")
	}
	r.raw = rest
	r.frames[r.depth] = packFrame{left: n, named: named}
	r.depth++
	return nil
}

func (r *packReader) named() bool { return r.frames[r.depth-1].named }

func (r *packReader) more() (bool, error) {
	left := &r.frames[r.depth-1].left
	if *left == 0 {
		r.depth--
		return false, nil
	}
	*left--
	return true, nil
}

func (r *packReader) key() ([]byte, error) { return r.text() }

func (r *packReader) integer() (bits uint64, negative bool, err error) {
	if msgp.NextType(r.raw) == msgp.UintType {
		bits, r.raw, err = msgp.ReadUint64Bytes(r.raw)
		return bits, false, err
	}
	n, rest, err := msgp.ReadInt64Bytes(r.raw)
	if err != nil {
		return 0, false, err
	}
	r.raw = rest
	return uint64(n), n < 0, nil
}

func (r *packReader) text() (s []byte, err error) {
	s, rest, err := msgp.ReadStringZC(r.raw)
	if err == nil {
		r.raw = rest
	}
	return s, err
}

func (r *packReader) bytes() (s []byte, err error) {
	s, rest, err := msgp.ReadBytesZC(r.raw)
	if err == nil {
		r.raw = rest
	}
	return s, err
}

func (r *packReader) skip() error {
	rest, err := msgp.Skip(r.raw)
	if err != nil {
		return fmt.Errorf("skip a value: %w", err)
	}
	r.raw = rest
	return nil
}
