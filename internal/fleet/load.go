package fleet

import (
	"sync/atomic"
	"time"
)

// Load is the load of one rank. Booked figures count the requests that routers have placed there and whose
// end they have not seen. Reported figures come from the engine. All methods are safe for concurrent use.
//
// The rank is expected to compute its prefills one after the other. Load keeps when it began with the first
// of them, to know how much of their time is left:
//
//	event                               since      mixed   shared   held
//	first prefill is booked             now        false   false    false
//	another prefill is booked           -          -       true     -
//	a prefill is booked that waits
//	  until another request has ended   -          -       -        true
//	a prefill ends                      now        -       -        -
//	another replica's prefill begins
//	  on an idle rank, or ends          now        true    -        -
//	another replica's prefills change   -          true    -        -
type Load struct {
	// The fields from here to pace are read by each decision, of each rank. They lie together, because a thousand ranks do not fit into the
	// nearest caches of a core.

	// own is the sum over this replica's bookings that have not ended. peers is the sum of the other
	// replicas' bookings, as last published. Invariant: own is zero when this replica has no booking.
	own, peers sums
	// begun is the sum of the times at which the requests of own were booked, in milliseconds since 1970.
	begun atomic.Int64
	// since is the time at which the rank began with the prefill that it computes now, in nanoseconds since 1970. It has no
	// meaning while no prefill is booked.
	since atomic.Int64
	// nextPass is the time at which the rank is expected to begin a pass with the prompts that are booked now, in nanoseconds since 1970.
	nextPass atomic.Int64
	reported atomic.Pointer[sample] // nil until the first report
	pace     pace

	health *Health // of the worker; nil for a Load that no fleet has made
	rank   *Health // of the rank alone; nil if the worker has one rank
	// mixed is true if prefills of other replicas have run since this replica's first one began. shared is
	// true if more than one prefill of this replica has. held is true if one of them was expected to wait for an answer to end: then it is
	// not known how long the rank computed them.
	mixed, shared, held atomic.Bool
	// served is the time at which the latest request was booked that was served to its end, in nanoseconds since 1970.
	served atomic.Int64
	// admitted is the time of the last report in which no request waited, in nanoseconds since 1970.
	admitted atomic.Int64
	// lastEnd is the time of the last end of a prefill that was observed, in nanoseconds since 1970.
	lastEnd  atomic.Int64
	recent   recent
	prefills prefills
	slots    slots
	// lag is the mean delay of the rank's events when they are received, in nanoseconds.
	lag      atomic.Int64
	ages     leastAge
	lateness lateness
	mark     *sample // the report since which the work of the engine is not yet known; only SetReport uses it
}

// sums is an Amount to which many goroutines add.
type sums struct{ requests, prefillTokens, decodeBlocks, prefillTime atomic.Int64 }

func (s *sums) add(a Amount) {
	s.requests.Add(a.Requests)
	s.prefillTokens.Add(a.PrefillTokens)
	s.decodeBlocks.Add(a.DecodeBlocks)
	s.prefillTime.Add(int64(a.PrefillTime))
}

func (s *sums) amount() Amount {
	return Amount{
		Requests: s.requests.Load(), PrefillTokens: s.prefillTokens.Load(), DecodeBlocks: s.decodeBlocks.Load(),
		PrefillTime: time.Duration(s.prefillTime.Load()),
	}
}

// Amount is one booking's weight on a rank.
type Amount struct {
	Requests      int64 // sequences that the engine makes of it; negative to take them back
	PrefillTokens int64 // tokens that must still be computed
	DecodeBlocks  int64 // blocks the request will occupy
	// PrefillTime is the estimated time to compute PrefillTokens.
	PrefillTime time.Duration
}

// Negative is the amount that takes a back.
func (a Amount) Negative() Amount {
	return Amount{Requests: -a.Requests, PrefillTokens: -a.PrefillTokens, DecodeBlocks: -a.DecodeBlocks, PrefillTime: -a.PrefillTime}
}

// Prefill is the part of a that ends with the first token.
func (a Amount) Prefill() Amount {
	return Amount{PrefillTokens: a.PrefillTokens, PrefillTime: a.PrefillTime}
}

// plus is the sum of both.
func (a Amount) plus(b Amount) Amount {
	return Amount{a.Requests + b.Requests, a.PrefillTokens + b.PrefillTokens, a.DecodeBlocks + b.DecodeBlocks,
		a.PrefillTime + b.PrefillTime}
}

// Health is the health of the rank's worker.
func (l *Load) Health() *Health { return l.health }

// Caches reports whether the rank's engine is known to have a prefix cache.
func (l *Load) Caches() bool { return l.health == nil || l.health.Caches() }

// Add adds a booking that was made at some time to the load that this replica has booked; negative amounts take a booking back.
func (l *Load) Add(a Amount, booked time.Time) {
	l.begun.Add(a.Requests * booked.UnixMilli())
	l.own.add(a)
	if a.Requests > 0 {
		l.recent.add(a, booked)
	}
}

// SetPeer replaces the amount that one other replica had booked, was, with the amount that it has booked
// now. If its prefill time has become less, the rank has finished a prefill and begun the next; if its prompt tokens have, it has computed
// them.
func (l *Load) SetPeer(was, is Amount, now time.Time) {
	beginsIdle := l.prefillTime() <= 0 && is.PrefillTime > 0
	if beginsIdle || is.PrefillTime < was.PrefillTime {
		l.since.Store(now.UnixNano())
	}
	if is.PrefillTime != was.PrefillTime {
		l.mixed.Store(true)
	}
	if computed := was.PrefillTokens - is.PrefillTokens; computed > 0 {
		l.prefills.countPeer(computed)
	}
	l.peers.add(is.plus(was.Negative()))
}

