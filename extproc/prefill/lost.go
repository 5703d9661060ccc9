package prefill

import (
	"context"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

const (
	// lostAfter is the time that a decode worker has for its answer when its prefill worker is down: it may have the prompt already.
	lostAfter = time.Second
	// goneAfter is that time when the prefill worker has left the fleet: it may have left in order, and serve its transfers.
	goneAfter = 10 * time.Second
	// readyLook and lostLook are the intervals at which a worker is looked at, while it is ready and while it is not.
	readyLook = time.Second
	lostLook  = 100 * time.Millisecond
)

// IsLost waits until the prompt that the leg's worker has computed cannot be fetched any more, and returns true: the worker is down, or has
// left the fleet, and a new process at its address has other blocks. Some transports never find that by themselves. It returns false when
// ctx ends. The leg must have ended with Transferred.
func (l *Leg) IsLost(ctx context.Context) bool {
	if l.transfer.Kind == fleet.TransferBootstrap { // the answer means that the decode worker has the prompt
		return false
	}

	p := l.worker
	var since time.Time // when the worker was not there for the first time
	for {
		state, present, changed := l.sender.router.RankState(p.Worker, p.Rank, p.Address)
		bound, look := lostAfter, lostLook
		if !present {
			bound = goneAfter
		}
		now := time.Now()
		switch {
		case present && state != fleet.Down:
			since, look = time.Time{}, readyLook
		case since.IsZero():
			since = now
		case now.Sub(since) >= bound:
			return true
		}

		select {
		case <-changed:
		case <-time.After(look):
		case <-ctx.Done():
			return false
		}
	}
}
