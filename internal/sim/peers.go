package sim

import "github.com/stator-project/stator/internal/route/peers"

// publishBookings sends the changed bookings of a replica to the other replicas. The message arrives after
// BookLag.
func (r *run) publishBookings(p *replica) {
	if !r.cfg.sharesBookings() {
		return
	}
	m, ok := p.share.Next(r.clock())
	if !ok {
		return
	}
	r.agenda.add(event{at: r.now + r.cfg.BookLag, kind: bookingsCome, booked: &m})
}

// receiveBookings delivers a message to all replicas. The replica that published it ignores it.
func (r *run) receiveBookings(m *peers.Update) {
	for _, p := range r.replicas {
		p.peers.Apply(m, r.clock())
	}
}
