package route

import (
	"github.com/stator-project/stator/internal/fleet"
)

// loaded finds the workers that have an adapter loaded. It remembers the last answer, because most workers of a pool have
// the same adapters.
type loaded struct {
	model *model
	last  fleet.Adapters
	has   bool // last has the adapter; only if last is known
}

// mayTake reports whether a worker of the model's pool has the adapter, or may have it when it is ready. For a base model
// it is always true.
//
//	adapters of the worker   a configured adapter   one that is found or loadable
//	with it                  true                   true
//	without it               false                  false
//	unknown, ready           true                   false: engines list it when they have it
//	unknown, not ready       true                   true: its state keeps requests away
func (l *loaded) mayTake(w *fleet.Worker) bool {
	if l.model.Adapter == "" {
		return true
	}
	if !w.Adapters.Known() {
		return !(l.model.Found || l.model.Loadable) || w.State != fleet.Ready
	}
	if w.Adapters != l.last {
		l.last = w.Adapters
		l.has = w.Adapters.Has(l.model.name)
	}
	return l.has
}

// hasRanks reports whether any rank may take the requests of a model, whatever its state.
func hasRanks(m *model, snap *fleet.Snapshot, role fleet.Role) bool {
	holders := loaded{model: m}
	for _, rank := range ranksFor(m, snap, role) {
		if holders.mayTake(rank.Worker) {
			return true
		}
	}
	return false
}
