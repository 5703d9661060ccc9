package plan

import (
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// A model with IdleAfter has no worker while it is idle. All its pools end together, and start together: a request needs one of each.
//
//	event                                         the model
//	requests arrive or wait                       is awake: its pools have one worker at least
//	a worker has some, by its report or routers'  stays awake
//	workers start                                 stays awake if it is: they end when their requests have had the time to come
//	demand is not known                           the same
//	none of these for IdleAfter                   is idle: its pools have no worker, whatever is forecast
//	the first plan                                is awake
//
// Routers let requests wait for an idle model, and report that. They also report the requests that reach a worker at the moment at which
// it is to end, so the model is awake in the next plan, and the worker comes back.

// idleness is the memory of a model's requests. The zero value is for a model that is awake, and has had no plan.
type idleness struct {
	asked  time.Time // when there was a request last, or may have been one
	asleep bool
}

// rest sets pools to no worker while their model is idle, and to one at least while it is not.
func (m *memory) rest(o *Observation, model *Model, d *Demand, pools []*pool) {
	if model.IdleAfter <= 0 {
		m.idle = idleness{}
		return
	}
	if m.idle.asked.IsZero() || m.isAsked(o, d, pools) {
		m.idle = idleness{asked: o.At}
	}
	m.idle.asleep = m.idle.asleep || o.At.Sub(m.idle.asked) >= model.IdleAfter

	for _, p := range pools {
		if p.configured.Min > 0 {
			continue // it lists workers, which no plan ends
		}
		p.rests, p.asleep = true, m.idle.asleep
		switch {
		case p.asleep:
			p.replicas = 0
			p.reason = fmt.Sprintf("0, because there was no request for %v", model.IdleAfter)
			// The first request finds a pool that begins, and not the size of its last busy time.
			p.memory.needs = nil
			p.memory.asked = asked{}
		case p.replicas == 0 && d != nil && d.Waiting > 0:
			p.replicas = 1
			p.reason = fmt.Sprintf("1, because requests wait: %d do", d.Waiting)
		case p.replicas == 0:
			p.replicas = 1
			p.reason = fmt.Sprintf("1, because there was a request in the last %v: %s", model.IdleAfter, p.reason)
		}
	}
}

// isAsked reports whether the model has requests, or may have some.
func (m *memory) isAsked(o *Observation, d *Demand, pools []*pool) bool {
	switch {
	case d != nil && (d.Requests > 0 || d.Waiting > 0):
		return true
	case m.idle.asleep:
		return false // its last workers may still report the requests that they ended
	case d == nil && !o.Between:
		return true
	}
	for _, p := range pools {
		for _, w := range p.workers {
			switch {
			case w.State == fleet.Down, p.isLate(w):
			case w.State == fleet.Starting, w.Booked > 0, w.Load != nil && w.Load.Running+w.Load.Waiting > 0:
				return true
			}
		}
	}
	return false
}

// wakesIn returns the time in which a worker is ready that starts because requests wait; 0 if none starts for them: a person or an
// autoscaler sets the number, or the budget has no room.
func (p *pool) wakesIn() time.Duration {
	if !p.rests || p.held || !p.asleep && p.replicas == 0 {
		return 0
	}
	return max(p.startUp().Round(time.Millisecond), time.Millisecond)
}
