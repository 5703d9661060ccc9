package plan

import (
	"fmt"
	"slices"
	"time"
)

// hold returns the most that was needed in the last time, the present need included, and remembers that. So a pool grows at once, and
// shrinks when less was needed for a while.
func (m *poolMemory) hold(n int, now time.Time, last time.Duration) int {
	// A need counts until a later one is as great, or until it is too old. So the kept needs fall, and the first is the
	// greatest.
	var kept []neededAt
	for _, x := range m.needs {
		if x.n > n && now.Sub(x.at) < last {
			kept = append(kept, x)
		}
	}
	m.needs = append(kept, neededAt{now, n})
	return m.needs[0].n
}

// settle bounds a need by the pool's own bounds and by the earlier needs.
func (p *pool) settle(need int, now time.Time) {
	if p.memory.replicas < 0 {
		// One step shows too little for removing workers that were there before the first plan.
		p.memory.hold(p.usable(), now, p.downAfter())
	}
	held := p.memory.hold(need, now, p.downAfter())
	if held > need {
		p.reason = fmt.Sprintf("%d, as were needed in the last %v; now %s", held, p.downAfter(), p.reason)
	}

	p.replicas = held
	p.bound()
}

// bound moves the replicas into the range that the configuration allows.
func (p *pool) bound() {
	if least := p.configured.Min; p.replicas < least {
		p.replicas = least
		p.reason = fmt.Sprintf("%d, the least that the configuration allows: %s", least, p.reason)
	}
	if most := p.most(); p.replicas > most {
		p.replicas = most
		p.reason = fmt.Sprintf("%d, the most that the configuration allows: %s", most, p.reason)
	}
}

// keep sets the pool's replicas to the number that a person or an autoscaler has set, until the plan's own number comes as far. So the plan
// never undoes the work of a person, and both agree when it goes on.
func (p *pool) keep(all []Held) {
	i := slices.IndexFunc(all, func(h Held) bool { return h.Model == p.model.Name && h.Role == p.configured.Role })
	if i < 0 {
		p.memory.held = heldSince{}
		return
	}
	own, m := p.replicas, &p.memory.held
	if m.Held != all[i] {
		*m = heldSince{Held: all[i], below: own < all[i].Replicas}
	}
	m.over = m.over || !m.Always && (own == m.Replicas || own < m.Replicas != m.below)
	if m.over {
		return
	}

	p.held = true
	p.replicas = m.Replicas
	p.reason = fmt.Sprintf("%d, because %s: the plan would be %s", m.Replicas, m.Why, p.reason)
}

// onlyAdd keeps the workers that are there.
func (p *pool) onlyAdd() {
	if there := len(p.candidates()); p.replicas < there {
		p.replicas = there
		p.reason = fmt.Sprintf("%d stay, because planner.upOnly is set: %s", there, p.reason)
	}
}
