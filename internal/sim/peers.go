package sim

import "github.com/stator-project/stator/internal/route/peers"

// tell lets the other replicas hear what p has booked, in a while, unless the message is lost.
func (r *run) tell(p *replica) {
	if len(r.replicas) == 1 || r.cfg.BookLag < 0 {
		return
	}
	m, ok := p.share.Next(r.clock())
	if !ok || r.rng.Float64() < r.cfg.BookLoss {
		return
	}
	r.agenda.add(event{at: r.now + r.cfg.BookLag, kind: bookingsCome, booked: &m})
}

// hear gives a message to all replicas; the one that made it knows its own name.
func (r *run) hear(m *peers.Update) {
	for _, p := range r.replicas {
		p.peers.Apply(m, r.clock())
	}
}
