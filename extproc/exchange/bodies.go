package exchange

import (
	"context"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// bodyBudget bounds the sum of the bodies for which decisions are being made. A body counts from its arrival
// until the reply, or until its request is queued: the queue keeps no bodies.
type bodyBudget struct {
	limit, used atomic.Int64 // bytes
	// large is set when a large body is done, until its memory was given back to the system.
	large atomic.Bool
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
func (b *bodyBudget) free(n int) {
	if n >= largeBody {
		b.large.Store(true)
	}
	b.used.Add(-int64(n))
}

const (
	// largeBody is the size from which a body's memory is not used again for others.
	largeBody = 1 << 20
	// trimEvery is the least time between two garbage collections for that reason. One takes some ten
	// milliseconds of CPU time.
	trimEvery = 5 * time.Second
)

// Run gives the memory of large bodies back to the system when they are done, until ctx ends. Then it closes the idle
// connections to prefill workers. The Go runtime would keep that memory for minutes, and a few large requests would leave the
// process at several times its size.
func (s *Service) Run(ctx context.Context) {
	tick := time.NewTicker(trimEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if s.bodies.used.Load() < largeBody && s.bodies.large.Swap(false) {
				debug.FreeOSMemory()
			}
		case <-ctx.Done():
			s.prefills.Close()
			return
		}
	}
}

// Overloaded returns the refusal of a body beyond the budget. The client may try again at once when others are
// done, which takes less than a second.
func Overloaded() *Answer {
	a := refusal(&openai.Error{Status: http.StatusServiceUnavailable, Type: openai.ServerError, Code: "overloaded",
		Message: "The gateway is deciding about as many bytes of requests as it can hold. Try again in a moment."}, "overloaded")
	a.RetryAfter = time.Second
	return a
}
