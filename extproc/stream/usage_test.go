package stream

import "testing"

// TestUsage: the last count of an answer's tokens is found, however the response is cut into pieces, and not in a text.
func TestUsage(t *testing.T) {
	const response = `data: {"usage":{"completion_tokens": 7,"text":"\"completion_tokens\":99"}}` + "\n\n" +
		`data: {"usage":{"prompt_tokens":3,"completion_tokens":1234,"total_tokens":1237}}` + "\n\ndata: [DONE]"
	for size := 1; size <= len(response); size++ {
		var u usage
		for at := 0; at < len(response); at += size {
			u.read([]byte(response[at:min(at+size, len(response))]))
		}
		if got := u.read(nil); got != 1234 {
			t.Errorf("in pieces of %d bytes: %d", size, got)
		}
	}
	for _, text := range []string{"", `{"completion_tokens":}`, `{"completion_tokens":99999999999999}`, `{"completion_tokens":null}`} {
		if got := new(usage).read([]byte(text)); got != 0 {
			t.Errorf("%q: %d", text, got)
		}
	}
}
