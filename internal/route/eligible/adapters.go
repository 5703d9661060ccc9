package eligible

import (
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/serving"
)

// Holders finds the workers that have an adapter loaded. It remembers the last answer, because most workers of a pool have
// the same adapters.
type Holders struct {
	Model *serving.Model
	last  fleet.Adapters
	has   bool // last has the adapter; only if last is known
}

// MayTake reports whether a worker of the model's pool has the adapter, or may have it when it is ready. For a base model
// it is always true.
//
//	adapters of the worker   a configured adapter   one that is found or loadable
//	with it                  true                   true
//	without it               false                  false
//	unknown, ready           true                   false: engines list it when they have it
//	unknown, not ready       true                   true: its state keeps requests away
func (l *Holders) MayTake(w *fleet.Worker) bool {
	if l.Model.Adapter == "" {
		return true
	}
	if !w.Adapters.Known() {
		return !(l.Model.Found || l.Model.Loadable) || w.State != fleet.Ready
	}
	if w.Adapters != l.last {
		l.last = w.Adapters
		l.has = w.Adapters.Has(l.Model.Name)
	}
	return l.has
}

// HasRanks reports whether any rank may take the requests of a model, whatever its state.
func HasRanks(m *serving.Model, snap *fleet.Snapshot, role fleet.Role) bool {
	holders := Holders{Model: m}
	for _, rank := range RanksFor(m, snap, role) {
		if holders.MayTake(rank.Worker) {
			return true
		}
	}
	return false
}

// HasReady reports whether a rank of a model is ready in a role, whatever adapters it has.
func HasReady(m *serving.Model, snap *fleet.Snapshot, role fleet.Role) bool {
	ranks := RanksFor(m, snap, role)
	for i := range ranks {
		if ranks[i].Worker.State == fleet.Ready {
			return true
		}
	}
	return false
}
