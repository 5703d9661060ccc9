package stream

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// bodyBudget bounds the sum of the bodies for which decisions are being made. A body counts from its arrival
// until the reply, or until its request is queued: the queue keeps no bodies.
type bodyBudget struct {
	limit, used atomic.Int64 // bytes
}

// reserve adds n bytes, unless the sum would exceed the limit.
func (b *bodyBudget) reserve(n int) bool {
	if b.used.Add(int64(n)) <= b.limit.Load() {
		return true
	}
	b.used.Add(-int64(n))
	return false
}

// free takes n reserved bytes away.
func (b *bodyBudget) free(n int) { b.used.Add(-int64(n)) }

// overloaded returns the refusal of a body beyond the budget. The client may try again at once when others are
// done, which takes less than a second.
func overloaded() *answer {
	a := refusal(&openai.Error{Status: http.StatusServiceUnavailable, Type: openai.ServerError, Code: "overloaded",
		Message: "The gateway is deciding about as many bytes of requests as it can hold. Try again in a moment."}, "overloaded")
	a.retryAfter = time.Second
	return a
}
