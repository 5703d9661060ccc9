package stream

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// failOpen ends an exchange whose handling has panicked: the request goes on without a pick, and no booking is
// left. Parsers of foreign bytes are thousands of lines, so one mistake in them must not end the process.
func (x *exchange) failOpen(stream grpc.ServerStream, answered phase, cause any) error {
	x.phase = finished
	x.srv.metrics.outcomes.WithLabelValues(outcomePanic).Inc()
	x.srv.panics.add(cause, debug.Stack())
	x.decision = nil // nothing is known about its state
	if x.booking != "" {
		x.srv.router.End(x.booking, time.Now())
	}

	// Without a decision the request would keep the cache salt of its client, which could be another tenant's.
	if x.srv.settings.Load().TenantHeader != "" {
		return streamEnd(x.send(stream, reply{answer: internalError()}, answered))
	}
	return streamEnd(x.send(stream, reply{}, answered))
}

// panicLog logs panics, for all streams of a server. A client may cause them as often as it likes, so that a
// stack is logged once a minute at most.
type panicLog struct {
	log *slog.Logger

	mu   sync.Mutex
	last time.Time // guarded by mu
}

// logPanicsEvery is the least time between two stacks in the log.
const logPanicsEvery = time.Minute

// add logs a panic with its stack, unless another was logged less than a minute ago.
func (p *panicLog) add(cause any, stack []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.last) < logPanicsEvery {
		return
	}
	p.last = now
	p.log.Error("a request caused a panic and went on without a decision; please report this as a bug",
		"panic", fmt.Sprint(cause), "stack", string(stack))
}
