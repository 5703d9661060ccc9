package fleet

import (
	"sync/atomic"
	"time"
)

// recent is the load that this replica has booked on a rank in the last moment. The other replicas do not know it yet, as this one does not
// know theirs. A booking that comes while another one begins a new moment may be lost from it.
type recent struct {
	sums
	began atomic.Int64 // when the moment began, in nanoseconds since 1970
}

// moment is the time until the other replicas know a booking: it waits for the next publication, at most 5 ms, and is on its way.
const moment = 15 * time.Millisecond

// add adds a booking that is made now.
func (r *recent) add(a Amount, now time.Time) {
	if began := r.began.Load(); !isWithin(began, now) && r.began.CompareAndSwap(began, now.UnixNano()) {
		r.requests.Store(0)
		r.prefillTokens.Store(0)
		r.decodeBlocks.Store(0)
		r.prefillTime.Store(0)
	}
	r.sums.add(a)
}

// isWithin reports whether now is in the moment that began at some time.
func isWithin(began int64, now time.Time) bool {
	since := now.UnixNano() - began
	return since >= 0 && since <= int64(moment)
}

// Unseen returns the load that other replicas, so many, are expected to have booked on the rank and not yet published: each as much as this
// one in the same moment. Clients' requests reach all replicas alike, and a burst reaches them at once. Without this, all of them would
// take the same rank for the best and fill it together.
func (l *Load) Unseen(others int, now time.Time) Amount {
	if others <= 0 || !isWithin(l.recent.began.Load(), now) {
		return Amount{}
	}
	a, n := l.recent.amount(), int64(others)
	return Amount{Requests: n * a.Requests, PrefillTokens: n * a.PrefillTokens, DecodeBlocks: n * a.DecodeBlocks,
		PrefillTime: time.Duration(n) * a.PrefillTime}
}
