package fleet

import "time"

// View is the load of a rank at one moment, as decisions compare it.
type View struct {
	// Booked is the load that routers have placed there, in blocks of its engine.
	Booked Amount
	// Age is the mean time since the requests there were booked by this router, if Aged. It is unknown if there is none, or if one comes or
	// goes meanwhile.
	Age  time.Duration
	Aged bool
	// Gathering means that the rank is going to begin a pass with prompts that are booked there, which has room for others; see
	// [Load.IsGathering].
	Gathering bool
	// Queued means that requests wait in the engine's queue, by two reports in a row.
	Queued bool
	// Reported means that there is a report. Without one, bookings stand for all that runs on the rank.
	Reported bool
	// Wait is the expected duration of the prefills that are booked there. Pace is the duration of the rank's passes as a multiple of its
	// class's passes: 2 for a rank that is half as fast, and 1 if that is not clear, or was observed too long ago. 0 counts as 1.
	Wait time.Duration
	Pace float64
	// Untracked is the number of requests that run or wait on the rank and that no router has booked. Clients have sent them to the engine
	// directly, or a router has restarted. A request that ended while the engine's report was in transit looks like one. So a request
	// counts only once two reports in a row have it.
	Untracked int64
	// Slots is the greatest number of requests that run at once: as reports have shown it, as the engine's options name it, or the usual
	// one. It is 0 if more than those were seen to run.
	Slots int
	// Footprint is the share of the booked blocks that running requests take in the cache: less than 1 if
	// they have prefixes in common. 0 counts as 1.
	Footprint float64
}

// View returns the load of the rank. A report that is older than MaxReportAge counts as none, except for facts that do not change. slots is
// the number of requests that run at once by the engine's options; 0 if they are not known.
func (l *Load) View(now time.Time, slots int) (v View) {
	l.ReadView(&v, now, slots)
	return v
}

// ReadView is View for a decision, which asks a thousand ranks: it writes to v, because a copy takes as long as all else here, and reads
// each figure once.
func (l *Load) ReadView(v *View, now time.Time, slots int) {
	nanos := now.UnixNano()
	own, peers := l.own.amount(), l.peers.amount()
	v.Booked = own.plus(peers)
	v.Age, v.Aged = 0, false
	if own.Requests > 0 {
		// A division of integers takes several times as long.
		begun := time.Duration(float64(l.begun.Load())/float64(own.Requests)) * time.Millisecond
		v.Age = time.Duration(nanos) - begun
		v.Aged = v.Age >= 0
	}
	v.Wait = l.waitFor(v.Booked.PrefillTime, nanos)
	v.Pace = l.pace.now(nanos)
	v.Gathering = nanos < l.nextPass.Load()

	v.Untracked, v.Footprint = 0, 1
	v.Queued, v.Reported = false, false
	last := l.reported.Load()
	if last == nil {
		v.Slots = (&sample{}).orUsual(slots)
		return
	}
	v.Slots, v.Footprint = last.orUsual(slots), last.footprint
	if now.Sub(last.At) <= MaxReportAge {
		v.Untracked, v.Queued = last.untracked, last.queued
		v.Reported = true
	}
}
