package streams

import (
	"strings"
	"testing"
	"time"
)

// TestRead reads a complete stream, and one that ends early.
func TestRead(t *testing.T) {
	const text = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n" +
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n"
	a, err := readEvents(strings.NewReader(text+"data: [DONE]\n\n"), time.Now())
	if err != nil || a.Prompt != 9 || a.Tokens != 3 || a.Cached != 8 || a.Whole < a.First || a.First == 0 {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := readEvents(strings.NewReader(text), time.Now()); err == nil {
		t.Error("a stream without its end is no error")
	}
}