// Own returns the load that this replica has booked.
func (l *Load) Own() Amount { return l.own.amount() }

// Booked returns the load that all replicas have booked, by their last publications. Its figures are read one after another, so beside a
// writer a booking may be in one figure and not yet in the next.
func (l *Load) Booked() Amount { return l.own.amount().plus(l.peers.amount()) }

// prefillTime is the estimated time of all prefills that are booked.
func (l *Load) prefillTime() time.Duration {
	return time.Duration(l.own.prefillTime.Load() + l.peers.prefillTime.Load())
}

// PrefillBegins records that a prefill is booked. Call it before Add. An idle rank begins with it at once, unless it is held: no slot is
// free for it, or the cache has no room.
func (l *Load) PrefillBegins(held bool, now time.Time) {
	idle := l.prefillTime() <= 0
	if !l.IsGathering(now) {
		l.nextPass.Store(now.Add(max(l.Wait(now), l.stepLeft(now))).UnixNano())
	}
	if idle {
		l.since.Store(now.UnixNano())
		l.mixed.Store(false)
		l.held.Store(false)
		l.prefills.begin(now)
	}
	if held {
		l.held.Store(true)
	}
	l.shared.Store(!idle)
}

// IsGathering reports whether the rank is expected to compute a prompt that is booked now in one pass with another one, if both fit: a pass
// that has begun takes no more prompts, and prompts that come during it are computed together in the next. Prompts of other replicas do not
// count, because they are known too late.
func (l *Load) IsGathering(now time.Time) bool { return now.UnixNano() < l.nextPass.Load() }

// stepLeft returns the time that is left on average of the decode step that runs on the rank.
func (l *Load) stepLeft(now time.Time) time.Duration { return l.Gap(now, maxGapAge) / 2 }

// maxGapAge bounds the age of the time between tokens from which stepLeft is computed.
const maxGapAge = 10 * time.Second

// PrefillEnds takes back the amount of a prefill that is done, as was seen, or should be.
func (l *Load) PrefillEnds(a Amount, seen bool, now time.Time) {
	l.prefills.count(a.PrefillTokens, seen, now)
	if !l.held.Load() {
		l.lateness.observe(l.elapsed(now.UnixNano()) - l.prefillTime())
	}
	l.own.add(a.Negative())
	l.since.Store(now.UnixNano())
}

// Served records that a request which was booked at some time was served to its end.
func (l *Load) Served(booked time.Time) {
	at := booked.UnixNano()
	for last := l.served.Load(); at > last && !l.served.CompareAndSwap(last, at); last = l.served.Load() {
	}
}

// IsOvertaken reports whether a request that was booked later was served to its end. An engine begins prompts in the order in which they
// come, so the prompt of one that was booked at this time is computed, or nearly.
func (l *Load) IsOvertaken(booked time.Time) bool { return booked.UnixNano() < l.served.Load() }

// arrival bounds the time until a request that is booked has reached its engine.
const arrival = 50 * time.Millisecond

// IsAdmitted reports whether a prompt that was booked at some time, and takes some time, is computed by now because a report shows that no
// request waited for the engine when it had come.
func (l *Load) IsAdmitted(booked time.Time, takes time.Duration, now time.Time) bool {
	at := l.admitted.Load()
	return booked.UnixNano() < at-int64(arrival) && now.UnixNano() > at+int64(takes)
}

// elapsed is the time since the rank began with the prefill that it computes now. The moment is in nanoseconds since 1970.
func (l *Load) elapsed(now int64) time.Duration { return max(0, time.Duration(now-l.since.Load())) }

// Ended is the observation of a prefill that ended.
type Ended struct {
	// Took is the time that the rank worked on it: since the end of the prefill before, or since it was booked if that was later. Of
	// several prefills in one pass the first gets the time of all, and the others none.
	Took time.Duration
	// Sure is false if another replica's prefill may have run in that time. Its end is received later than
	// ours, so the same time would be counted for both.
	Sure bool
	// Alone is true if Sure is, and no other prefill of this replica was booked there meanwhile.
	Alone bool
	// Early is true for the first prefills of an engine. They last longer than later ones, because the engine
	// compiles kernels for them, so nothing should be learned from them.
	Early bool
	// At is the time of its end.
	At time.Time
}

// PrefillObserved records the end of a prefill as events show it, and returns its duration.
func (l *Load) PrefillObserved(booked, end time.Time) Ended {
	began := max(booked.UnixNano(), l.lastEnd.Swap(end.UnixNano()))
	sure := !l.mixed.Swap(l.peers.prefillTime.Load() > 0)
	return Ended{
		Took: max(0, time.Duration(end.UnixNano()-began)), Sure: sure, Alone: sure && !l.shared.Load(),
		Early: l.pace.isEarly(), At: end,
	}
}

// ObservePace adds work of some passes that ended at a moment: the time that it took, and the estimate without this rank's pace. It returns
// the pace at that moment.
func (l *Load) ObservePace(passes float64, took, estimated time.Duration, at time.Time) float64 {
	l.pace.observe(passes, took, estimated, at)
	return l.pace.now(at.UnixNano())
}

// PaceStats returns the learned pace of the rank.
func (l *Load) PaceStats(now time.Time) PaceStats { return l.pace.stats(now) }
