package fleet

import "time"

// A worker with several data-parallel ranks is one HTTP server with a scheduler for each rank. A rank can fail alone: its requests
// fail or stall, its event connection ends, or its canary has no answer. So the fleet keeps a [Health] for each rank of such a
// worker, beside the worker's. What is observed of a request counts for its rank; the engine is asked, too, because its process may
// have ended. A rank that is down, or that must not get another request, is passed over, and the other ranks of the worker go on.
//
// The engine's answer for its health shows nothing of a rank. Its requests do, and canaries.

// RankHealth is the health of the rank alone; nil if its worker has one rank.
func (l *Load) RankHealth() *Health { return l.rank }

// HealthView is the health of the rank: its worker's, or its own if only the rank is in doubt.
func (l *Load) HealthView() HealthView {
	worker := l.health.View()
	if l.rank == nil || worker.State != HealthReady {
		return worker
	}
	rank := l.rank.View()
	if rank.State == HealthReady {
		return worker
	}
	rank.Asleep, rank.CachingOff = worker.Asleep, worker.CachingOff
	return rank
}

// Admits reports whether the rank, with the given number of booked requests, should get another one.
func (l *Load) Admits(booked int64, now time.Time) bool {
	return l.health.Admits(booked, now) && (l.rank == nil || l.rank.Admits(booked, now))
}

// HasFailed reports whether the rank did not serve the last request that was sent there.
func (l *Load) HasFailed() bool { return l.health.HasFailed() || l.rank != nil && l.rank.HasFailed() }

// Picked records that a request is sent to the rank.
func (l *Load) Picked(now time.Time) {
	l.each(func(h *Health) { h.Picked(now) })
}

// ObserveProgress records that the rank has computed or published something.
func (l *Load) ObserveProgress(now time.Time) {
	l.each(func(h *Health) { h.ObserveProgress(now) })
}

// ObserveServed records that the rank has served a request.
func (l *Load) ObserveServed(now time.Time) {
	l.each(func(h *Health) { h.ObserveServed(now) })
}

// ObserveUnserved records that a request was sent to the rank, which did not serve it. True means that the rank is half-open since then.
func (l *Load) ObserveUnserved(now time.Time) (halfOpen bool) {
	if l.rank == nil {
		return l.health.ObserveUnserved(now)
	}
	l.health.observeRankUnserved(now)
	return l.rank.ObserveUnserved(now)
}

// ObserveEventsLost records that the connection to the rank's KV events has ended.
func (l *Load) ObserveEventsLost(now time.Time) {
	l.each(func(h *Health) { h.ObserveEventsLost(now) })
}

// ObserveServerError records that a request to the rank was answered with a server error. The request may be the cause, so it is a
// doubt of one rank among several alone: its canary decides.
func (l *Load) ObserveServerError(now time.Time) {
	if l.rank != nil {
		l.rank.suspect("an answer was a server error", now)
	}
}

// ObserveCutOff records that the rank's side ended a response early.
func (l *Load) ObserveCutOff(now time.Time) {
	l.each(func(h *Health) { h.ObserveCutOff(now) })
}

// ObserveOverdue records that a request has waited for its first token, or for the next one, for longer than the rank was ever expected to
// need.
func (l *Load) ObserveOverdue(now time.Time) {
	l.each(func(h *Health) { h.ObserveOverdue(now) })
}

// each calls f for the worker's health, and for the rank's own.
func (l *Load) each(f func(h *Health)) {
	f(l.health)
	if l.rank != nil {
		f(l.rank)
	}
}

// observeRankUnserved records that one of several ranks did not serve a request. The engine is asked. A worker that is half-open is held
// back: the request has tried it.
func (h *Health) observeRankUnserved(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()

	switch h.state {
	case HealthHalfOpen:
		h.holdBack(now)
	case HealthReady:
		h.setState(HealthSuspect, "a request was not served", now)
	}
	h.settle()
	h.alarm()
}

// ObserveRankProbe records the answer of one rank of a worker to a completion, and returns the rank's health before and after. ok is
// false if there is no such worker with several ranks at that address (any more). A silent rank may always leave: its siblings share
// its network.
func (f *Fleet) ObserveRankProbe(name, address string, rank int, p Probe, now time.Time) (before, after HealthView, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[name]
	if m == nil || m.worker.Address != address || rank >= len(m.loads) || m.loads[rank].rank == nil {
		return before, after, false
	}

	h := m.loads[rank].rank
	before = h.View()
	h.observeProbe(p, mayLeave, now)
	return before, h.View(), true
}
