package exchange

import (
	"context"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// Budget bounds the sum of the bodies that are held for one purpose, in bytes. A service has four of the same size: for the bodies for
// which decisions are being made, for the bodies at prefill workers, for the bodies at the relay, and for the token ids of streams there.
// So workers that hang use up no memory that decisions need. All methods are safe for concurrent use.
//
// A body for a decision counts from its arrival until the reply, until its request is queued, because the queue keeps no bodies, or
// until a prefill worker has it.
type Budget struct {
	limit, used atomic.Int64 // bytes
	// large is set when a large body is done, until its memory was given back to the system.
	large atomic.Bool
}

// Reserve adds n bytes. It returns false, and adds nothing, if the sum would exceed the limit.
func (b *Budget) Reserve(n int) bool {
	if b.used.Add(int64(n)) <= b.limit.Load() {
		return true
	}
	b.used.Add(-int64(n))
	return false
}

// Free takes n reserved bytes away.
func (b *Budget) Free(n int) {
	if n >= largeBody {
		b.large.Store(true)
	}
	b.used.Add(-int64(n))
}

// Used returns the sum, in bytes. It exceeds the limit for a moment when bodies come back from prefill workers.
func (b *Budget) Used() int64 { return b.used.Load() }

// IsHalfFree reports whether at most half of the limit is used.
func (b *Budget) IsHalfFree() bool { return b.used.Load() <= b.limit.Load()/2 }

// lend moves n reserved bytes to another budget. It returns false, and moves nothing, if the other one has no room.
func (b *Budget) lend(n int, to *Budget) bool {
	if !to.Reserve(n) {
		return false
	}
	b.used.Add(-int64(n))
	return true
}

// takeBack moves n bytes back from another budget, also beyond the limit: their memory is in use. New bodies wait until there is
// room for them.
func (b *Budget) takeBack(n int, from *Budget) {
	b.used.Add(int64(n))
	from.Free(n)
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
	backoff.Every(ctx, trimEvery, func(time.Time) { s.trim() })
	s.prefills.Close()
}

// trim gives memory back to the system when large bodies are done and few others are there.
func (s *Service) trim() {
	budgets := []*Budget{&s.bodies, &s.prefilling, &s.relay.bodies}
	used := int64(0)
	for _, b := range budgets {
		used += b.Used()
	}
	if used >= largeBody {
		return
	}

	done := false
	for _, b := range budgets {
		done = b.large.Swap(false) || done
	}
	if done {
		debug.FreeOSMemory()
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
