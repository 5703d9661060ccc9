package plan

import (
	"fmt"
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
		p.memory.hold(p.usable(), now, p.model.Tuning.withDefaults().DownAfter)
	}
	held := p.memory.hold(need, now, p.model.Tuning.withDefaults().DownAfter)
	if held > need {
		p.reason = fmt.Sprintf("%d, as were needed in the last %v; now %s", held, p.model.Tuning.withDefaults().DownAfter, p.reason)
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
