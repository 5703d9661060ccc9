package tokenizer

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/stator-project/stator/internal/jsonscan"
)

// jsonReader reads the large parts of a tokenizer.json, which are the vocabulary and the merges, in one pass.
// encoding/json would build a map and a string for each token first. It decodes the small parts.
type jsonReader struct{ jsonscan.Scanner }

// deepest bounds the levels of a tokenizer.json. Real ones have about eight.
const deepest = 1000

func newJSONReader(src []byte) *jsonReader {
	return &jsonReader{jsonscan.Scanner{Src: src, Depth: deepest}}
}

// failure returns the first error.
func (t *jsonReader) failure() error {
	var fault *jsonscan.Fault
	if errors.As(t.Err, &fault) {
		return fmt.Errorf("invalid JSON: %w", fault)
	}
	return t.Err
}

// keep records the error of a caller's function, which ends the reading, unless there is one already.
func (t *jsonReader) keep(err error) {
	if t.Err == nil && err != nil {
		t.Err = err
	}
}

// readObject calls field for each key of an object. Field must read the value. The key is valid during the
// call.
func (t *jsonReader) readObject(field func(key []byte) error) error {
	var key []byte
	var failed error
	t.Members(func() string { key = t.AppendString(key[:0]); return "" }, func(string) {
		if t.Err == nil {
			failed = field(key)
			t.keep(failed)
		}
	})
	return cmp.Or(failed, t.failure())
}

// readArray calls element for each element of an array. Element must read the element.
func (t *jsonReader) readArray(element func() error) error {
	var failed error
	t.EachElement(func(int) {
		failed = element()
		t.keep(failed)
	})
	return cmp.Or(failed, t.failure())
}

// appendString reads a string and appends its decoded text to dst.
func (t *jsonReader) appendString(dst []byte) ([]byte, error) {
	t.SkipSpace()
	dst = t.AppendString(dst)
	return dst, t.failure()
}

// readUint reads an integer from 0 to 2^31-1.
func (t *jsonReader) readUint() (uint32, error) {
	t.SkipSpace()
	start := t.At
	v, err := strconv.ParseUint(string(t.ReadNumber()), 10, 31)
	if err != nil {
		return 0, fmt.Errorf("the id at byte %d is not an integer between 0 and 2147483647", start)
	}
	return uint32(v), nil
}

// skipValue skips one value and returns its bytes.
func (t *jsonReader) skipValue() ([]byte, error) {
	raw := t.Skip()
	return raw, t.failure()
}

// validText returns an error if b is not UTF-8.
func validText(b []byte) error {
	if !utf8.Valid(b) {
		return errors.New("the file is not UTF-8")
	}
	return nil
}
