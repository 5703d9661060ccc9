package route

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/pick"
)

// pool is the ranks that serve a model in a role, whatever their state.
func (m *model) pool(snap *fleet.Snapshot, role fleet.Role) []fleet.Rank {
	if m == anyModel {
		return snap.Ranks
	}
	return snap.Pool(m.Pool, role)
}

// eligible collects into s.ranks those that may take the request. What stands in their way is looked
// at in this order, and each has its own refusal: allowed workers, the named worker, its rank, the
// required taints, health, and whether they are busy. Where all are busy s.ranks has all that are ready.
func (r *Router) eligible(s *scratch, m *model, d *Decision) *prompt.Error {
	a := &s.asks
	if d.Policy == pick.Direct && a.worker == "" {
		return d.no(WorkerRequired, 400, "nvext.router.worker",
			"This model's requests say which worker takes them. Set 'nvext.router.worker' to its name.")
	}
	snap := r.fleet.Snapshot()
	plain := m != anyModel && !a.restricted() && !m.Busy.bounds()
	if plain && s.everyone == (everyone{snap, m.Pool, a.role}) {
		return nil
	}
	s.everyone = everyone{}
	barred := notAllowed // of the ranks that got furthest
	var states [4]int
	s.ranks = s.ranks[:0]
	free, pool := 0, 0
	for _, rank := range m.pool(snap, a.role) {
		if m == anyModel && rank.Worker.Role != a.role {
			continue
		}
		pool++
		if a.restricted() {
			by := a.bars(&rank)
			if barred = max(barred, by); by != nothing {
				continue
			}
		}
		states[rank.Worker.State&3]++
		if rank.Worker.State != fleet.Ready {
			continue
		}
		// The free ones stand in front, so that what is left of the slice is theirs.
		s.ranks = append(s.ranks, rank)
		if !r.full(&m.Busy, &rank, d.At) {
			s.ranks[free], s.ranks[len(s.ranks)-1] = s.ranks[len(s.ranks)-1], s.ranks[free]
			free++
		}
	}
	r.know(s)
	switch {
	case free > 0:
		s.ranks, s.kinds = s.ranks[:free], s.kinds[:free]
		if plain {
			s.everyone = everyone{snap, m.Pool, a.role}
		}
		return nil
	case len(s.ranks) > 0:
		return s.busy(m, d)
	case pool > 0 && a.restricted() && barred != nothing:
		return s.nowhere(d, barred)
	}
	d.RetryAfter = 10 * time.Second
	if states[fleet.Starting] > 0 {
		d.RetryAfter = 2 * time.Second
	}
	return d.no(NoReadyWorker, 503, "", fmt.Sprintf("No worker is ready for the model `%s`: %s. Try again in %d seconds.",
		d.Model, spell(states, a), int(d.RetryAfter.Seconds())))
}

// everyone names the ranks of a pool that were ready at one moment: most requests may go to all of
// them, and nothing changes between most decisions.
type everyone struct {
	snap *fleet.Snapshot
	pool string
	role fleet.Role
}

// know finds out what decisions ask of the worker of each of s.ranks.
func (r *Router) know(s *scratch) {
	s.kinds = slices.Grow(s.kinds[:0], len(s.ranks))[:len(s.ranks)]
	for i := range s.ranks {
		w := s.ranks[i].Worker
		if s.kinds[i].blocks = w.Blocks; i > 0 && s.ranks[i-1].Worker.Engine == w.Engine && s.ranks[i-1].Worker.Model == w.Model {
			s.kinds[i].learned = s.kinds[i-1].learned
			continue
		}
		s.kinds[i].learned = r.speeds.of(w).prefill
	}
}

// nowhere refuses a request that names workers, ranks or taints that there are not.
func (s *scratch) nowhere(d *Decision, by bar) *prompt.Error {
	a := &s.asks
	switch {
	case by == notTainted:
		return d.no(NoTaintedWorker, 503, "nvext.routing_constraints.required_taints",
			fmt.Sprintf("No worker that may take this request has all of the required taints (%s). Require fewer, or prefer them.", clip(strings.Join(a.required, ", "))))
	case by == notAllowed:
		return d.no(NoAllowedWorker, 400, "nvext.router.allowed_workers",
			fmt.Sprintf("None of the allowed workers (%s) serves the model `%s`. Name others, or leave them out.", clip(strings.Join(a.allowed, ", ")), d.Model))
	case by == notPinned && len(a.allowed) > 0:
		return d.no(WorkerNotFound, 400, "nvext.router.worker",
			fmt.Sprintf("The worker `%s` is not among the allowed workers that serve the model `%s`. Name another, or allow it.", clip(a.worker), d.Model))
	case by == notPinned:
		return d.no(WorkerNotFound, 400, "nvext.router.worker",
			fmt.Sprintf("The worker `%s` does not serve the model `%s`. Name another, or none.", clip(a.worker), d.Model))
	}
	return d.no(RankNotFound, 400, "nvext.router.dp_rank",
		fmt.Sprintf("No worker that may take this request has a rank %d. Ranks count from 0; leave it out for any.", a.rank))
}

// busy refuses a request all of whose ranks are busy. RetryAfter is what the quickest of them needs for
// what is booked there.
func (s *scratch) busy(m *model, d *Decision) *prompt.Error {
	least := time.Duration(-1)
	for i := range s.ranks {
		if w := s.ranks[i].Load.Wait(d.At); least < 0 || w < least {
			least = w
		}
	}
	d.RetryAfter = retryIn(least)
	seconds := int(d.RetryAfter.Seconds())
	if s.asks.worker != "" {
		return d.no(PinnedBusy, m.Busy.status(), "nvext.router.worker",
			fmt.Sprintf("The worker `%s` that this request must go to is busy. Try again in %d seconds, or name no worker.", clip(s.asks.worker), seconds))
	}
	return d.no(Overloaded, m.Busy.status(), "", fmt.Sprintf("All %d ranks that may take this request are busy. Try again in %d seconds.", len(s.ranks), seconds))
}

func spell(states [4]int, a *asks) string {
	text := ""
	for state, n := range states {
		if n > 0 {
			text += fmt.Sprintf(", %d %s", n, fleet.State(state))
		}
	}
	switch {
	case text == "":
		return "it has none"
	case a.restricted():
		return "of those that may take this request " + text[2:]
	}
	return text[2:]
}
