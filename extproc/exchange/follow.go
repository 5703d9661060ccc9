package exchange

import "time"

// Feedback receives the ends of requests whose Envoy has no access log. Its methods are safe for concurrent use.
type Feedback interface {
	// Wanted reports whether the ends of this Envoy's requests are not known to arrive in an access log.
	Wanted(source string) bool
	// Follow makes room for one more request that is followed to its end, which Ended receives. False means that there
	// is none.
	Follow(source, booking string) bool
	Ended(source string, e Ending, now time.Time)
}

// Ending describes the end of a followed request, as far as its door has seen it.
type Ending struct {
	// Booking is the id of the booking, and Picked the destinations of the pick.
	Booking, Picked string
	// Status is the HTTP status of the response; 0 if the door saw none. Served is the address of the worker that
	// answered; empty if it is not known.
	Status uint32
	Served string
	// FirstByte, FirstToken and LastByte are the times from the headers of the request to the headers, to the first byte of the body and
	// to the end of the response; 0 for what the door has not seen. ResponseBytes is the part of its body that the door has seen.
	FirstByte, FirstToken, LastByte time.Duration
	ResponseBytes                   uint64
	// Output is the number of tokens of the response by its usage; 0 if the door has not read it.
	Output int
	// Unseen means that the request may go on: Envoy has stopped sending events of it.
	Unseen bool
}

// following is the state of a request that may be followed to its end.
type following struct {
	wanted      bool   // the end is to be reported
	eventStream bool   // the response is a stream of events
	ending      Ending // in phase Following
}

// Response holds the headers of a response that matter here.
type Response struct {
	Status uint32
	// Served is the address of the worker that answered; empty if it is not known.
	Served string
	// EventStream means that the body is a stream of events, so that it ends long after the headers.
	EventStream bool
}

// OnResponse handles the headers of the response. end means that it has no body.
func (x *Exchange) OnResponse(r Response, end bool, now time.Time) {
	if x.phase != Following {
		return
	}
	x.ending.Status = r.Status
	x.ending.Served = r.Served
	x.ending.FirstByte = max(1, now.Sub(x.began))
	x.eventStream = r.EventStream
	if end {
		x.finish(now)
	}
}

// OnResponseBody handles a piece of the response's body, of that many bytes. end means that it is the last one.
func (x *Exchange) OnResponseBody(bytes int, end bool, now time.Time) {
	if x.phase != Following {
		return
	}
	if x.ending.ResponseBytes == 0 && bytes > 0 {
		x.ending.FirstToken = max(1, now.Sub(x.began))
	}
	x.ending.ResponseBytes += uint64(bytes)
	if end {
		x.finish(now)
	}
}

// OnUsage handles the number of tokens in the usage of the response.
func (x *Exchange) OnUsage(output int) { x.ending.Output = output }

// OnEnd handles the end of a followed request. over means that the request has ended; otherwise Envoy has only stopped
// sending events of it. A response that is no stream of events is complete when the worker sends its headers, so that the
// request is as good as over then. OnEnd may be called more than once.
func (x *Exchange) OnEnd(over bool, now time.Time) {
	if x.phase != Following {
		return
	}
	answered := x.ending.Status > 0 && !x.eventStream
	x.ending.Unseen = !over && !answered
	x.finish(now)
}

// follow begins to follow a picked request to its end, if there is room.
func (x *Exchange) follow(r *Reply) {
	if !x.wanted || !x.svc.feedback.Follow(x.origin.Source, x.booking) {
		return
	}
	x.phase = Following
	x.ending.Booking = x.booking
	x.ending.Picked = r.Destinations
	r.Follow = true
}

// finish reports the end of a followed request.
func (x *Exchange) finish(now time.Time) {
	x.phase = Finished
	if x.ending.Status > 0 && !x.ending.Unseen {
		x.ending.LastByte = max(1, now.Sub(x.began))
	}
	x.svc.feedback.Ended(x.origin.Source, x.ending, now)
}
