package accesslog

import (
	"net/http"
	"strings"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/route"
)

// The outcomes of requests.
const (
	AsPicked    = "as_picked"   // served by the picked worker
	Retried     = "retried"     // served by another worker after a failed attempt
	Failed      = "failed"      // a worker was reached, and its answer was a server error, cut off, or none
	Misdirected = "misdirected" // served by another worker without a failed attempt: the pick was ignored
	Unpicked    = "unpicked"    // sent to a worker that Envoy chose without a decision
	Unserved    = "unserved"    // picked, but no worker was reached
	Answered    = "answered"    // answered by the gateway without a worker
	Unconfirmed = "unconfirmed" // picked; it is not known who served
)

// outcomeOf returns how a request was served.
func outcomeOf(e *messages.Entry) string {
	decided := e.Decision != ""
	first, _, _ := strings.Cut(e.Picked, ",") // the others are for retries

	switch {
	case !decided && !e.Upstream:
		return Answered
	case !decided:
		return Unpicked
	case !e.Upstream:
		return Unserved
	case failed(e):
		return Failed
	case e.Served == first:
		return AsPicked
	case e.Attempts > 1:
		return Retried
	default:
		return Misdirected
	}
}

// endingOf returns how a request ended, for its booking.
func endingOf(e *messages.Entry) route.Ending {
	return route.Ending{
		ID: e.Booking, Served: servedBy(e), Failed: failed(e), Refused: refused(e), Tried: triedLast(e),
		CutOff: e.Broken && !e.Left && e.FirstByte > 0, Left: e.Left && e.FirstByte == 0,
	}
}

// failed reports whether the client got no good answer because of the workers. A client that left has not waited
// for one.
func failed(e *messages.Entry) bool {
	return e.Status >= http.StatusInternalServerError || e.Broken && !e.Left
}

// refused reports whether a worker answered that the request is at fault. Engines check a request before they compute
// anything of it.
func refused(e *messages.Entry) bool {
	return e.Status >= http.StatusBadRequest && e.Status < http.StatusInternalServerError
}

// servedBy returns the address of the worker whose answer the client received; empty if there was none, or if it is
// not known. Envoy names the worker of the last attempt, also if that failed.
func servedBy(e *messages.Entry) string {
	if !e.Upstream || e.FirstByte == 0 {
		return ""
	}
	return e.Served
}

// triedLast returns the address of the worker that was tried last, if no worker answered. A client that left may
// have left before the answer.
func triedLast(e *messages.Entry) string {
	if e.FirstByte > 0 || e.Left {
		return ""
	}
	return e.Served
}
