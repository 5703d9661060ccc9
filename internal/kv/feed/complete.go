package feed

// Complete says that at the end of a replay the rank's own count stood at next: that is the
// number of its next batch, 0 for an engine that has said nothing yet. If everything before it
// has been applied the knowledge is exact, an empty cache's too; so a rank that is idle need
// not wait for its next event to be believed.
func (f *Feed) Complete(worker string, epoch uint64, number int, next uint64) {
	member, ok := f.find(worker, epoch, number)
	if !ok {
		return
	}
	r := f.rank(member)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone || r.partial || !r.gapSince.IsZero() || r.next != next {
		return
	}
	r.resumed = None
	r.set(Exact)
}
