package exchange

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// OnPanic ends an exchange whose handling has panicked: the request goes on without a pick, and no booking is
// left. Parsers of foreign bytes are thousands of lines, so one mistake in them must not end the process.
func (x *Exchange) OnPanic(cause any, stack []byte, now time.Time) Reply {
	x.OnEnd(true, now)
	x.phase = Finished
	x.svc.metrics.outcomes.WithLabelValues(outcomePanic).Inc()
	x.svc.panics.logPanic(cause, stack, now)
	x.decision = nil // nothing is known about its state
	x.decideSpan(&Reply{}, outcomePanic)
	if x.booking != "" {
		x.svc.router.End(x.booking, now)
	}

	// Without a decision the request would keep the cache salt of its client, which could be another tenant's, and members of
	// transfers.
	if x.svc.mustRead() {
		return Reply{Answer: internalError(), Last: true}
	}
	return Reply{Last: true}
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

// logPanic logs a panic with its stack, unless another was logged less than a minute ago.
func (p *panicLog) logPanic(cause any, stack []byte, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.last) < logPanicsEvery {
		return
	}
	p.last = now
	p.log.Error("a request caused a panic and went on without a decision; please report this as a bug",
		"panic", fmt.Sprint(cause), "stack", string(stack))
}
