package accesslog

import (
	"sync/atomic"
	"time"

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

// silence is for how long no request may end, with manyWithoutID bookings, before a warning is logged. It is long,
// because so many requests that all take minutes are rare, and an Envoy without an access log ends none.
const silence = 5 * time.Minute

// noEntries finds that no access log arrives, although requests are decided. observe is for one goroutine.
type noEntries struct {
	entries atomic.Int64
	last    int64     // entries at the last look
	since   time.Time // when the silence began; zero while there is none
	logged  bool      // in this silence
}

// observe looks at the entries and the bookings of now. It returns true once in a silence.
func (n *noEntries) observe(bookings int, now time.Time) bool {
	entries := n.entries.Load()
	if entries != n.last || bookings < manyWithoutID {
		n.last = entries
		n.since = time.Time{}
		n.logged = false
		return false
	}

	if n.since.IsZero() {
		n.since = now
	}
	if n.logged || now.Sub(n.since) < silence {
		return false
	}
	n.logged = true
	return true
}
