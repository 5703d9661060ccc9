package fleet

import (
	"sync/atomic"
	"time"
)

// Load is what one rank is doing. Booked figures are what the replicas of the router have placed
// there and not yet seen end, this one's own and its peers'; reported figures are the engine's own
// words. All methods are safe for concurrent use.
//
// Invariant: own is the sum over this replica's bookings that have not ended, so it is all zero
// when there are none; peers is the sum of what other replicas last said.
type Load struct {
	own, peers sums
	// since is when the rank began with the prefill that is at the front, in nanoseconds since
	// 1970; it means nothing while none is booked.
	since atomic.Int64
	// mixed says that other replicas' prefills ran there too since then, or may have; shared, that
	// more than one of ours did.
	mixed    atomic.Bool
	shared   atomic.Bool
	proven   atomic.Int64 // when the last prefill ended whose end is known, in nanoseconds since 1970
	lag      atomic.Int64 // how old the rank's events are when they come, in nanoseconds
	pace     pace
	reported atomic.Pointer[sample]
}

// sums is an Amount that many add to.
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

// Report is one sample of an engine's own load figures.
type Report struct {
	At      time.Time
	Running int     // requests in the batch
	Waiting int     // requests in the engine's queue
	KVUsage float64 // share of the KV cache in use, 0 to 1
	// Gaps counts the gaps between two tokens of an answer since the engine started, and GapTime is
	// their sum; both 0 where it does not say.
	Gaps    uint64
	GapTime time.Duration
}

// sample is a report beside what was booked when it came.
type sample struct {
	Report
	unbooked int64 // requests beyond those booked
	foreign  int64 // the smaller of unbooked here and in the sample before
}

// Amount is one booking's weight on a rank.
type Amount struct {
	Requests      int64 // 1, or -1 to take it back
	PrefillTokens int64 // tokens that must still be computed
	DecodeBlocks  int64 // blocks the request will occupy
	// PrefillTime is how long PrefillTokens are estimated to take.
	PrefillTime time.Duration
}

// Negative is what takes a back.
func (a Amount) Negative() Amount {
	return Amount{Requests: -a.Requests, PrefillTokens: -a.PrefillTokens, DecodeBlocks: -a.DecodeBlocks, PrefillTime: -a.PrefillTime}
}

// Prefill is the part of a that the first token takes away.
func (a Amount) Prefill() Amount {
	return Amount{PrefillTokens: a.PrefillTokens, PrefillTime: a.PrefillTime}
}

// plus is the sum of both.
func (a Amount) plus(b Amount) Amount {
	return Amount{a.Requests + b.Requests, a.PrefillTokens + b.PrefillTokens, a.DecodeBlocks + b.DecodeBlocks, a.PrefillTime + b.PrefillTime}
}

// Add adds a to what this replica has booked; negative amounts take a booking back.
func (l *Load) Add(a Amount) { l.own.add(a) }

// SetPeer replaces what one other replica had booked. Where that takes prefill away the rank has
// got on with its work.
func (l *Load) SetPeer(was, is Amount, now time.Time) {
	if l.prefillTime() <= 0 && is.PrefillTime > 0 || is.PrefillTime < was.PrefillTime {
		l.since.Store(now.UnixNano())
	}
	if is.PrefillTime != was.PrefillTime {
		l.mixed.Store(true)
	}
	l.peers.add(is.plus(was.Negative()))
}

// Own is what this replica has booked.
func (l *Load) Own() Amount { return l.own.amount() }

// Booked is what all replicas have booked, as far as this one knows. Its figures are read one
// after another: a reader beside a writer may see a booking in one and not yet in the next.
func (l *Load) Booked() Amount { return l.own.amount().plus(l.peers.amount()) }

func (l *Load) prefillTime() time.Duration {
	return time.Duration(l.own.prefillTime.Load() + l.peers.prefillTime.Load())
}

// PrefillBegins is told, before Add, of a booking with prefill: where the rank has none it begins
// with this one.
func (l *Load) PrefillBegins(now time.Time) {
	idle := l.prefillTime() <= 0
	if idle {
		l.since.Store(now.UnixNano())
		l.mixed.Store(false)
	}
	l.shared.Store(!idle)
}

