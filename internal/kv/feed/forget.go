package feed

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Restarted says that the rank's engine is a new process, of which it is not known yet what it
// holds: a source that sees the connection end and another process answer knows it before the
// new one has said anything. Nothing said before is believed any more, and the count begins
// again at 0.
func (f *Feed) Restarted(worker string, number int) {
	_, r, ok := f.lock(worker, 0, number)
	if !ok {
		return
	}
	defer r.mu.Unlock()
	f.forget(r)
	r.counts.Restarts++
	r.set(None)
}

// Forget drops what is known of a rank because it is not believed any more; the next batch, or
// a snapshot, begins anew. The rank is Syncing until then.
func (f *Feed) Forget(worker string, number int) {
	_, r, ok := f.lock(worker, 0, number)
	if !ok {
		return
	}
	defer r.mu.Unlock()
	f.forget(r)
	r.set(Syncing)
}

// forget empties the rank's knowledge and its count. r.mu is held.
func (f *Feed) forget(r *rank) {
	f.index.Clear(r.id)
	r.next, r.seconds, r.gapSince = 0, 0, time.Time{}
	r.partial, r.resumed = false, None
}

// State is what the knowledge of m is worth. It takes no lock but for the table of ranks.
func (f *Feed) State(m fleet.Rank) State {
	if r := f.known(m); r != nil {
		return r.now()
	}
	return None
}

// Resume is where a replay that brings the rank up to date should begin; 0 where nothing is
// known of it.
func (f *Feed) Resume(m fleet.Rank) uint64 {
	r := f.known(m)
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resume()
}
