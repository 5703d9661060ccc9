package extproc

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/route/peers"
)

// publishEvery is the interval at which a replica looks for changes of its bookings. It is short compared with the time in which another
// replica would place a second request on the same rank.
const publishEvery = 5 * time.Millisecond

// replicaNameLength makes equal names of two replicas unlikely: 60 random bits.
const replicaNameLength = 12

// newReplica returns a name for this process among the replicas of the router. Ids of decisions begin with it, and
// subjects of the bus end with it.
func newReplica() string { return strings.ToLower(rand.Text()[:replicaNameLength]) }

// publishBookings publishes the bookings of this replica and the ends of others' requests, and drops the bookings
// of replicas that no longer publish theirs, until ctx ends.
func (r *Router) publishBookings(ctx context.Context, b *bus.Bus) {
	publisher := peers.NewPublisher(r.replica, r.fleet, &r.outbox)
	defer r.ends.flush(b)

	backoff.Every(ctx, publishEvery, func(now time.Time) {
		r.ends.flush(b)
		if n := r.peers.Expire(now); n > 0 {
			r.log.Warn("replicas of the router stopped publishing; their bookings were dropped", "replicas", n)
			r.endBookingsOfLostReplicas(b, now)
		}

		// A lost update needs no retry: amounts are absolute, and a full update follows.
		update, ok := publisher.Next(now)
		if !ok {
			return
		}
		if err := b.PublishBookings(&update); err != nil {
			r.log.Debug("bookings not published", "err", err)
		}
	})
}

// endBookingsOfLostReplicas ends the bookings whose ends may have been lost with another replica. While the bus is away
// all others are silent, and the ends that they hold arrive when it is back.
func (r *Router) endBookingsOfLostReplicas(b *bus.Bus, now time.Time) {
	if b.Connected() {
		r.doors.accessLog.Lost(now)
	}
}

// applyBookings applies an update of another replica. The receiver ignores this replica's own updates, which the
// bus delivers too.
func (r *Router) applyBookings(update *peers.Update) {
	now := time.Now()
	if update.Replica != r.replica {
		r.ends.observe(update.Replica, now)
	}
	r.peers.Apply(update, now)
}

// foreignEnded passes the end of another replica's request on. If no such replica is known, the entry is counted
// here.
func (r *Router) foreignEnded(replica string, e *messages.Entry) {
	// An end that is counted here is forwarded all the same: a replica that has just started is not known yet, and
	// its booking matters more than a count.
	now := time.Now()
	if known := r.ends.queueEnd(replica, e, now); !known {
		r.doors.accessLog.Apply(e, now)
	}
}

// applyEnd applies the end of one of this replica's requests, which arrived in the access log of another one.
func (r *Router) applyEnd(e *bus.RequestEnd) {
	entry := messages.Entry(*e)
	r.doors.accessLog.Apply(&entry, time.Now())
}

// logClosed tells the other replicas that an Envoy closed its access log: their entries may be lost with it.
func (r *Router) logClosed(source string, closed time.Time) {
	b := r.bus.Load()
	if b == nil {
		return
	}
	if err := b.PublishGone(bus.Gone{Replica: r.replica, Source: source, Ago: max(0, time.Since(closed))}); err != nil {
		r.log.Debug("end of an access log not published", "source", source, "err", err)
	}
}

// applyGone ends the bookings of an Envoy that closed its access log at another replica.
func (r *Router) applyGone(g bus.Gone) {
	// This replica's own message arrives too. Its bookings have ended already.
	if g.Replica != r.replica {
		r.doors.accessLog.End(g.Source, time.Now().Add(-g.Ago))
	}
}