// PrefillEnds is told, after its Amount was taken back, that a prefill is done or should be.
func (l *Load) PrefillEnds(now time.Time) { l.since.Store(now.UnixNano()) }

// Ended is what is known of a prefill that ended.
type Ended struct {
	// Took is how long the rank worked on it: since the one before, or since it was booked after
	// that. Of several that an engine computed in one pass the first has the time of all.
	Took time.Duration
	// Sure is false where another replica's may have run in that time: its end is heard of later
	// than ours, and both would be taken for the work of all of it. Alone says that no other of
	// ours was there either, from its beginning to its end.
	Sure, Alone bool
}

// Proved is told when a prefill ended that was booked at a time.
func (l *Load) Proved(booked, end time.Time) Ended {
	began := max(booked.UnixNano(), l.proven.Swap(end.UnixNano()))
	sure := !l.mixed.Swap(l.peers.prefillTime.Load() > 0)
	return Ended{Took: max(0, time.Duration(end.UnixNano()-began)), Sure: sure, Alone: sure && !l.shared.Load()}
}

// Lag is how long the rank's events have been under way of late, by its clock and ours; 0 where
// nobody can tell.
func (l *Load) Lag() time.Duration { return time.Duration(l.lag.Load()) }

// ObserveLag is told how old a batch of events was when it came. What clocks that differ make of it is
// not believed: less than nothing, or more than 30 s. It is for one goroutine at a time.
func (l *Load) ObserveLag(age time.Duration) {
	if age < 0 || age > 30*time.Second {
		age = 0
	}
	before := l.lag.Load()
	if before == 0 { // the first counts whole: what is learned until a mean is right would be wrong
		before = int64(age)
	}
	l.lag.Store(before + (int64(age)-before)/8)
}

// Wait is how long a prompt that is booked now waits for the prefills before it, by estimate: their
// time, less what has gone by since the rank began with the first of them. A rank that takes
// longer than estimated is not believed to be nearly done.
func (l *Load) Wait(now time.Time) time.Duration {
	booked := l.prefillTime()
	if booked <= 0 {
		return 0
	}
	return max(booked-max(0, time.Duration(now.UnixNano()-l.since.Load())), booked/8)
}

// Pace is how much longer prefills take on this rank than they are estimated to: 1 where nothing is
// known, 2 for a rank half as fast as others of its kind.
func (l *Load) Pace() float64 { return l.pace.now() }

// ObservePace is told of a prefill that ended: what it took, and what had been estimated without
// this rank's pace.
func (l *Load) ObservePace(took, estimated time.Duration) { l.pace.observe(took, estimated) }

// SetReport keeps the engine's newest sample, and returns how many gaps between tokens there were
// since the one before and how long they were in sum.
func (l *Load) SetReport(r Report) (gaps uint64, took time.Duration) {
	next := &sample{Report: r, unbooked: max(0, int64(r.Running)+int64(r.Waiting)-l.Booked().Requests)}
	if last := l.reported.Load(); last != nil {
		next.foreign = min(next.unbooked, last.unbooked)
		if r.Gaps > last.Gaps && r.GapTime > last.GapTime {
			gaps, took = r.Gaps-last.Gaps, r.GapTime-last.GapTime
		}
	}
	l.reported.Store(next)
	return gaps, took
}

// Untracked is how many requests the rank has that no router booked: those of clients that go to it
// directly, or of a router that has forgotten them. A request that ended while its engine's report
// was on the way seems to be one too, so it takes two reports in a row to be counted. A report that
// is older than age is worth nothing.
func (l *Load) Untracked(now time.Time, age time.Duration) int64 {
	last := l.reported.Load()
	if last == nil || now.Sub(last.At) > age {
		return 0
	}
	return last.foreign
}

// LastReport returns the newest sample; ok is false while there is none.
func (l *Load) LastReport() (r Report, ok bool) {
	p := l.reported.Load()
	if p == nil {
		return Report{}, false
	}
	return p.Report, true
}
