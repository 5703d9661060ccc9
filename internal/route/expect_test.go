package route_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestPredictionsLastUntilPromptsAreComputed: a prompt waits for 16 s behind others on an engine that publishes events. A prompt with the
// same blocks that comes meanwhile will find them cached. Without an event they are expected for 5 s more.
func TestPredictionsLastUntilPromptsAreComputed(t *testing.T) {
	for after, expected := range map[time.Duration]bool{15 * time.Second: true, 30 * time.Second: false} {
		r := newRouter(t, "kv", 1)
		for i := range 100 {
			r.Decide(completion(fmt.Sprint(i)+strings.Repeat("-", 8000)), start)
		}
		shared := strings.Repeat("shared", 200)
		r.Decide(completion(shared), start)
		for range 60 { // each ends a bounded number of predictions
			r.Decide(completion("short"), start.Add(after))
		}
		if d := r.Decide(completion(shared+"more"), start.Add(after)); (d.Cached == len(shared)) != expected {
			t.Errorf("after %s %d of %d tokens are expected in the cache", after, d.Cached, d.PromptTokens)
		}
	}
}
