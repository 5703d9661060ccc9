package feed

import (
	"time"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// Verdict is what the order of events says of a batch.
type Verdict uint8

// The verdicts.
const (
	Applied Verdict = iota
	Ignored         // a duplicate, or of a rank or an epoch that the fleet does not have
	Missing         // something before it is
)

// Result says what became of a batch.
type Result struct {
	Verdict Verdict
	// Resume is where a replay should begin; only for Missing.
	Resume uint64
	// Restarted is true where the batch showed that the engine counts anew: all that was said
	// before it is void, whatever the verdict.
	Restarted bool
}

// order judges a batch by its sequence number and moves the state; it applies nothing, but
// it drops the rank's knowledge where that has become worthless.
func (f *Feed) order(r *rank, seq uint64, b *kvevent.Batch, now time.Time) Verdict {
	if seq < r.next {
		if !r.restarted(seq, b.Seconds) {
			return Ignored
		}
		f.forget(r)
		r.counts.Restarts++
		r.set(Syncing)
	}
	switch {
	case seq == r.next:
		r.caughtUp(seq)
		return Applied
	case r.gapSince.IsZero():
		r.missing(now)
		return Missing
	case now.Sub(r.gapSince) < f.cfg.Patience:
		return Missing
	}
	// No replay brings what is missing: evictions may be among it, so nothing that was known
	// can be believed. What comes from here on is true, but not everything.
	f.index.Clear(r.id)
	r.counts.GivenUp++
	r.partial = true
	r.set(Stale)
	return Applied
}

// caughtUp sets the state after an event in order. The first event of all makes the
// knowledge exact, and so does the one that closes a gap, unless another gap was given up.
func (r *rank) caughtUp(seq uint64) {
	if seq == 0 {
		r.partial = false
	}
	switch s := r.now(); {
	case r.partial:
		r.set(Stale)
	case seq == 0 || s == Syncing || s == Stale && r.resumed == Exact:
		r.set(Exact)
	}
	r.resumed = None
}

// restarted tells a new engine process that counts from 0 again from a duplicate. A batch
// that was published later than the last one applied, under an earlier number, is not a
// duplicate. Without timestamps only the number 0 or a jump far back can tell.
func (r *rank) restarted(seq uint64, seconds float64) bool {
	if seconds != 0 && r.seconds != 0 {
		return seconds > r.seconds
	}
	const far = 16_384 // more than the 10,000 batches that a vLLM replay holds
	return seq == 0 && r.next > 1 || r.next-seq > far
}

// resume is where a replay should begin: at the last batch applied, whose timestamp shows
// whether the engine is still the one we know.
func (r *rank) resume() uint64 {
	if r.next > 0 && r.seconds != 0 {
		return r.next - 1
	}
	return r.next
}
