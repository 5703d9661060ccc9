package feed

import (
	"time"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

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

// Result is the outcome of a message, and what the caller has to do.
type Result struct {
	Verdict Verdict
	// Resume is the number from which the caller has to replay. It is set with Missing only.
	Resume uint64
	// Restarted is true if the batch revealed a new engine process in the same epoch. Whatever
	// the caller kept of the rank's earlier batches is then void, whatever the verdict.
	Restarted bool
}

// judge compares a batch's number with the next expected one and sets the state. It applies no
// events. It empties the rank after a restart or a given-up gap. r.mu is held.
func (f *Feed) judge(r *rank, seq uint64, b *kvevent.Batch, now time.Time) Verdict {
	if seq < r.next {
		if !r.isRestart(seq, b.Seconds) {
			return Ignored
		}
		f.empty(r)
		r.counts.Restarts++
		r.setState(Syncing)
	}

	switch {
	case seq == r.next:
		r.inOrder(seq)
		return Applied
	case r.gapSince.IsZero():
		r.openGap(now)
		return Missing
	case now.Sub(r.gapSince) < f.cfg.Patience:
		return Missing
	}

	// No replay has filled the gap. Evictions may be among the lost events, so any indexed block
	// may be gone from the engine. The batches from here on are right, but not all there is.
	f.index.Clear(r.id)
	r.counts.UnrecoveredGaps++
	r.incomplete = true
	r.setState(Stale)
	return Applied
}

// inOrder sets the state after the next batch in order. r.mu is held.
func (r *rank) inOrder(seq uint64) {
	if seq == 0 {
		r.incomplete = false // nothing can be missing before the first batch
	}

	switch s := r.currentState(); {
	case r.incomplete:
		r.setState(Stale)
	case seq == 0 || s == Syncing || s == Stale && r.beforeLost == Exact:
		r.setState(Exact)
	}
	r.beforeLost = None
}

// openGap begins a gap, unless one is open. r.mu is held.
func (r *rank) openGap(now time.Time) {
	if r.gapSince.IsZero() {
		r.gapSince = now
		r.setState(Syncing)
	}
}

// farBack is the distance at which a lower number without a timestamp counts as a restart. It
// exceeds the 10,000 batches that a vLLM replay can bring again.
const farBack = 16_384

// isRestart reports whether a batch below the next number is a new engine process and not a
// duplicate. A duplicate has the timestamp of the batch it repeats, which is never later than the
// last one applied; so a later timestamp proves a restart. Without timestamps only batch 0 or a
// jump far back do.
func (r *rank) isRestart(seq uint64, seconds float64) bool {
	if seconds != 0 && r.seconds != 0 {
		return seconds > r.seconds
	}
	return seq == 0 && r.next > 1 || r.next-seq > farBack
}

// resume is the number at which a replay has to begin: the last batch applied, whose timestamp
// shows whether the engine is still the same process.
func (r *rank) resume() uint64 {
	if r.next > 0 && r.seconds != 0 {
		return r.next - 1
	}
	return r.next
}
