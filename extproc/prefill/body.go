package prefill

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
)

// Body is the body of a request to an engine. A transport may have to send it again on another connection, so that requests refer to
// it for as long as their answers come. Forget frees the memory before. All methods are safe for concurrent use.
type Body struct {
	size int64

	mu        sync.Mutex
	bytes     []byte // guarded by mu; nil once it is forgotten
	reading   int    // guarded by mu; readers that have begun and not reached the end
	begun     bool   // guarded by mu; there was a reader
	forgotten bool   // guarded by mu
}

// NewBody returns a body. Its bytes must not be changed.
func NewBody(bytes []byte) *Body { return &Body{size: int64(len(bytes)), bytes: bytes} }

// Forget frees the memory when the body has been sent. Then it cannot be sent again.
func (b *Body) Forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forgotten = true
	b.drop()
}

// drop frees the memory of a forgotten body that was read, and that nothing reads. mu is held.
func (b *Body) drop() {
	if b.forgotten && b.begun && b.reading == 0 {
		b.bytes = nil
	}
}

// NewRequest returns a POST request with the body.
func (b *Body) NewRequest(ctx context.Context, url string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
	if err != nil || b.size == 0 {
		return r, err
	}
	r.GetBody = func() (io.ReadCloser, error) { return &bodyReader{body: b}, nil }
	r.Body, _ = r.GetBody()
	r.ContentLength = b.size
	return r, nil
}

// errForgotten is the error of a transport that sends a body again after the answer has begun.
var errForgotten = errors.New("the body of the request was sent, and is not kept")

// bodyReader reads a body once. It belongs to one goroutine, but for Close.
type bodyReader struct {
	body *Body
	at   int  // guarded by body.mu
	open bool // guarded by body.mu; it counts in body.reading
}

// Read reads the next bytes.
func (r *bodyReader) Read(p []byte) (int, error) {
	b := r.body
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.at == int(b.size) {
		return 0, io.EOF
	}
	if b.bytes == nil {
		return 0, errForgotten
	}
	if !r.open {
		r.open, b.begun = true, true
		b.reading++
	}

	n := copy(p, b.bytes[r.at:])
	r.at += n
	if r.at == int(b.size) {
		r.endReading()
	}
	return n, nil
}

// Close ends the reading.
func (r *bodyReader) Close() error {
	r.body.mu.Lock()
	defer r.body.mu.Unlock()
	r.endReading()
	return nil
}

// endReading records that the reader needs the bytes no more. body.mu is held.
func (r *bodyReader) endReading() {
	if r.open {
		r.open = false
		r.body.reading--
		r.body.drop()
	}
}
