package route

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/eligible"
	"github.com/stator-project/stator/internal/route/serving"
)

// SetModels replaces the models. Decisions that have begun use the old models, and later ones the new.
// On an error, which names everything that is wrong, nothing changes.
func (r *Router) SetModels(models map[string]*serving.Config) error {
	ready := make(map[string]*serving.Model, len(models))
	var errs []error
	for name, cfg := range models {
		m, err := serving.New(name, *cfg)
		if err != nil {
			errs = append(errs, fmt.Errorf("model %s: %w", name, err))
		}
		if old := r.model(name); old != nil {
			m.KeepPolicies(old)
		}
		ready[name] = m
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// Queues first: a decision that sees the new models must find their queues.
	r.queues.configure(ready)
	r.models.Store(&ready)
	return nil
}

// model returns the model of that name, or nil.
func (r *Router) model(name string) *serving.Model { return (*r.models.Load())[name] }

// Preparer returns the part of a model that prepares prompts, and the size of its blocks in tokens. It is nil for a model whose prompts are
// not read.
func (r *Router) Preparer(model string) (p serving.Preparer, blockSize int) {
	m := r.model(model)
	if m == nil {
		return nil, 0
	}
	return m.Prompt, m.BlockSize
}

// ModelStatus is one line of the model listing.
type ModelStatus struct {
	Name, Pool, Adapter, Parent string
	ContextLength               int
	// Workers counts the workers of the pool that decode, in any state; Ready counts the ones that take requests. For an adapter, only
	// workers that have it loaded count.
	Workers, Ready int
}

// Serves reports whether requests may name this model.
func (r *Router) Serves(name string) bool { return r.model(name) != nil }

// Models lists the served models, sorted by name.
func (r *Router) Models() []ModelStatus {
	snap := r.fleet.Snapshot()
	var list []ModelStatus
	for name, m := range *r.models.Load() {
		s := ModelStatus{Name: name, Pool: m.Pool, Adapter: m.Adapter, Parent: m.Parent, ContextLength: m.ContextLength}
		holders := eligible.Holders{Model: m}
		serving := snap.Pool(m.Pool, fleet.Decode)
		if len(serving) == 0 {
			serving = snap.Pool(m.Pool, fleet.Aggregated)
		}
		for _, rank := range serving {
			if rank.Number != 0 || !holders.MayTake(rank.Worker) {
				continue
			}
			s.Workers++
			if rank.Worker.State == fleet.Ready {
				s.Ready++
			}
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b ModelStatus) int { return strings.Compare(a.Name, b.Name) })
	return list
}
