package feed

import "time"

// Complete says that the rank's own count stands at next: that is the number of its next batch,
// 0 for an engine that has said nothing yet. Where everything before it has been applied the
// knowledge is exact, an empty cache's too; so a rank that is idle need not wait for its next
// event to be believed. Where something is missing, gap is true and a replay should begin at
// resume: so a loss at the end of a stream is found although nothing comes after it.
func (f *Feed) Complete(worker string, epoch uint64, number int, next uint64, now time.Time) (resume uint64, gap bool) {
	_, r, ok := f.lock(worker, epoch, number)
	if !ok {
		return 0, false
	}
	defer r.mu.Unlock()
	switch {
	case next > r.next:
		r.missing(now)
		r.counts.Gaps++
		return r.resume(), true
	case next < r.next || r.partial || !r.gapSince.IsZero():
		return 0, false
	}
	r.resumed = None
	r.set(Exact)
	return 0, false
}

// missing notes that something before what was heard is not there.
func (r *rank) missing(now time.Time) {
	if r.gapSince.IsZero() {
		r.gapSince = now
		r.set(Syncing)
	}
}
