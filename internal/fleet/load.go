package fleet

import (
	"sync/atomic"
	"time"
)

// Load is what one rank is doing. Booked figures are what this router replica has placed
// there and not yet seen end; reported figures are the engine's own words. All methods are
// safe for concurrent use.
//
// Invariant: the booked figures are the sums over the bookings that have not ended, so
// they are all zero when there are none.
type Load struct {
	requests      atomic.Int64
	prefillTokens atomic.Int64
	decodeBlocks  atomic.Int64
	reported      atomic.Pointer[Report]
}

// Report is one sample of an engine's own load figures.
type Report struct {
	At      time.Time
	Running int     // requests in the batch
	Waiting int     // requests in the engine's queue
	KVUsage float64 // share of the KV cache in use, 0 to 1
}

// Amount is one booking's weight on a rank.
type Amount struct {
	Requests      int64 // 1, or -1 to take it back
	PrefillTokens int64 // tokens that must still be computed
	DecodeBlocks  int64 // blocks the request will occupy
}

// Add adds a to the booked figures; negative amounts take a booking back.
func (l *Load) Add(a Amount) {
	l.requests.Add(a.Requests)
	l.prefillTokens.Add(a.PrefillTokens)
	l.decodeBlocks.Add(a.DecodeBlocks)
}

// Booked returns the booked figures. The three are read one after another: a reader beside
// a writer may see a booking in one and not yet in the next.
func (l *Load) Booked() Amount {
	return Amount{
		Requests:      l.requests.Load(),
		PrefillTokens: l.prefillTokens.Load(),
		DecodeBlocks:  l.decodeBlocks.Load(),
	}
}

// SetReport keeps the engine's newest sample.
func (l *Load) SetReport(r Report) { l.reported.Store(&r) }

// Reported returns the newest sample; ok is false while there is none.
func (l *Load) Reported() (r Report, ok bool) {
	p := l.reported.Load()
	if p == nil {
		return Report{}, false
	}
	return *p, true
}
