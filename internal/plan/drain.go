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
//
// Of workers in one state, the last one of a zone, rack or NVLink domain with workers of the other role ends last: see [pool.lastOf].
// spared is one that stays for that reason; nil for none.
func (p *pool) victims(now time.Time) (out map[string]bool, spared *Worker) {
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

	own := map[fleet.Place]int{}
	for _, w := range candidates {
		own[w.Place]++
	}
	out = map[string]bool{}
	left := slices.Clone(candidates)
	for range max(0, len(candidates)-p.replicas) {
		next := p.next(left, own)
		w := left[next]
		if next > 0 {
			spared = left[0]
		}
		left = slices.Delete(left, next, next+1)
		if w.isSettled(now) {
			if settled == 1 && p.replicas > 0 {
				continue
			}
			settled--
		}
		out[w.Name] = true
		own[w.Place]--
	}
	if spared != nil && out[spared.Name] {
		spared = nil
	}
	return out, spared
}

// next returns the index of the worker that ends next, among workers in the order of their loss.
func (p *pool) next(left []*Worker, own map[fleet.Place]int) (next int) {
	if len(p.partners) == 0 {
		return 0
	}
	least := p.lastOf(left[0].Place, own)
	for i, w := range left {
		if least == 0 || w.Order != left[0].Order || p.rank(w) != p.rank(left[0]) {
			break
		}
		if last := p.lastOf(w.Place, own); last < least {
			next, least = i, last
		}
	}
	return next
}

// lastOf returns how wide the widest place is, of the places around one, that has a single worker of the pool and partners of it: 0 if
// there is none, and otherwise more for a wider one. Without this worker the partners there would exchange all KV caches with farther
// places.
func (p *pool) lastOf(place fleet.Place, own map[fleet.Place]int) int {
	for level := fleet.InZone; level < fleet.Levels; level++ {
		within := func(other *fleet.Place) bool { return place.Shared(other) >= level }
		workers := 0
		for other, n := range own {
			if within(&other) {
				workers += n
			}
		}
		if workers == 1 && slices.ContainsFunc(p.partners, func(other fleet.Place) bool { return within(&other) }) {
			return int(fleet.Levels - level)
		}
	}
	return 0
}

// isPartnerOf reports whether a worker that stays exchanges KV caches with workers of a role.
func (w *Worker) isPartnerOf(role fleet.Role) bool {
	isPair := role == fleet.Prefill && w.Role == fleet.Decode || role == fleet.Decode && w.Role == fleet.Prefill
	return isPair && w.State != fleet.Down && w.State != fleet.Draining
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
