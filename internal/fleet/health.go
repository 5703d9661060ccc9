package fleet

import (
	"sync/atomic"
	"time"
)

// health is whether a rank is held back, because requests do not reach it. Another rank then serves them, and
// one request at a time finds out whether the rank is back:
//
//	event                            failures   held back until
//	a request is served there        0          -
//	the first ones are not           +1         -
//	the HoldAfter-th in a row, and   +1         HoldTime from now
//	each one after it
//	a request is sent there as a     -          HoldTime from now
//	probe, when the time is over
//
// A worker that starts again with a new epoch has new ranks, which are not held back.
type health struct {
	failures atomic.Int32
	until    atomic.Int64 // in nanoseconds since 1970; 0 for a rank that is not held back
}

// HoldAfter is how many requests in a row a rank must fail to serve, and HoldTime how long it is then held back.
const (
	HoldAfter = 3
	HoldTime  = 5 * time.Second
)

// IsHeldBack reports whether the rank should get no requests now.
func (l *Load) IsHeldBack(now time.Time) bool {
	until := l.health.until.Load()
	return until != 0 && now.UnixNano() < until
}

// HasFailed reports whether the rank did not serve the last request that was sent there.
func (l *Load) HasFailed() bool { return l.health.failures.Load() != 0 }

// ObserveServed records that the rank has served a request.
func (l *Load) ObserveServed() {
	l.health.failures.Store(0)
	l.health.until.Store(0)
}

// ObserveUnserved records that a request was sent to the rank, and that the rank did not serve it. True means
// that the rank is held back from now on.
func (l *Load) ObserveUnserved(now time.Time) bool {
	if l.health.failures.Add(1) < HoldAfter {
		return false
	}
	l.health.until.Store(now.Add(HoldTime).UnixNano())
	return true
}

// Probe records that a request is sent to the rank. True means that the rank was held back, and is held back
// again until it has served the request.
func (l *Load) Probe(now time.Time) bool {
	if l.health.until.Load() == 0 {
		return false
	}
	l.health.until.Store(now.Add(HoldTime).UnixNano())
	return true
}
