package workeragent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/workeragent/engine"
)

// roster is the list of an agent's engines.
//
//	event                          effect
//	a launch with a new name       its engine starts, or waits for the plan if it is spare
//	a launch has gone              its engine drains and ends, and is forgotten then
//	it is back before that         the engine is wanted again
//	a launch differs otherwise     none before the agent's next start
type roster struct {
	mu      sync.Mutex
	engines []*supervisor     // guarded by mu; replaced, not changed
	start   func(*supervisor) // guarded by mu; nil before Run and after it
}

// all returns the engines, in the order of their launches.
func (r *roster) all() []*supervisor {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.engines
}

// open starts the engines, and from now on those that come. shut has those that come start no more.
func (r *roster) open(start func(*supervisor)) (shut func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.start = start
	for _, s := range r.engines {
		start(s)
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.start = nil
	}
}

// Reload replaces the launches, whose drains may take that long. After an error nothing has changed.
func (a *Agent) Reload(launches []engine.Launch, drain time.Duration) error {
	var errs []error
	for i := range launches {
		if err := a.check(&launches[i]); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}

	// The planner's orders are obeyed, once there are any, by engines that stay. Before that, and without a planner, the number of the
	// file counts.
	// A launch that differs in more than whether it is spare keeps its engine: the log and /readyz say that it waits for a restart.
	byPlan := a.cfg.Scaled && a.assigned.any()
	a.roster.mu.Lock()
	defer a.roster.mu.Unlock()
	kept := map[string]bool{}              // the names of launches
	next := slices.Clone(a.roster.engines) // as forgetObsolete does, this replaces the list
	for _, l := range launches {
		kept[l.Name] = true
		i := slices.IndexFunc(next, func(s *supervisor) bool { return s.launch.Name == l.Name })
		switch {
		// An engine that was to end and is back needs an order in any case: the planner has not seen that it was gone.
		case i >= 0 && next[i].setObsolete(false), i >= 0 && !byPlan:
			next[i].order(orders{wanted: !l.Spare, drain: drain})
		case i < 0 && (a.cfg.Scaled || !l.Spare):
			s := newSupervisor(l, a)
			next = append(next, s)
			if a.roster.start != nil {
				a.roster.start(s)
			}
		}
	}
	for _, s := range next {
		if !kept[s.launch.Name] && !s.setObsolete(true) {
			s.order(orders{drain: drain})
		}
	}
	a.roster.engines = next
	a.publishSlots() // the planner learns at once what this agent can run
	return nil
}

// check returns what is wrong with a launch that this agent would have to start.
func (a *Agent) check(l *engine.Launch) error {
	hasStore := !l.KVStore
	for _, s := range a.roster.all() {
		if s.launch.Name == l.Name {
			return nil
		}
		hasStore = hasStore || s.launch.Model == l.Model && s.launch.KVStore
	}
	err := a.cfg.check(l)
	if !hasStore {
		err = errors.Join(err,
			fmt.Errorf("launch %s: the model %s needs a store of KV blocks, which a restart of the agent makes", l.Name, l.Model))
	}
	return err
}

// setObsolete records whether the launch has gone, and returns what was recorded before.
func (s *supervisor) setObsolete(now bool) (before bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.obsolete = s.obsolete, now
	return before
}

// isObsolete reports whether the launch has gone.
func (s *supervisor) isObsolete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.obsolete
}

// forgetEvery is the interval at which the agent forgets engines that have ended and whose launch has gone.
const forgetEvery = time.Second

// forgetObsolete forgets them until ctx ends. A name that comes back after that is a new engine.
func (a *Agent) forgetObsolete(ctx context.Context) {
	for backoff.Sleep(ctx, forgetEvery) == nil {
		a.roster.mu.Lock()
		// The list is replaced: others may be walking through the old one.
		before := len(a.roster.engines)
		left := slices.DeleteFunc(slices.Clone(a.roster.engines), func(s *supervisor) bool {
			gone := s.isObsolete() && !s.isRunning()
			if gone {
				s.quit()
			}
			return gone
		})
		a.roster.engines = left
		a.roster.mu.Unlock()
		if len(left) < before {
			a.publishSlots()
		}
	}
}
