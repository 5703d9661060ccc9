package workeragent

import (
	"context"
	"errors"
	"time"

	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/fleet"
)

// errNotWanted is the cause of a life's end when the plan does not want the engine any more.
var errNotWanted = errors.New("the plan does not want the engine")

// draining sets how an engine drains. Tests make it faster.
type draining struct {
	settle time.Duration // the least time: routers must have the lease, and decisions on their way must arrive
	look   time.Duration // pause between two looks at the engine's load
	idle   int           // looks in a row that must find no requests
	blind  time.Duration // the longest drain of an engine about which nothing is known
	adopt  time.Duration // how long an engine of an earlier agent may take to be adopted
}

var usualDraining = draining{settle: 3 * time.Second, look: time.Second, idle: 2, blind: 30 * time.Second, adopt: 5 * time.Second}

// drainResult is the outcome of a drain. It is the value of a label, so their number is bounded.
type drainResult string

const (
	drainIdle     drainResult = "idle"       // all requests have ended
	drainDeadline drainResult = "deadline"   // planner.drainTimeout was over
	drainBlind    drainResult = "blind"      // whether requests are left is not known, and draining.blind was over
	drainNotReady drainResult = "not_ready"  // the engine had not been ready, or did not run
	drainEnded    drainResult = "ended"      // the engine ended by itself, or with its agent
	drainBack     drainResult = "taken_back" // the plan wants the engine again
)

var drainResults = []drainResult{drainIdle, drainDeadline, drainBlind, drainNotReady, drainEnded, drainBack}

