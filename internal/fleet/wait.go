package fleet

import (
	"sync/atomic"
	"time"
)

// Wait estimates how long a prompt that is booked now waits for the prefills before it.
//
//	elapsed < booked                     the rest of their time
//	late by more than 300 ms up to 10 s  as long as they are late
//	always                               at least an eighth of their time
//
// Booked is the estimated time of all of them, and elapsed the time since the rank began with the first. They are late by elapsed −
// booked, less the time by which the ends of this rank's prefills are usually seen late: its events may be slow. Prefills are later than
// that because the rank compiles kernels or has stopped. Such times have no typical length: a prefill that has lasted a second longer
// than expected is likely to last another one. If prefills of other replicas run, too, their bookings are known too late for this, and
// prefills do not count as late, nor if one of them waits until a request has ended.
func (l *Load) Wait(now time.Time) time.Duration {
	return l.waitFor(l.prefillTime(), now.UnixNano())
}

// waitFor returns the wait for prefills that take some time, at a moment in nanoseconds since 1970.
func (l *Load) waitFor(booked time.Duration, now int64) time.Duration {
	if booked <= 0 {
		return 0
	}

	elapsed := l.elapsed(now)
	late := elapsed - booked - l.lateness.usual()
	if late < minLate || late > maxLate || l.mixed.Load() || l.held.Load() {
		late = 0
	}
	return max(booked-elapsed, late, booked/8)
}

const (
	// minLate is the lateness from which on prefills count as late. Events are up to 50 ms late, and engines that collect garbage were seen
	// to stand still for 100 to 300 ms, which are over when they can be noticed.
	minLate = 300 * time.Millisecond
	// maxLate is the lateness up to which they count. Beyond it the worker's health decides whether it is used. If it is well, an event was
	// missed, and the rank must not be avoided for that.
	maxLate = 10 * time.Second
)

// lateness is the time by which the ends of a rank's prefills are usually seen later than expected. Only the first of some prefills that
// follow each other is seen late, so a later one raises the figure quickly, but by little each time, and all others lower it slowly. One
// stall does not become usual.
type lateness struct{ nanoseconds atomic.Int64 }

const (
	latenessStep  = 100 * time.Millisecond
	latenessShare = 32
)

// observe adds by how much an end was late; negative for one that was early.
func (l *lateness) observe(late time.Duration) {
	usual := l.usual()
	if late > usual {
		usual += min(late-usual, latenessStep)
	} else {
		usual -= (usual - max(late, 0)) / latenessShare
	}
	l.nanoseconds.Store(int64(usual))
}

func (l *lateness) usual() time.Duration { return time.Duration(l.nanoseconds.Load()) }
