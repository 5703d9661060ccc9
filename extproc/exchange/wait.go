package exchange

import (
	"time"

	"github.com/stator-project/stator/internal/route"
)

// Queued is a request in the router's queue.
type Queued struct {
	ticket *route.Ticket
	// decided receives the final decision. It has room for one, so that the router never blocks.
	decided chan *route.Decision
}

// Until returns the end of the longest wait. Envoy must wait for longer, because the decision must reach Envoy before
// it forwards the request without a pick.
func (q *Queued) Until() time.Time { return q.ticket.Until() }

// Await returns the reply of a queued request: the decision when its turn has come, or a refusal when its
// time is over. A body that is not nil replaces the request's. False means that the client has left.
func (x *Exchange) Await(q *Queued, body []byte) (r Reply, ok bool) {
	began := time.Now()
	defer func() { x.svc.metrics.waits.Observe(time.Since(began).Seconds()) }()

	expiry := time.NewTimer(time.Until(q.Until()))
	defer expiry.Stop()
	var d *route.Decision
	select {
	case d = <-q.decided:
	case <-x.origin.Done:
		x.CancelQueued(q)
		return Reply{}, false
	case <-expiry.C:
		d = x.svc.router.Expire(q.ticket, time.Now())
		if d == nil { // a decision was made at the same moment
			d = <-q.decided
		}
	}

	// A client that left may have left before the booking was made, and no one would end that.
	if d.Outcome == route.Picked && x.Gone() {
		x.svc.router.End(d.ID, time.Now())
		x.svc.metrics.outcomes.WithLabelValues(outcomeCancelled).Inc()
		return Reply{}, false
	}
	return x.observed(x.conclude(d, body, time.Now()), began), true
}

// CancelQueued removes a request from the queue because its client has cancelled. If it was decided at the same
// moment its booking ends.
func (x *Exchange) CancelQueued(q *Queued) {
	if !x.svc.router.Cancel(q.ticket) {
		if d := <-q.decided; d.Outcome == route.Picked {
			x.svc.router.End(d.ID, time.Now())
		}
	}
	x.svc.metrics.outcomes.WithLabelValues(outcomeCancelled).Inc()
}
