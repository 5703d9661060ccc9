package feed

import "time"

// Restarted empties a rank whose engine is a new process within the same epoch. A source notices
// the new process at its connection, before the process has published anything: until then the
// rank's state is None.
func (f *Feed) Restarted(worker string, number int) {
	f.change(worker, number, func(r *rank) {
		f.empty(r)
		r.counts.Restarts++
	})
}

// Forget empties a rank whose indexed blocks turned out to be wrong. Its state is Syncing until a
// replay from 0 or a snapshot has rebuilt it.
func (f *Feed) Forget(worker string, number int) {
	f.change(worker, number, func(r *rank) {
		f.empty(r)
		r.tail = tailUnproved
	})
}

// Emptied empties a rank whose engine has shown in another way than by events that its cache is empty now: it sleeps. A "cleared" event
// that comes later, with the engine's next step, changes nothing more.
func (f *Feed) Emptied(worker string, number int) {
	f.change(worker, number, func(r *rank) {
		f.index.Clear(r.id)
		r.doubt = Sound
	})
}

// Missed empties a rank whose engine has found none of the blocks that requests since decided were promised. It is Stale until its cache is
// empty once, because nothing shows which of its blocks were stored since. Missed returns false and does nothing if events since then
// explain it: the engine has reported that blocks are gone. A rank without events loses its predictions, and stays None.
func (f *Feed) Missed(worker string, number int, decided time.Time) (emptied bool) {
	f.change(worker, number, func(r *rank) {
		if !r.lastLoss.Before(decided) {
			return
		}
		emptied = true
		f.index.Clear(r.id)
		if r.currentState() != None {
			r.doubt = PromiseMissed
		}
	})
	return emptied
}

// Lost marks an exact rank as stale, because its events have stopped arriving: the bus is away, or no
// message has arrived for long. A message with its agent's exact state makes it exact again. Its blocks
// stay in the index.
func (f *Feed) Lost(worker string, number int) {
	f.change(worker, number, func(r *rank) { r.interrupt(Interrupted) })
}

// Connected reports that the connection to a rank's engine was made (true) or lost (false). Either makes
// an exact rank stale, until a mark proves that nothing was missed: the connection may be to another
// process, and the number of its next batch does not show that.
func (f *Feed) Connected(worker string, number int, up bool) {
	f.change(worker, number, func(r *rank) {
		r.away = !up
		r.gapSince = time.Time{} // its end may have been published by another process
		r.gapEnd = 0
		r.interrupt(Interrupted)
	})
}

// change calls edit with a rank of the fleet, whose lock is held, and sets the rank's state after it.
func (f *Feed) change(worker string, number int, edit func(r *rank)) {
	_, r, ok := f.lock(worker, anyEpoch, number)
	if !ok {
		return
	}
	defer r.mu.Unlock()

	edit(r)
	r.settle()
}

// empty removes the rank's blocks from the index and starts its count at 0. r.mu is held.
func (f *Feed) empty(r *rank) {
	f.index.Clear(r.id)
	r.next = 0
	r.lastLoss = time.Time{}
	r.seconds, r.first = 0, 0
	r.gapSince = time.Time{}
	r.gapEnd = 0
	r.doubt = Sound
	r.tail = tailUnknown
}
