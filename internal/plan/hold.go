package plan

import (
	"fmt"
	"slices"
	"time"
)

// hold returns the most that was needed in the last time, the present need included, and the needs to remember. So a pool grows at
// once, and shrinks when less was needed for a while.
func hold(needs []neededAt, n int, now time.Time, last time.Duration) (most int, kept []neededAt) {
	// A need counts until a later one is as great, or until it is too old. So the kept needs fall, and the first is the
	// greatest.
	for _, x := range needs {
		if x.n > n && now.Sub(x.at) < last {
			kept = append(kept, x)
		}
	}
	kept = append(kept, neededAt{now, n})
	return kept[0].n, kept
}

// settle bounds a need by the pool's own bounds and by the earlier needs.
func (p *pool) settle(need int, now time.Time) {
	m, last := p.memory, p.model.Tuning.withDefaults().DownAfter
	if m.replicas < 0 {
		// One step shows too little for removing workers that were there before the first plan.
		_, m.needs = hold(m.needs, p.counted(), now, last)
	}
	var held int
	held, m.needs = hold(m.needs, need, now, last)
	if held > need {
		p.reason = fmt.Sprintf("%d, as were needed in the last %v; now %s", held, last.Round(time.Second), p.reason)
	}

	p.replicas = held
	p.bound()
}

// counted returns how many usable workers the pool's number stands for. A rollout has more of them for a while.
func (p *pool) counted() int {
	if p.rollout != nil {
		return p.rollout.Replicas
	}
	return p.usable()
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
	if p.rollout != nil {
		p.memory.held = heldSince{}
		p.keepLeast()
		return
	}
	h := p.heldBy(all)
	if h == nil {
		p.memory.held = heldSince{}
		return
	}
	own, m := p.replicas, &p.memory.held
	if m.Held != *h {
		*m = heldSince{Held: *h, below: own < h.Replicas}
	}
	m.over = m.over || !m.Always && (own == m.Replicas || own < m.Replicas != m.below)
	if m.over {
		return
	}

	p.held = true
	p.replicas = m.Replicas
	p.reason = fmt.Sprintf("%d, because %s: the plan would be %s", m.Replicas, m.Why, p.reason)
}

// heldBy returns who holds the number of the pool; nil for none.
func (p *pool) heldBy(all []Held) *Held {
	i := slices.IndexFunc(all, func(h Held) bool { return h.Model == p.model.Name && h.Role == p.configured.Role })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// keepLeast keeps the number of a pool whose workers a rollout replaces, unless more are needed.
func (p *pool) keepLeast() {
	h := p.rollout
	if p.replicas > h.Replicas {
		p.reason += fmt.Sprintf("; no worker is drained, because %s", h.Why)
		return
	}
	p.replicas = h.Replicas
	p.reason = fmt.Sprintf("%d, because %s: the plan would be %s", h.Replicas, h.Why, p.reason)
}

// onlyAdd keeps the workers that are there. A rollout has more of them for a while than there are to be.
func (p *pool) onlyAdd() {
	if p.rollout != nil {
		return
	}
	if there := len(p.candidates()); p.replicas < there {
		p.replicas = there
		p.reason = fmt.Sprintf("%d stay, because planner.upOnly is set: %s", there, p.reason)
	}
}
