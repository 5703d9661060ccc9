package fleet

import (
	"sync"
	"sync/atomic"
	"time"
)

// HealthState is the known state of a worker: whether it serves requests.
type HealthState uint8

// The states. Requests go to ready workers. A suspect one still gets them, unless its engine was asked and did not
// answer well. A half-open one gets few.
const (
	HealthUnknown HealthState = iota
	HealthReady
	HealthSuspect
	HealthDown
	HealthHalfOpen

	// HealthStates is the number of health states.
	HealthStates = 5
)

var healthNames = [HealthStates]string{"unknown", "ready", "suspect", "down", "half-open"}

func (s HealthState) String() string { return name(healthNames[:], uint8(s)) }

// Health has the known state of one engine process, and its evidence. Its ranks share an HTTP server, so they have this state in
// common. Each of several ranks has another Health for itself: see [Load.RankHealth]. Evidence comes from probes of the engine, from
// requests and from its event connections. Leases and the configuration describe the worker itself: see [Worker.State]. A new epoch
// has a new Health.
//
// Workers that no agent reports begin as unknown, and all others as ready:
//
//	evidence               unknown   ready     suspect       down        half-open
//	probe: healthy         ready     -         ready (1)     half-open   ready after rampTime
//	probe: refused         -         suspect   down          -           suspect
//	probe: silent (2)      -         suspect   down (3)      -           suspect
//	request served         -         -         ready (1, 4)  -           ready after some: share doubles
//	request not served     -         suspect   suspect (5)   -           half-open: share 1, after HoldTime
//	event connection lost  -         suspect   -             -           -
//	first token overdue    -         suspect   -             -           -
//	response cut off       -         suspect   -             -           -
//	agent reports again    ready     -         ready         ready       ready
//
// (1) half-open if it was half-open before. (2) A probe counts as silent only if the worker has made no progress since the engine was
// asked: a busy engine may answer late. A connection that is reset is silence: the network may have done it. (3) No silent worker leaves
// when fewer than half of its pool would be ready without it, because the network may be the cause. It stays suspect, and gets requests if
// no other worker can take them; the last one gets all. (4) Not after a probe that was refused or silent. (5) half-open with the
// HoldAfter-th request in a row.
//
// An unknown worker is starting and a down one is down, whatever its source reports. In the other health states, it has the state that its
// source reports. Two kinds of evidence confirm each other: an engine that refuses a probe after a request has failed is down at once, and
// one that only refuses probes after the second one.
//
// The evidence wakes the prober of the worker, so that suspicion lasts as long as one probe.
//
// All methods are safe for concurrent use.
type Health struct {
	// plain is true for a ready worker without failures: then requests that are served change nothing.
	plain atomic.Bool
	// progress is the time at which the worker was last seen to work, in nanoseconds since 1970.
	progress atomic.Int64
	// uncached is 0 for an engine with a prefix cache, reportedOff for one that has reported to have none, and else the time of a doubt, in
	// nanoseconds since 1970: another process may run since then.
	uncached atomic.Int64
	// wake has one place: a reason that finds it full is covered by the one before it.
	wake chan struct{}
	// ofRank is true for one rank of several. A worker that is down is no candidate, by its [Worker.State]. A rank has none.
	ofRank bool
	// restricted counts the workers of the fleet that should not get every request.
	restricted *atomic.Int64

	mu sync.Mutex
	// The fields below are guarded by mu.
	state      HealthState
	since      time.Time // when the state began; zero for the first one
	why        string    // the evidence that led to the state
	failures   int       // requests in a row that were not served
	unanswered bool      // the last probe was refused or silent
	probed     time.Time // when the last answer of a probe came
	share      int64     // requests at once while half-open, 0 if there is no bound
	notBefore  time.Time // of another request than the one that tries a half-open worker
	kept       bool      // silent, and stays because too few of its pool are ready
	counted    bool      // in restricted
	asleep     bool      // the engine has reported so
	gone       bool      // its worker has left, or has a new epoch
}

const (
	// HoldAfter is the number of requests in a row that a worker must fail to serve before it is half-open, whatever its probes
	// show. Envoy may not reach it.
	HoldAfter = 3
	// HoldTime is the time in which a half-open worker gets no request after one that failed. After the same time another one may go there
	// although the last has not ended, because the end of a request may be lost.
	HoldTime = 5 * time.Second
	// fullShare is the greatest number of requests at once of a half-open worker. Beyond it the worker is ready: it has then
	// served four, some of them at once.
	fullShare = 8
	// rampTime is the time with healthy probes after which a half-open worker without requests is ready.
	rampTime = 30 * time.Second
	// overdueEvery is the least time between the last answer of an engine and the suspicion that it has stopped
	// since.
	overdueEvery = 500 * time.Millisecond
)

// newHealth returns the health of a new epoch. restricted is the counter of its fleet.
func newHealth(state HealthState, restricted *atomic.Int64) *Health {
	h := &Health{state: state, restricted: restricted, wake: make(chan struct{}, 1)}
	h.settle()
	return h
}

// Wake returns a channel that has a value when the engine should be probed now.
func (h *Health) Wake() <-chan struct{} { return h.wake }

// ObserveProgress records that the worker has computed or published something.
func (h *Health) ObserveProgress(now time.Time) { h.progress.Store(now.UnixNano()) }

// Progress returns the time at which the worker was last seen to work; 1970 if it never was.
func (h *Health) Progress() time.Time { return time.Unix(0, h.progress.Load()) }

