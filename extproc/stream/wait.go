package stream

import (
	"time"

	"google.golang.org/grpc"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/route"
)

// queued is a request in the router's queue.
type queued struct {
	ticket *route.Ticket
	// decided receives the final decision. It has room for one, so that the router never blocks.
	decided chan *route.Decision
	body    []byte // replaces the request's body; nil keeps it
}

// envoyPatience is how much longer Envoy waits than the request: the decision must reach Envoy before it
// forwards the request without a pick.
const envoyPatience = 5 * time.Second

// wait returns the reply of a queued request: the decision when its turn has come, or a refusal when its
// time is over. The reply is empty if the client has cancelled. Envoy accepts a new timeout once for each of
// its messages, so there is one wait, which always ends with a decision.
func (x *exchange) wait(stream grpc.ServerStream, q *queued) (reply, error) {
	began := time.Now()
	defer func() { x.srv.metrics.waits.Observe(time.Since(began).Seconds()) }()

	// Envoy's timeout is longer than the wait, so that it does not end first. In mode FullDuplex it has none.
	longest := time.Until(q.ticket.Until())
	if x.mode != messages.FullDuplex {
		if err := stream.SendMsg(&messages.Response{Wait: max(0, longest) + envoyPatience}); err != nil {
			x.cancel(q)
			return reply{}, streamEnd(err)
		}
	}

	expiry := time.NewTimer(longest)
	defer expiry.Stop()
	var d *route.Decision
	select {
	case d = <-q.decided:
	case <-stream.Context().Done():
		x.cancel(q)
		return reply{}, nil
	case <-expiry.C:
		d = x.srv.router.Expire(q.ticket, time.Now())
		if d == nil { // a decision was made at the same moment
			d = <-q.decided
		}
	}

	// See Process: after a reset Envoy's access log may not end this booking.
	if d.Outcome == route.Picked && stream.Context().Err() != nil {
		x.srv.router.End(d.ID, time.Now())
		x.srv.metrics.outcomes.WithLabelValues(outcomeCancelled).Inc()
		return reply{}, nil
	}

	r := x.conclude(d, q.body, time.Now())
	x.srv.observe(x, r, time.Since(began))
	return r, nil
}

// cancel removes a request from the queue because its client has cancelled. If it was decided at the same
// moment its booking ends.
func (x *exchange) cancel(q *queued) {
	if !x.srv.router.Cancel(q.ticket) {
		if d := <-q.decided; d.Outcome == route.Picked {
			x.srv.router.End(d.ID, time.Now())
		}
	}
	x.srv.metrics.outcomes.WithLabelValues(outcomeCancelled).Inc()
}
