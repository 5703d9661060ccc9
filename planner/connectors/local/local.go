// Package local has the agents of the cluster start and stop engines as the plan asks for.
//
// Agents publish their slots: the engines that they can run. The connector chooses which of them should run, and publishes that for each
// node. An agent starts the engines that it is assigned, and drains the others: see package workeragent. A slot that runs is kept as long
// as its pool needs it, and a new one is on the node with the fewest engines.
//
// # Failures
//
//	event                                effect
//	a worker is down for a minute        another slot is used instead, if there is one; the agent restarts the engine until then
//	an agent ends, or its node           its slots expire, and slots of other nodes are used
//	slots of an agent are not known yet  its workers count, so that no others are started for them; none ends because of them for 5 s
//	an assignment is not written         written again after a second
//	the bus has lost its memory          all assignments are written again
//	another planner leads                its term is later, so writing is refused; the connector waits for the next plan
//
// # Concurrency
//
// Apply may be called beside Run, which owns the processes that it starts, and ends them.
package local

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// Bus has the methods of the bus that the connector needs. *bus.Bus implements it.
type Bus interface {
	WatchSlots(ctx context.Context, apply func(bus.Slots), synced func()) error
	PutAssignment(ctx context.Context, a bus.Assignment) error
	// Back returns a channel that is closed when a lost connection is back.
	Back() <-chan struct{}
}

// Config is read by New and not changed later.
type Config struct {
	Bus Bus
	// Fleet has the workers, with what routers have booked.
	Fleet *fleet.Fleet
	// Drain is the longest time that a drain may take. It can be replaced with SetDrain.
	Drain time.Duration
	Log   *slog.Logger
}

// Connector assigns engines to agents. Create it with [New].
type Connector struct {
	cfg   Config
	drain atomic.Int64  // see Config.Drain
	wake  chan struct{} // has a token when something has changed

	mu     sync.Mutex
	plan   *plan.Plan           // guarded by mu; nil before the first, and while another planner leads
	slots  map[string]bus.Slots // guarded by mu; by node
	synced bool                 // guarded by mu; slots has all nodes of the moment

	// Run's loop alone uses these.
	memory  *memory
	began   time.Time
	written map[string]bus.Assignment // by node; nothing if the bus may have lost it
	term    uint64                    // of the last plan
}

// New returns a connector that has assigned nothing.
func New(cfg Config) *Connector {
	c := &Connector{
		cfg: cfg, wake: make(chan struct{}, 1), slots: map[string]bus.Slots{}, memory: newMemory(), written: map[string]bus.Assignment{},
	}
	c.drain.Store(int64(cfg.Drain))
	return c
}

// SetDrain changes the longest time that a drain may take, of drains that have begun too.
func (c *Connector) SetDrain(d time.Duration) {
	c.drain.Store(int64(d))
	c.changed()
}

// Apply has Run carry out a plan. It returns nil.
func (c *Connector) Apply(_ context.Context, p plan.Plan) error {
	c.mu.Lock()
	c.plan = &p
	c.mu.Unlock()
	c.changed()
	return nil
}

// changed has Run assign again. A token that is there covers this one.
func (c *Connector) changed() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

const (
	// assignEvery is the interval at which assignments are made if nothing has changed: workers may be down for too long, and
	// bookings end.
	assignEvery = time.Second
	// together is the least time between two assignments.
	together = 50 * time.Millisecond
	// bookingsKnown is after how long the bookings of all routers are known: they publish full lists more often.
	bookingsKnown = 15 * time.Second
)

// Run assigns engines until ctx ends.
func (c *Connector) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { _ = c.cfg.Bus.WatchSlots(ctx, c.applySlots, c.applySynced) })

	c.began = time.Now()
	tick := time.NewTicker(assignEvery)
	defer tick.Stop()
	for {
		back, changed := c.cfg.Bus.Back(), c.cfg.Fleet.Changed()
		c.once(ctx, time.Now())
		pause := time.NewTimer(together)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil
		}

		select {
		case <-back:
			clear(c.written)
		case <-changed:
		case <-c.wake:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// applySlots records the slots of a node.
func (c *Connector) applySlots(s bus.Slots) {
	c.mu.Lock()
	if len(s.Slots) == 0 {
		delete(c.slots, s.Node)
	} else {
		c.slots[s.Node] = s
	}
	c.mu.Unlock()
	c.changed()
}

// applySynced records that the slots of all nodes are known.
func (c *Connector) applySynced() {
	c.mu.Lock()
	c.synced = true
	c.mu.Unlock()
	c.changed()
}

// current returns the plan and the slots, sorted by node. The plan is nil if there is nothing to do.
func (c *Connector) current() (p *plan.Plan, slots []bus.Slots) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.synced {
		return nil, nil
	}
	for _, node := range slices.Sorted(maps.Keys(c.slots)) {
		slots = append(slots, c.slots[node])
	}
	return c.plan, slots
}

// once writes the assignments that have changed.
func (c *Connector) once(ctx context.Context, now time.Time) {
	p, slots := c.current()
	if p == nil {
		return
	}
	if p.Term != c.term {
		c.term = p.Term
		clear(c.written) // agents must have the new term
	}
	workers := c.workers(now)
	c.memory.observe(slots, workers, now)
	run := assign(p, slots, workers, c.memory, now)

	clear(c.memory.assigned)
	for _, names := range run {
		for _, name := range names {
			c.memory.assigned[name] = true
		}
	}

	for i := range slots {
		node := slots[i].Node
		a := bus.Assignment{Term: p.Term, Node: node, Run: run[node], Drain: time.Duration(c.drain.Load())}
		a.Busy, a.Free = booked(&slots[i], a.Run, workers)
		if reflect.DeepEqual(a, c.written[node]) {
			continue
		}
		if !c.assign(ctx, a) {
			return
		}
	}
}

// assign writes an assignment. It returns false if another planner leads, or the bus does not answer: then the next attempt
// writes all that is left.
func (c *Connector) assign(ctx context.Context, a bus.Assignment) bool {
	err := c.cfg.Bus.PutAssignment(ctx, a)
	switch {
	case err == nil:
		c.logChange(a)
		c.written[a.Node] = a
		return true
	case errors.Is(err, bus.ErrEarlierTerm):
		c.mu.Lock()
		if c.plan != nil && c.plan.Term == a.Term {
			c.plan = nil // the planner that leads now assigns
		}
		c.mu.Unlock()
	case ctx.Err() == nil:
		c.cfg.Log.Warn("assignment not written; trying again", "node", a.Node, "err", err)
	}
	return false
}

// logChange logs which engines a node should run, where that is new.
func (c *Connector) logChange(a bus.Assignment) {
	if last, known := c.written[a.Node]; !known || !slices.Equal(last.Run, a.Run) {
		c.cfg.Log.Info("assigned", "node", a.Node, "run", a.Run)
	}
}

// workers returns the workers of the fleet.
func (c *Connector) workers(now time.Time) map[string]worker {
	f := c.cfg.Fleet.Snapshot()
	out := make(map[string]worker, len(f.Workers))
	for _, w := range f.Workers {
		x := worker{model: w.Model, role: w.Role, state: w.State, booked: -1}
		if now.Sub(c.began) >= bookingsKnown {
			x.booked = 0
		}
		for rank := range w.Ranks {
			if r, ok := f.Rank(w.Name, rank); ok {
				if n := r.Load.Booked().Requests; n > 0 {
					x.booked = max(0, x.booked) + n
				}
			}
		}
		out[w.Name] = x
	}
	return out
}
