package exchange

import (
	"time"

	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
)

// Queued is a request whose reply takes time: it is in the router's queue, or a prefill worker computes its prompt, or first one
// and then the other.
type Queued struct {
	ticket request.Ticket // nil for a request that did not have to queue
	// decided receives the final decision. It has room for one, so that the router never blocks.
	decided chan *decision.Decision

	picked *decision.Decision // the decision of a request that did not have to queue
	began  time.Time          // when it was picked
	split  bool               // a prefill worker computes the prompt after the decision
}

// Until returns the end of the longest wait. Envoy must wait for longer, because the decision must reach Envoy before
// it forwards the request without a pick.
func (q *Queued) Until() time.Time {
	until := q.began
	if q.ticket != nil {
		until = q.ticket.Until()
	}
	if q.split {
		until = until.Add(route.PrefillTimeout)
	}
	return until
}

// Await returns the reply of a queued request: the decision when its turn has come, or a refusal when its
// time is over. A body that is not nil replaces the request's. False means that the client has left.
func (x *Exchange) Await(q *Queued, body []byte) (r Reply, ok bool) {
	began := x.svc.clock.Now()
	d := q.picked
	if d == nil {
		d = x.awaitTurn(q)
	}
	if d == nil {
		return Reply{}, false
	}
	if d.Outcome == decision.Picked && d.Split && !x.isRelayed(d) && !x.Gone() {
		decode, mayGo := x.prefill(d, body)
		if !mayGo {
			x.svc.router.End(d.ID, x.svc.clock.Now())
			return x.observed(answerWith(NoAnswer()), began), true
		}
		body = decode
	}

	// A client that left may have left before the booking was made, and no one would end that.
	if d.Outcome == decision.Picked && x.Gone() {
		x.svc.router.End(d.ID, x.svc.clock.Now())
		x.cancelled()
		return Reply{}, false
	}
	return x.observed(x.conclude(d, body, x.svc.clock.Now()), began), true
}

// awaitTurn returns the decision of a request in the router's queue; nil if the client has left.
func (x *Exchange) awaitTurn(q *Queued) *decision.Decision {
	began := x.svc.clock.Now()
	defer func() { metric.Observe(x.svc.metrics.waits, x.svc.clock.Now().Sub(began).Seconds(), x.span.Trace()) }()

	expired, stop := x.svc.clock.At(q.ticket.Until())
	defer stop()
	select {
	case d := <-q.decided:
		return d
	case <-x.origin.Context.Done():
		x.CancelQueued(q)
		return nil
	case <-expired:
		d := x.svc.router.Expire(q.ticket, x.svc.clock.Now())
		if d == nil { // a decision was made at the same moment
			d = <-q.decided
		}
		return d
	}
}

// CancelQueued removes a request from the queue because its client has cancelled. If it was decided at the same
// moment its booking ends.
func (x *Exchange) CancelQueued(q *Queued) {
	switch {
	case q.picked != nil:
		x.svc.router.End(q.picked.ID, x.svc.clock.Now())
	case !x.svc.router.Cancel(q.ticket):
		if d := <-q.decided; d.Outcome == decision.Picked {
			x.svc.router.End(d.ID, x.svc.clock.Now())
		}
	}
	x.cancelled()
}

// cancelled counts a request whose client has left before the decision reached Envoy.
func (x *Exchange) cancelled() {
	x.svc.metrics.outcomes.WithLabelValues(outcomeCancelled).Inc()
	x.decideSpan(&Reply{}, outcomeCancelled)
}
