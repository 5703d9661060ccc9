package scenario

import (
	"fmt"
	"strings"
	"testing"
)

// TestNextRequestFindsItsCache: a client sends its next request as soon as it has the answer to the last one. The end of
// the last request reaches the router so soon that its booking does not drive the next one away from the cache.
func TestNextRequestFindsItsCache(t *testing.T) {
	t.Parallel()
	g := up(t, "--workers", "2")
	cached := 0
	for i := range 40 {
		prompt := []message{{"user", fmt.Sprintf("Conversation %d. ", i) + strings.Repeat("The tide comes in and goes out again. ", 14)}}
		first := g.chat(prompt, 1)
		if second := g.chat(prompt, 1); g.decision(first.decision).Worker == g.decision(second.decision).Worker {
			cached++
		}
	}
	// With a flush every 100 ms it is half of them. On a busy machine some reports are late.
	if cached < 30 {
		t.Errorf("%d of 40 second requests went to the worker with the prompt", cached)
	}
}
