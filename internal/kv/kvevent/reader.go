package kvevent

import (
	"errors"
	"fmt"
	"strconv"
)

// reader reads one value after another from a message, whatever its syntax. Dynamo has the same structure in
// JSON and in msgpack, so its decoder is written once. A method returns an error if the next value is of
// another kind. The bytes that it returns are valid until the batch is decoded into again.
type reader interface {
	kind() kind // of the next value
	// list and fields enter a container. more reports whether another element follows, and leaves the
	// container if none does. key reads a field's name, before its value.
	list() error
	fields() error
	more() (bool, error)
	// named reports whether the innermost container has named fields.
	named() bool
	key() ([]byte, error)
	// integer reads a whole number of 64 bits; a negative one is its two's complement.
	integer() (bits uint64, negative bool, err error)
	text() ([]byte, error)
	bytes() ([]byte, error)
	skip() error
}

// elements calls a function for every element of the list that comes next.
func elements[D any](r reader, d D, element func(d D) error) error {
	if err := r.list(); err != nil {
		return err
	}
	return rest(r, d, element)
}

// rest is elements of a list that has been entered.
func rest[D any](r reader, d D, element func(d D) error) error {
	for {
		more, err := r.more()
		if err != nil || !more {
			return err
		}
		if err := element(d); err != nil {
			return err
		}
	}
}

// kind is the shape of a value.
type kind uint8

const (
	kindOther kind = iota // true, false, fractions, extensions
	kindNull
	kindNumber
	kindText
	kindBytes
	kindList
	kindFields
	kindEnd // no value: the message is over
)

// maxNesting is the depth to which a decoder enters a message; the dialects need 8. Values that
// are skipped may be deeper.
const maxNesting = 16

// hashOf reads one engine hash: a number of either sign, or the hexadecimal digits of a
// digest, of which the last 16 count.
func hashOf(r reader) (EngineHash, error) {
	if r.kind() != kindText {
		h, _, err := r.integer()
		return EngineHash(h), err
	}
	s, err := r.text()
	if err != nil {
		return 0, err
	}
	if len(s) < 16 {
		return 0, fmt.Errorf("a digest of %d digits: want at least 16", len(s))
	}
	h, err := strconv.ParseUint(text(s[len(s)-16:]), 16, 64)
	if err != nil {
		return 0, errors.New("a digest that is not hexadecimal")
	}
	return EngineHash(h), nil
}
