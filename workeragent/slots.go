package workeragent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
)

// assignments follows the planner's assignments to this agent.
//
//	event                             effect
//	assignment of the last term, or   its engines run, all others drain and end
//	    a later one
//	assignment of an earlier term     none; a warning. If the last term is ahead of the clock, the same as a later one
//	no assignment is there            the engines that are not spare run
//	bus lost                          none: the last assignment stays
type assignments struct {
	mu   sync.Mutex
	term uint64 // guarded by mu; of the last assignment that was applied
}

// any reports whether an assignment was applied.
func (x *assignments) any() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.term > 0
}

// orders are the planner's orders for one engine.
type orders struct {
	wanted bool
	booked booked
	drain  time.Duration // how long a drain may take
}

// booked is the state of requests that routers have booked for an engine that drains. Such a request may still be on its way: its
// prompt is computed on another engine, for example.
type booked int

const (
	bookedUnknown booked = iota
	bookedSome
	bookedNone
)

// assignWait is the time that a starting agent waits for its assignment.
const assignWait = 2 * time.Second

// followPlan publishes the slots and applies assignments until ctx ends. It returns when the first assignment has been applied, or there is
// none, or the bus does not answer soon.
func (a *Agent) followPlan(ctx context.Context, all *sync.WaitGroup) {
	synced := make(chan struct{})
	var once sync.Once
	all.Go(func() {
		_ = a.cfg.Bus.WatchAssignment(ctx, a.cfg.Node, a.assign, func() { once.Do(func() { close(synced) }) })
	})

	late := time.NewTimer(assignWait)
	defer late.Stop()
	select {
	case <-synced:
	case <-late.C:
		a.cfg.Log.Warn("the bus has not answered which engines to run; starting those of launch[].count until it does")
	case <-ctx.Done():
	}
	all.Go(func() { _ = a.cfg.Bus.HoldSlots(ctx, a.slots, a.slotsChanged) })
}

// assign applies an assignment.
func (a *Agent) assign(x bus.Assignment) {
	a.assigned.mu.Lock()
	defer a.assigned.mu.Unlock()
	// As for plans, a last term that is ahead of the clock proves nothing.
	if x.Term < a.assigned.term && a.assigned.term <= uint64(time.Now().UnixMilli()) {
		a.cfg.Log.Warn("assignment of an earlier term has no effect", "term", x.Term, "last", a.assigned.term)
		return
	}
	a.assigned.term = x.Term

	run := 0
	for _, s := range a.roster.all() {
		o := orders{wanted: slices.Contains(x.Run, s.launch.Name), drain: x.Drain}
		switch {
		case o.wanted:
			run++
		case slices.Contains(x.Busy, s.launch.Name):
			o.booked = bookedSome
		case slices.Contains(x.Free, s.launch.Name):
			o.booked = bookedNone
		}
		if !s.isObsolete() {
			s.order(o)
		}
	}
	if run < len(x.Run) {
		a.cfg.Log.Warn("the plan asks for engines that this agent does not have; give planner and agents the same configuration",
			"asked", len(x.Run), "there", run)
	}
}

// slots returns the engines that this agent can run.
func (a *Agent) slots() bus.Slots {
	out := bus.Slots{Node: a.cfg.Node}
	for _, s := range a.roster.all() {
		if s.isObsolete() {
			continue
		}
		out.Slots = append(out.Slots, bus.Slot{Name: s.launch.Name, Model: s.launch.Model, Role: s.launch.Role, Running: s.isRunning()})
	}
	return out
}

// Wanted returns how many engines should run now.
func (a *Agent) Wanted() (n int) {
	for _, s := range a.roster.all() {
		if o, _ := s.ordered(); o.wanted {
			n++
		}
	}
	return n
}

// order changes the planner's orders for the engine.
func (s *supervisor) order(o orders) {
	s.mu.Lock()
	changed := s.orders != o
	s.orders = o
	if changed {
		close(s.orderedAgain)
		s.orderedAgain = make(chan struct{})
	}
	s.mu.Unlock()

	if changed {
		s.agent.publishSlots()
	}
}

// ordered returns the planner's orders for the engine, and a channel that is closed when that changes.
func (s *supervisor) ordered() (o orders, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.orders, s.orderedAgain
}

// isRunning reports whether the engine runs, or is about to be started.
func (s *supervisor) isRunning() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alive || s.orders.wanted
}

// publishSlots has the slots published now instead of at their next regular time.
func (a *Agent) publishSlots() {
	select {
	case a.slotsChanged <- struct{}{}:
	default: // a write is waiting, and it will read the newest state
	}
}
