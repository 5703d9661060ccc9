package object

import (
	"bytes"
	"errors"
	"io"
	"net/http"
)

// The bounds of an answer that is no part of an object: a list of 1,000 names has 1 MB at most, and some 15 tags for each. The client takes
// memory for each tag.
const (
	mostAnswer = 4 << 20
	mostTags   = 64 * pageNames
)

var errTooLong = errors.New("the answer is too long")

// bounded is a transport that ends answers beyond the bounds.
type bounded struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper]. Parts of objects are bounded by those who read them.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil && answer.StatusCode != http.StatusPartialContent {
		answer.Body = &boundedBody{ReadCloser: answer.Body, bytes: mostAnswer, tags: mostTags}
	}
	return answer, err
}

// boundedBody is a body of which so many bytes and tags are left.
type boundedBody struct {
	io.ReadCloser
	bytes, tags int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes -= n
	b.tags -= bytes.Count(p[:n], []byte("<"))
	if b.bytes < 0 || b.tags < 0 {
		return 0, errTooLong
	}
	return n, err
}
