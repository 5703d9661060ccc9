package extproc

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/route/peers"
)

// publishEvery is how often a replica looks for changes of its bookings. It is short compared with the
// time in which another replica would place a second request on the same rank.
const publishEvery = 5 * time.Millisecond

// replicaNameLength makes equal names of two replicas unlikely: 60 random bits.
const replicaNameLength = 12

// newReplica returns a name for this process among the replicas of the router.
func newReplica() string { return rand.Text()[:replicaNameLength] }

// publishBookings publishes the bookings of this replica, and drops those of replicas that no longer
// publish theirs, until ctx ends.
func (r *Router) publishBookings(ctx context.Context, b *bus.Bus) {
	publisher := peers.NewPublisher(r.replica, r.fleet)
	tick := time.NewTicker(publishEvery)
	defer tick.Stop()

	for {
		select {
		case now := <-tick.C:
			if n := r.peers.Expire(now); n > 0 {
				r.log.Warn("replicas of the router stopped publishing; their bookings were dropped", "replicas", n)
			}

			// A lost update needs no retry: amounts are absolute, and a full update follows.
			update, ok := publisher.Next(now)
			if !ok {
				continue
			}
			if err := b.PublishBookings(&update); err != nil {
				r.log.Debug("bookings not published", "err", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// applyBookings applies an update of another replica. The receiver ignores this replica's own updates, which the
// bus delivers too.
func (r *Router) applyBookings(update *peers.Update) { r.peers.Apply(update, time.Now()) }
