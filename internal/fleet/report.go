package fleet

import "time"

// Report is one sample of an engine's own load figures.
type Report struct {
	At      time.Time
	Running int     // requests in the batch
	Waiting int     // requests in the engine's queue
	KVUsage float64 // share of the KV cache in use, 0 to 1
	// Gaps counts the gaps between two tokens of an answer since the engine started, and GapTime is their
	// sum. Both are 0 for an engine that does not report them.
	Gaps    uint64
	GapTime time.Duration
	// StepTokens is the mean number of tokens of an answer that a decode step makes, by speculative decoding; 0 for an
	// engine that does not report it.
	StepTokens float64
	// Store is the store of KV blocks that the engine uses.
	Store Store
	// Asleep means that the engine sleeps: it serves no request, and its cache is empty.
	Asleep bool
}

// Store describes for routers the store of KV blocks that an engine uses, which all engines of its model on its node share. The zero value
// means that the engine has no store.
type Store struct {
	Used bool
	// Served means that other nodes can load the blocks that the store has in host memory.
	Served bool
	// Tiers has the time that blocks take to load from each tier; zero if it is not known, and for Device.
	Tiers [Tiers]TierLoad
	// Peers is the same for the host memory of other nodes. It is zero for a node that loads nothing from others.
	Peers TierLoad
}

// MaxStepTokens bounds Report.StepTokens.
const MaxStepTokens = 1000

// TierLoad is the time that KV blocks take from a tier to the engine, as last measured.
type TierLoad struct {
	// Wait is until the first of them, with the loads that are running. Token is the time of the blocks of a token.
	Wait, Token time.Duration
}

// MaxTierLoad bounds both times of a TierLoad.
const MaxTierLoad = time.Hour

// Known reports whether anything was measured.
func (t TierLoad) Known() bool { return t.Token > 0 }

// sample is a report, compared with the bookings at the time when it was received.
type sample struct {
	Report
	unbooked  int64 // requests beyond the booked ones
	untracked int64 // the smaller of unbooked here and in the sample before
	slots     int   // that the engine has shown; 0 for none
	most      int   // requests that ran at once, in any report
	footprint float64
	queued    bool
	computes  bool          // prompts are booked that are not computed
	done      computed      // prompts by then
	guessed   bool          // more than a pass of them was guessed to be done since the report before, and may still be computed
	gap       time.Duration // the mean time between tokens since the report before; 0 if that is not known
	ran       float64       // seconds of all requests that ran in time, as reports show
}

// SetReport stores the newest report of a worker's engine, and returns its work since the report before, or since an earlier one: until it
// is known. It is for one goroutine at a time.
func (l *Load) SetReport(r Report, w *Worker) Interval {
	booked := l.Booked()
	next := &sample{Report: r, unbooked: max(0, int64(r.Running)+int64(r.Waiting)-booked.Requests), done: l.prefills.done(),
		computes: booked.PrefillTokens > 0}
	if w.Role != Prefill { // its passes are full of prompts before its slots are
		next.slots, next.most = l.slots.observe(&r), l.slots.most
	}
	next.footprint = 1

	last := l.reported.Load()
	if last != nil {
		next.footprint = last.footprint
		next.guessed = next.done.guessed-last.done.guessed > PassTokens
		next.untracked = min(next.unbooked, last.unbooked)
		next.queued = next.Waiting > 0 && last.Waiting > 0
		next.ran = last.ran + float64(last.Running+next.Running)/2*r.At.Sub(last.At).Seconds()
	}
	if used, all := r.KVUsage*float64(w.Blocks), float64(booked.DecodeBlocks); used > 0 && all > 0 && r.Waiting == 0 {
		next.footprint = min(used/all, 1)
	}
	if r.Waiting == 0 {
		l.admitted.Store(r.At.UnixNano())
	}

	i := l.between(last, next, &booked)
	if i.Gaps > 0 {
		next.gap = i.Gap()
	}
	l.reported.Store(next)
	return l.sinceMark(i, next, &booked)
}

// MaxReportAge is the age up to which an engine's report of its load counts in decisions.
const MaxReportAge = 5 * time.Second

// Gap returns the mean time between tokens by the newest report; 0 if that is not known, or is older than maxAge.
func (l *Load) Gap(now time.Time, maxAge time.Duration) time.Duration {
	last := l.reported.Load()
	if last == nil || now.Sub(last.At) > maxAge {
		return 0
	}
	return last.gap
}

// Store returns the store of KV blocks that the rank's engine uses, by the newest report; nil for an engine without one. It must not be
// changed.
func (l *Load) Store() *Store {
	if s := l.reported.Load(); s != nil && s.Store.Used {
		return &s.Store
	}
	return nil
}

// LastReport returns the newest report; ok is false while there is none.
func (l *Load) LastReport() (r Report, ok bool) {
	p := l.reported.Load()
	if p == nil {
		return Report{}, false
	}
	return p.Report, true
}
