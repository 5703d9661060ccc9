package feed

import "time"

// Restarted empties a rank whose engine is a new process within the same epoch. A source notices
// the new process at its connection, before the process has published anything: until then the
// rank's state is None.
func (f *Feed) Restarted(worker string, number int) {
	_, r, ok := f.lock(worker, anyEpoch, number)
	if !ok {
		return
	}
	defer r.mu.Unlock()

	f.empty(r)
	r.counts.Restarts++
	r.setState(None)
}

// Forget empties a rank whose indexed blocks turned out to be wrong. Its state is Syncing until a
// replay from 0 or a snapshot has rebuilt it.
func (f *Feed) Forget(worker string, number int) {
	_, r, ok := f.lock(worker, anyEpoch, number)
	if !ok {
		return
	}
	defer r.mu.Unlock()

	f.empty(r)
	r.setState(Syncing)
}

// Lost marks an exact rank as stale, because its events have stopped arriving: the engine's
// socket or the bus is away. The next batch in order makes it exact again. Its blocks stay in the
// index.
func (f *Feed) Lost(worker string, number int) {
	member, ok := f.find(worker, anyEpoch, number)
	if !ok {
		return
	}
	r := f.record(member)
	r.mu.Lock()
	defer r.mu.Unlock()

	if s := r.currentState(); s == Exact {
		r.beforeLost = s
		r.setState(Stale)
	}
}

// empty removes the rank's blocks from the index and starts its count at 0. r.mu is held.
func (f *Feed) empty(r *rank) {
	f.index.Clear(r.id)
	r.next, r.seconds = 0, 0
	r.gapSince = time.Time{}
	r.incomplete = false
	r.beforeLost = None
}
