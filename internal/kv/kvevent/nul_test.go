package kvevent

import "testing"

// TestNULIsNoEnd: a NUL byte is no JSON, so a message with one is refused and not read as an empty one.
func TestNULIsNoEnd(t *testing.T) {
	for _, payload := range []string{"\x00", "\x00garbage", "[]\x00", " \x00"} {
		if err := TRTLLM.Decode([]byte(payload), DefaultLimits, &Batch{}); err == nil {
			t.Errorf("TensorRT-LLM's %q is accepted", payload)
		}
		if err := Dynamo.Decode([]byte(payload), DefaultLimits, &Batch{}); err == nil {
			t.Errorf("Dynamo's %q is accepted", payload)
		}
	}
}
