package feed

import "time"

// Verdict is the outcome of a message.
type Verdict uint8

// The verdicts.
const (
	// Applied means that the batch was applied, or that a mark proved the rank exact.
	Applied Verdict = iota
	// Ignored means that the message changes nothing: a duplicate, a mark without news, or a
	// message of a rank or epoch that the fleet does not have.
	Ignored
	// Missing means that an earlier batch is missing. Nothing was applied.
	Missing
)

// Result is the outcome of a message, and the caller's next step.
type Result struct {
	Verdict Verdict
	// Resume is the number from which the caller has to replay. It is set with Missing only.
	Resume uint64
	// Restarted is true if the batch revealed a new engine process in the same epoch. Whatever
	// the caller kept of the rank's earlier batches is then void, whatever the verdict.
	Restarted bool
}

// judge compares a batch's number with the next expected one. It applies no events. It empties the
// rank after a restart or a given-up gap. r.mu is held.
func (f *Feed) judge(r *rank, m *Message, now time.Time) Verdict {
	if m.Seq < r.next {
		if m.State == None && m.Seq == r.next-1 && m.Batch.Seconds == r.seconds && r.seconds != 0 { // in a replay
			r.resumed = true
		}
		if !r.isRestart(m) {
			return Ignored
		}
		f.empty(r)
		r.counts.Restarts++
		r.tail = tailUnproved
	}

	switch {
	case m.Seq == r.next:
		return Applied
	case r.gapSince.IsZero():
		r.openGap(m.Seq+1, now)
		return Missing
	case now.Sub(r.gapSince) < f.cfg.Patience:
		r.openGap(m.Seq+1, now)
		return Missing
	}

	// No replay has filled the gap. Evictions may be among the lost events, so any indexed block
	// may be gone from the engine. The batches from here on are right, but not all there is.
	f.index.Clear(r.id)
	r.counts.UnrecoveredGaps++
	r.doubt = GapGivenUp
	r.gapEnd = 0
	return Applied
}

// openGap begins a gap, unless one is open. Every batch below end has been published. r.mu is held.
func (r *rank) openGap(end uint64, now time.Time) {
	r.gapEnd = max(r.gapEnd, end)
	if r.gapSince.IsZero() {
		r.gapSince = now
	}
}

// closeGap ends an open gap if every batch that is known to be published has been applied. r.mu is held.
func (r *rank) closeGap() {
	if r.next >= r.gapEnd {
		r.gapSince = time.Time{}
		r.gapEnd = 0
	}
}

// farBack is the distance at which a lower number without a timestamp counts as a restart. It
// exceeds the 10,000 batches that a vLLM replay can bring again.
const farBack = 16_384

// isRestart reports whether a batch below the next number is a new engine process and not a
// duplicate. A duplicate has the timestamp of the batch it repeats, which is never later than the
// last one applied; so a later timestamp proves a restart. Without timestamps only batch 0 or a
// jump far back do.
//
// An engine's clock may step back, and then a duplicate is later than the last batch. A known epoch is one
// process, so there only batch 0 can be a restart.
func (r *rank) isRestart(m *Message) bool {
	if m.Epoch != anyEpoch && m.Seq != 0 {
		return false
	}
	if seconds := m.Batch.Seconds; seconds != 0 && r.seconds != 0 {
		return seconds > r.seconds && (m.Epoch == anyEpoch || seconds != r.first)
	}
	return m.Seq == 0 && r.next > 1 || r.next-m.Seq > farBack
}

// resume is the number at which a replay has to begin: the last batch applied, whose timestamp
// shows whether the engine is still the same process.
func (r *rank) resume() uint64 {
	if r.next > 0 && r.seconds != 0 {
		return r.next - 1
	}
	return r.next
}
