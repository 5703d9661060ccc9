package stream

import (
	"time"

	"google.golang.org/grpc"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/route"
)

// parked is a request that waits for its turn.
type parked struct {
	ticket *route.Ticket
	told   chan *route.Decision // of one: the router must not wait for us
	body   []byte               // what takes the place of the request's body; nil leaves it
}

// slack is how much longer than a wait Envoy is told to be patient: the answer that ends the wait
// must reach it before it sends the request on unpicked.
const slack = 5 * time.Second

// park waits until the request's turn has come, its wait is over, or its client has left; then the
// reply is empty. Envoy is told first that it will take longer than it is used to: it hears that once
// for each of its messages, so there is one wait, and it always ends with an answer.
func (x *exchange) park(stream grpc.ServerStream, p *parked) (reply, error) {
	began := time.Now()
	defer func() { x.srv.metrics.waits.Observe(time.Since(began).Seconds()) }()
	left := time.Until(p.ticket.Until())
	if err := stream.SendMsg(&messages.Response{Wait: max(0, left) + slack}); err != nil {
		x.leave(p)
		return reply{}, ended(err)
	}
	end := time.NewTimer(left)
	defer end.Stop()
	var d *route.Decision
	select {
	case d = <-p.told:
	case <-stream.Context().Done():
		x.leave(p)
		return reply{}, nil
	case <-end.C:
		if d = x.srv.router.Expire(p.ticket, time.Now()); d == nil {
			d = <-p.told
		}
	}
	if d.Outcome == route.Picked && stream.Context().Err() != nil {
		x.srv.router.End(d.ID, time.Now())
		x.srv.metrics.outcomes.WithLabelValues("left").Inc()
		return reply{}, nil
	}
	r := x.conclude(d, p.body, time.Now())
	x.srv.observe(x, r, time.Since(began))
	return r, nil
}

// leave takes a request whose client has gone out of the queue, or off the rank that it was given in
// the same moment.
func (x *exchange) leave(p *parked) {
	if !x.srv.router.Cancel(p.ticket) {
		if d := <-p.told; d.Outcome == route.Picked {
			x.srv.router.End(d.ID, time.Now())
		}
	}
	x.srv.metrics.outcomes.WithLabelValues("left").Inc()
}