// ObserveAsleep records whether the engine sleeps, by its last report. While it does, the worker gets requests only if no other can take
// them.
func (h *Health) ObserveAsleep(asleep bool) {
	if !asleep && h.plain.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asleep = asleep
	h.settle()
}

// ObserveServed records that the worker has served a request.
func (h *Health) ObserveServed(now time.Time) {
	h.progress.Store(now.UnixNano())
	if h.plain.Load() {
		return
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures = 0
	switch {
	case h.state == HealthSuspect && !h.unanswered:
		h.recover("a request was served", now)
	case h.state == HealthHalfOpen:
		h.share *= 2
		if h.share > fullShare {
			h.setState(HealthReady, "requests were served", now)
		}
	}
	h.settle()
}

// ObserveUnserved records that a request was sent to the worker, and that the worker did not serve it. True means that
// the worker is half-open since then.
func (h *Health) ObserveUnserved(now time.Time) (halfOpen bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.settle()
	h.failures++

	switch {
	case h.state == HealthHalfOpen:
		h.holdBack(now)
	case h.state == HealthSuspect && h.failures >= HoldAfter,
		h.state == HealthReady && h.failures >= HoldAfter: // probes were healthy between the failures
		h.holdBack(now)
		halfOpen = true
	case h.state == HealthReady:
		h.setState(HealthSuspect, "a request was not served", now)
	}
	h.alarm()
	return halfOpen
}

// holdBack makes the worker half-open, with one request after HoldTime. mu is held.
func (h *Health) holdBack(now time.Time) {
	h.setState(HealthHalfOpen, "requests in a row were not served", now)
	h.share = 1
	h.notBefore = now.Add(HoldTime)
}

// ObserveEventsLost records that the connection to the worker's KV events has ended.
func (h *Health) ObserveEventsLost(now time.Time) { h.suspect("its event connection was lost", now) }

// ObserveCutOff records that the worker's side ended a response early.
func (h *Health) ObserveCutOff(now time.Time) { h.suspect("a response was cut off", now) }

// ObserveOverdue records that a request has waited for its first token, or for the next one, for longer than the worker was ever expected
// to need. A worker whose engine has just answered is not suspected.
func (h *Health) ObserveOverdue(now time.Time) {
	h.mu.Lock()
	recent := now.Sub(h.probed) < overdueEvery
	h.mu.Unlock()
	if !recent {
		h.suspect("a token is overdue", now)
	}
}

// suspect makes a ready worker a suspect, and has it probed.
func (h *Health) suspect(why string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != HealthReady {
		return
	}
	h.setState(HealthSuspect, why, now)
	h.settle()
	h.alarm()
}

// trust makes the worker ready, because its agent reports it again.
func (h *Health) trust(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != HealthReady {
		h.setState(HealthReady, "its agent reports it", now)
	}
	h.unanswered = false
	h.settle()
}

// setState changes the state. mu is held.
func (h *Health) setState(to HealthState, why string, now time.Time) {
	h.why = why
	if h.state == to {
		return
	}
	h.state = to
	h.since = now
	if to == HealthReady {
		h.share = 0
		h.unanswered = false
	}
}

// settle updates the fields that are read without mu, after each change. mu is held, or nothing else has the Health yet.
func (h *Health) settle() {
	h.plain.Store(h.state == HealthReady && h.failures == 0 && !h.asleep)

	inDoubt := h.state == HealthHalfOpen || h.state == HealthSuspect && h.unanswered
	isDownRank := h.ofRank && h.state == HealthDown
	restricted := !h.gone && (h.asleep || inDoubt || isDownRank)
	switch {
	case restricted && !h.counted:
		h.restricted.Add(1)
	case !restricted && h.counted:
		h.restricted.Add(-1)
	}
	h.counted = restricted
}

// alarm has the engine probed now. mu is held.
func (h *Health) alarm() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// retire ends the Health of a worker that has left.
func (h *Health) retire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = true
	h.settle()
}

// effective returns the state of a worker whose source reports one.
func (h *Health) effective(source State) State {
	h.mu.Lock()
	defer h.mu.Unlock()

	switch {
	case source != Ready:
		return source
	case h.state == HealthUnknown:
		return Starting
	case h.state == HealthDown:
		return Down
	}
	return source
}

// HealthView is the health of a worker at one moment.
type HealthView struct {
	State HealthState
	// Why is the evidence that led to the state; empty for a worker that was never in doubt.
	Why string
	// Since is the time at which the state began, and Probed the time at which the engine answered last or was found silent. Both are
	// zero if that has not happened.
	Since, Probed time.Time
	// Asleep means that the engine has reported to sleep.
	Asleep bool
	// CachingOff means that the engine has reported to have no prefix cache.
	CachingOff bool
	// Kept means that the engine is silent, and that the worker stays because it is the last of its pool.
	Kept bool
}

// View returns the health now.
func (h *Health) View() HealthView {
	h.mu.Lock()
	defer h.mu.Unlock()
	return HealthView{
		State: h.state, Why: h.why, Since: h.since, Probed: h.probed, Asleep: h.asleep, Kept: h.kept,
		CachingOff: h.uncached.Load() == reportedOff,
	}
}

// String describes the health in a few words, such as "down: connection refused".
func (v HealthView) String() string {
	if v.Why == "" {
		return v.State.String()
	}
	return v.State.String() + ": " + v.Why
}
