package accesslog

import (
	"sync/atomic"

	"github.com/stator-project/stator/extproc/messages"
)

// manyWithoutID is after how many requests in a row without an id, and with how many bookings, a warning is logged.
// While a router starts there are a few such requests, and no bookings.
const manyWithoutID = 100

// noIDs counts the requests that workers served without an id of a decision, in a row. An Envoy whose filters do not
// pass the router's metadata on has only such requests.
type noIDs struct{ inARow atomic.Int64 }

// observe counts an entry. It returns true once in a row, at manyWithoutID.
func (n *noIDs) observe(e *messages.Entry) bool {
	switch {
	case e.Booking != "":
		n.inARow.Store(0)
		return false
	case !e.Upstream || e.Decision != "":
		return false
	}
	return n.inARow.Add(1) == manyWithoutID
}