// awaitWanted waits until the plan wants the engine, or one has survived an earlier agent, which must drain. It returns false when ctx ends
// first.
func (s *supervisor) awaitWanted(ctx context.Context) bool {
	if s.hasSurvivor() {
		return ctx.Err() == nil
	}
	for {
		o, changed := s.ordered()
		if o.wanted {
			return ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// hasSurvivor reports whether an engine has survived an earlier agent.
func (s *supervisor) hasSurvivor() bool {
	if !s.launch.Survive {
		return false
	}
	_, found, ok := s.agent.cfg.State.find(s.launch.Name)
	if ok {
		found.Leave()
	}
	return ok
}

// obey drains the engine when the plan does not want it any more, and then calls end. It returns when ctx ends.
func (s *supervisor) obey(ctx context.Context, end context.CancelCauseFunc) {
	for ctx.Err() == nil {
		o, changed := s.ordered()
		if !o.wanted {
			s.drain(ctx, end)
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// drain takes the engine out of service, and calls end when its requests have ended. It returns when the plan wants it again, or ctx has
// ended.
//
//	event                                    effect
//	begin                                    the lease is Draining: routers and Envoys send no more requests
//	no requests left, twice in a row,        end
//	    and none booked by routers
//	the deadline                             end
//	the plan wants the engine again          the lease is Ready again
func (s *supervisor) drain(ctx context.Context, end context.CancelCauseFunc) {
	log := s.agent.cfg.Log.With("worker", s.launch.Name)
	began := time.Now()
	s.setDraining(true)
	log.Info("engine drains: the plan does not want it any more")

	result := s.awaitIdle(ctx, began)
	took := time.Since(began)
	s.agent.metrics.drained(result, took)
	log.Info("drain ended", "result", string(result), "took", took)
	if result == drainBack {
		s.setDraining(false)
		return
	}
	end(errNotWanted) // if ctx has ended this has no effect
}

// awaitIdle returns how the drain has ended.
func (s *supervisor) awaitIdle(ctx context.Context, began time.Time) drainResult {
	d := &drainLooks{supervisor: s, times: s.agent.draining, began: began}
	defer d.close()
	tick := time.NewTicker(d.times.look)
	defer tick.Stop()
	for {
		o, changed := s.ordered()
		if o.wanted {
			return drainBack
		}
		if result := d.step(ctx, o, time.Now()); result != "" {
			return result
		}

		select {
		case <-tick.C:
		case <-changed:
		case <-ctx.Done():
			return drainEnded
		}
	}
}

// drainLooks has the observations of an engine that drains. It belongs to the goroutine of drain.
type drainLooks struct {
	*supervisor
	times draining
	began time.Time

	probe  *engineprobe.Probe // nil before the first look
	looked time.Time          // when the load was read last
	idle   int                // looks in a row that found no requests
}

// close closes the connections to the engine.
func (d *drainLooks) close() {
	if d.probe != nil {
		d.probe.Close()
	}
}

// step returns how the drain has ended; empty while it goes on.
func (d *drainLooks) step(ctx context.Context, o orders, now time.Time) drainResult {
	took := now.Sub(d.began)
	pid, wasReady, address := d.process()
	switch {
	case pid == 0 && d.launch.Survive && took < d.times.adopt:
		return "" // one of an earlier agent is being adopted
	case !wasReady:
		return drainNotReady // routers have sent it nothing
	case took < d.times.settle:
		return ""
	case took >= o.drain:
		return drainDeadline
	}

	if d.probe == nil {
		d.probe = engineprobe.New(d.launch.Kind, address, d.agent.cfg.Engines)
	}
	if !d.probe.ReadsLoad() {
		return d.stepBlind(o, took)
	}
	if now.Sub(d.looked) < d.times.look {
		return ""
	}
	d.looked = now
	if o.booked == bookedSome || !d.isIdle(ctx) {
		d.idle = 0
		return ""
	}
	d.idle++
	if d.idle < d.times.idle {
		return ""
	}
	return drainIdle
}

// stepBlind is step for an engine whose load cannot be read.
func (d *drainLooks) stepBlind(o orders, took time.Duration) drainResult {
	switch {
	case o.booked == bookedNone:
		return drainIdle
	case o.booked == bookedUnknown && took >= d.times.blind:
		return drainBlind
	}
	return ""
}

// kvIdle is the use of a KV cache, as a share, that counts as none.
const kvIdle = 1e-6

// isIdle reports whether the engine has no requests. A prefill worker keeps the blocks of its prompts until a decode worker has fetched
// them, or the engine frees them because their lease is over.
func (d *drainLooks) isIdle(ctx context.Context) bool {
	load, err := d.probe.Load(ctx)
	if err != nil {
		d.agent.cfg.Log.Debug("load not read", "worker", d.launch.Name, "err", err)
		return false
	}
	return load.Running == 0 && load.Waiting == 0 && (d.launch.Role != fleet.Prefill || load.KVUsage <= kvIdle)
}

// process returns the id of the running process, whether it was ready, and its address.
func (s *supervisor) process() (pid int, wasReady bool, address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid, s.pid != 0 && !s.ready.IsZero(), s.worker.Address
}

// setDraining begins or ends the drain of the engine. A healthy engine is Draining meanwhile, and Ready after it.
func (s *supervisor) setDraining(draining bool) {
	s.mu.Lock()
	s.draining = draining
	state := s.worker.State
	if state == fleet.Draining {
		state = fleet.Ready
	}
	changed := s.setStateLocked(state)
	s.mu.Unlock()

	if changed {
		s.renewLease()
	}
}

// isDraining reports whether the plan does not want the engine any more.
func (s *supervisor) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// begun records that the engine is about to be started.
func (s *supervisor) begun() {
	s.mu.Lock()
	s.alive = true
	if s.unready.IsZero() {
		s.unready = time.Now()
	}
	s.mu.Unlock()
	s.agent.publishSlots()
}

// stopped records that the engine has ended, and is not started again before the plan wants it.
func (s *supervisor) stopped() {
	s.mu.Lock()
	s.alive, s.draining = false, false
	s.setStateLocked(fleet.Down)
	s.unready = time.Time{}
	s.mu.Unlock()
	s.agent.publishSlots()
}
