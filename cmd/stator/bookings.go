package main

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/route/peers"
)

// tellEvery is how often a replica looks for changes in its bookings: short against the time in
// which another replica would place a second request on the same rank.
const tellEvery = 5 * time.Millisecond

// newReplica names this process among the replicas of the router: no other has had the name.
func newReplica() string { return rand.Text()[:12] }

// tellBookings tells the other replicas what this one has booked, and forgets those that have fallen
// silent, until ctx ends.
func (d *decider) tellBookings(ctx context.Context, b *bus.Bus) {
	share := peers.NewPublisher(d.replica, d.fleet)
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			if n := d.peers.Expire(now); n > 0 {
				d.log.Warn("replicas of the router have fallen silent; their bookings were forgotten", "replicas", n)
			}
			if m, ok := share.Next(now); ok {
				if err := b.PublishBookings(&m); err != nil {
					d.log.Debug("bookings not told", "err", err) // they are told again
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// takeBookings is told what another replica has booked.
func (d *decider) takeBookings(m *peers.Update) { d.peers.Apply(m, time.Now()) }
