package prefill

import (
	"errors"
	"io"
	"testing"
)

// TestForget: the memory of a body is free when the body is forgotten and no request reads it, in either order.
func TestForget(t *testing.T) {
	b := NewBody([]byte("a body"))
	r, err := b.NewRequest(t.Context(), "http://10.0.0.1:8000/v1/completions")
	if err != nil || r.ContentLength != 6 {
		t.Fatalf("%v, %d bytes", err, r.ContentLength)
	}
	b.Forget()
	if b.bytes == nil {
		t.Error("a body is free before it was sent")
	}

	half := make([]byte, 3)
	if _, err := io.ReadFull(r.Body, half); err != nil || b.bytes == nil {
		t.Errorf("%v after a half, free: %v", err, b.bytes == nil)
	}
	again, _ := r.GetBody()
	if _, err := again.Read(half); err != nil {
		t.Errorf("the body is not sent again: %v", err)
	}
	_ = again.Close()
	rest, err := io.ReadAll(r.Body)
	if string(rest) != "ody" || err != nil || b.bytes != nil {
		t.Errorf("%q, %v, free: %v", rest, err, b.bytes == nil)
	}
	late, _ := r.GetBody()
	if _, err := late.Read(half); !errors.Is(err, errForgotten) {
		t.Errorf("a body that is free was read: %v", err)
	}
}
