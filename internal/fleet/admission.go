package fleet

import "time"

// Admits reports whether a rank of the worker, with the given number of booked requests, should get another one. If no rank of a pool
// is admitted, all may get it.
func (h *Health) Admits(booked int64, now time.Time) bool {
	if h.plain.Load() {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()

	switch {
	case h.asleep:
		return false
	case h.ofRank && h.state == HealthDown:
		return false
	case h.state == HealthSuspect:
		return !h.unanswered
	case h.state != HealthHalfOpen:
		return true
	case now.Before(h.notBefore):
		// The first request must have been served. Later ones may go there beside each other.
		return h.share > 1 && booked < h.share
	}
	// The ends of the booked requests may be lost. After some time another request finds out.
	return booked < h.share || !h.notBefore.IsZero()
}

// Picked records that a request is sent to the worker.
func (h *Health) Picked(now time.Time) {
	if h.plain.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == HealthHalfOpen {
		h.notBefore = now.Add(HoldTime)
	}
}

// HasFailed reports whether the worker did not serve the last request that was sent there.
func (h *Health) HasFailed() bool {
	if h.plain.Load() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failures > 0
}
