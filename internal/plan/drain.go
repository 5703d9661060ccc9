package plan

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// victims returns the workers that a pool drains, by name: as many as it has more than its plan. Workers that drain already come back
// first if more are needed, because they have their caches.
//
// Workers with an order are taken from the highest on, whatever they do.
//
// The last workers that are known to every router stay until others are: a worker that has just become ready gets no requests for a moment.
func (p *pool) victims(now time.Time) map[string]bool {
	candidates := p.candidates()
	slices.SortStableFunc(candidates, func(a, b *Worker) int {
		return cmp.Or(cmp.Compare(b.Order, a.Order), cmp.Compare(p.rank(a), p.rank(b)), p.compareLoss(a, b),
			strings.Compare(a.Name, b.Name))
	})
	settled := 0
	for _, w := range candidates {
		if w.isSettled(now) {
			settled++
		}
	}

	out := map[string]bool{}
	for i := range max(0, len(candidates)-p.replicas) {
		w := candidates[i]
		if w.isSettled(now) {
			if settled == 1 && p.replicas > 0 {
				continue
			}
			settled--
		}
		out[w.Name] = true
	}
	return out
}

// candidates returns the workers that the pool's replicas count.
func (p *pool) candidates() (all []*Worker) {
	for _, w := range p.workers {
		if w.State != fleet.Down {
			all = append(all, w)
		}
	}
	return all
}

// settle is the time from a worker's start until every router sends requests to it.
const settle = 3 * time.Second

// isSettled reports whether every router sends requests to a worker.
func (w *Worker) isSettled(now time.Time) bool {
	return w.State == fleet.Ready && now.Sub(w.Since) >= settle
}

// rank orders workers by the loss that removing one causes: first workers that will not come, then those that drain, then those that have
// not begun.
func (p *pool) rank(w *Worker) int {
	switch {
	case p.isLate(w):
		return 0
	case w.State == fleet.Draining:
		return 1
	case w.State == fleet.Starting:
		return 2
	}
	return 3
}

// compareLoss compares the loss of two workers of one state: of starting ones the time since their start, of ready ones the
// requests that they have and the work that their caches spare.
func (p *pool) compareLoss(a, b *Worker) int {
	if a.State == fleet.Starting {
		return b.Since.Compare(a.Since) // the newest has the longest way to go
	}
	return cmp.Compare(p.loss(a), p.loss(b))
}

// cacheMinute is for how long a cache's value is counted: within a minute or so other workers have the blocks that are used
// often.
const cacheMinute = 60

// loss returns the loss when a worker drains, in seconds: the time of computing again the tokens that its cache spares in a
// minute, and a second for each request, whose end must be waited for. A worker without a known load counts as idle: it may be
// lost already.
func (p *pool) loss(w *Worker) float64 {
	if w.Load == nil {
		return 0
	}
	token := 0.0
	if p.engine.Timing != nil {
		token = 1 / max(1, p.tokenRate)
	}
	return cacheMinute*w.Load.Found*token + float64(w.Load.Running+w.Load.Waiting)
}
