package kubernetes

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// assemble makes the states of the targets, for this pass and for observations. The plan is nil if none is in force.
func (c *Connector) assemble(now time.Time) (*plan.Plan, []State) {
	f := c.cfg.Fleet.Snapshot()
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.plan
	if p != nil && now.Sub(c.applied) > 2*c.cfg.Interval+5*time.Second {
		p = nil
	}
	var term uint64
	if p != nil {
		term = p.Term
	}
	c.observeDrainsLocked(p, now)

	rolling := c.rollingLocked()
	held := 0
	states := make([]State, 0, len(c.targets))
	for _, t := range c.targets {
		s := State{Target: t.Target, Read: t.read && t.listed, Replicas: t.scale.Replicas, Written: t.written}
		if err, _ := c.trouble(t, now); err != nil {
			s.Err = err.Error()
		}
		s.Held = c.holder(t, term, now)
		if rolling[t] {
			s.Held = duringRollout(t, s.Held)
		}
		if s.Held != nil {
			s.Known = slices.Contains(c.known, *s.Held)
		}
		if s.Held != nil && !s.Held.MayRise {
			held++
		}
		for _, pod := range t.pods {
			x := Pod{ScaledPod: pod}
			x.Requests, x.Free = c.requestsLocked(f, &pod, now)
			s.Pods = append(s.Pods, x)
		}
		slices.SortFunc(s.Pods, func(a, b Pod) int { return strings.Compare(a.Name, b.Name) })
		t.state = s
		states = append(states, s)
	}
	c.metrics.held.Set(float64(held))
	return p, states
}

// observeDrainsLocked records since when workers are drained.
//
// A process that has just begun knows nothing of earlier drains, so a worker then has the whole time of a drain again.
func (c *Connector) observeDrainsLocked(p *plan.Plan, now time.Time) {
	draining := map[string]bool{}
	for _, t := range c.targets {
		if p == nil {
			break
		}
		if pool := poolOf(p, &t.Target); pool != nil {
			maps.Copy(draining, drainedBy(pool))
		}
	}
	maps.DeleteFunc(c.drained, func(name string, _ time.Time) bool { return !draining[name] })
	for name := range draining {
		if _, known := c.drained[name]; !known {
			c.drained[name] = now
		}
	}
}

// requestsLocked returns the requests of a pod as routers have booked them, and whether it may end once it is drained.
//
//	the pod                                                 may end
//	has no worker in the fleet: it starts, or has failed    yes
//	has been drained for less than settle                   no: a request may be on its way
//	has requests, or the bookings of a router are missing   no
//	has been drained for longer than a drain may take       yes, whatever it has
func (c *Connector) requestsLocked(f *fleet.Snapshot, p *kubernetes.ScaledPod, now time.Time) (requests int64, free bool) {
	w := f.Worker(p.Worker)
	if w == nil {
		return 0, true // it serves nothing
	}
	for rank := range w.Ranks {
		if r, ok := f.Rank(w.Name, rank); ok {
			requests += r.Load.Booked().Requests
		}
	}

	since, isDrained := c.drained[p.Worker]
	lasted := now.Sub(since)
	known := now.Sub(c.began) >= bookingsKnown
	return requests, isDrained && (known && requests == 0 && lasted >= settle || lasted >= time.Duration(c.drain.Load()))
}

// Observe adds to an observation: workers that have not started yet, and why, in which order workers can end, and the numbers of others. It
// is called before each plan.
//
// A worker that starts is a pod that has no worker in the fleet yet. Its time counts from the creation of the pod: the wait for a node, the
// image and the weights are part of a start.
func (c *Connector) Observe(o *plan.Observation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := make(map[string]*plan.Worker, len(o.Workers))
	for i := range o.Workers {
		known[o.Workers[i].Name] = &o.Workers[i]
	}

	c.held = nil
	var started []plan.Worker
	for _, t := range c.targets {
		s := &t.state
		if s.Held != nil {
			h := *s.Held
			if !s.Read && h.Replicas == 0 { // its number was never read
				for i := range o.Workers {
					if w := &o.Workers[i]; w.Model == t.Model && w.Role == t.Role {
						h.Replicas++
					}
				}
			}
			c.held = append(c.held, h)
		}
		there := 0
		for _, p := range s.workers() {
			there++
			order := p.Ordinal + 1
			if w := known[p.Worker]; w != nil {
				w.Order = order
				continue
			}
			started = append(started, plan.Worker{
				Name: p.Worker, Model: t.Model, Role: t.Role, State: fleet.Starting, Since: p.Created, Order: order, Trouble: p.Trouble,
			})
		}

		// Replicas without a pod are workers that have not begun. They end first.
		for n := there; s.Read && n < min(s.Replicas, maxMissing); n++ {
			w := plan.Worker{
				Name: fmt.Sprintf("%s.%d", t.Name, n), Model: t.Model, Role: t.Role, State: fleet.Starting, Since: t.lacksFrom,
				Trouble: t.uncreated,
			}
			if s.isOrdered() {
				w.Order = 1 + n
			}
			started = append(started, w)
		}
	}
	o.Workers = append(o.Workers, started...)
	o.Held = c.held
	o.Waits = c.last.Waits
}

// maxMissing bounds the replicas without a pod that a plan counts.
const maxMissing = 1024

// Preview returns the changes that a plan would make now, and whether all targets have been looked at.
func (c *Connector) Preview(p *plan.Plan) (set ChangeSet, complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	complete = true
	var states []State
	for _, t := range c.targets {
		s := t.state
		s.Known = true
		complete = complete && (s.Read || s.Held != nil)
		states = append(states, s)
	}
	return Changes(p, states, *c.rules.Load(), time.Now()), complete
}

// Done returns whether a plan of a term has been carried out, as far as it can be, and the pools whose number is not set. It is false
// before the first pass with such a plan.
func (c *Connector) Done(term uint64) (done bool, refused []plan.Wait) {
	c.mu.Lock()
	defer c.mu.Unlock()
	done = c.last.Term == term && len(c.last.Changes) == 0 && len(c.last.Waits) == 0
	return done, c.last.Refused
}
