package workeragent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/workeragent/engine"
)

// supervisor keeps one engine running and its lease current. The lease is claimed before the engine starts, because two
// engines of one name would answer each other's requests. An engine that runs keeps running when its lease is lost: the
// agent stands by, and the engine gets requests again once the name is free.
//
//	event                      worker's state
//	lease claimed              Starting, in a new epoch; the process is started
//	another agent has the name none: the process is not started, or runs without requests
//	first health probe passes  Ready
//	another program answers    unchanged, until the engine itself answers
//	    the first probe
//	health probes fail         Down; the process keeps running
//	a health probe passes      Ready
//	process ended              Down, then started again
//	the plan does not want it  Draining, until its requests have ended, see drain; then the process is stopped
//	the plan wants it again    Ready
//	agent stops                Draining, until the process has ended
//	agent stops, engine        unchanged: the lease stays until it expires, and the next agent renews it
//	    survives it
type supervisor struct {
	launch engine.Launch
	agent  *Agent
	output engine.Output

	// changed has one place: a change that finds it full is covered by the one before it.
	changed chan struct{}

	mu     sync.Mutex
	worker fleet.Worker // guarded by mu; the lease's content
	pid    int          // guarded by mu; 0 while no process runs
	ready  time.Time    // guarded by mu; when the engine became ready; zero before that
	since  time.Time    // guarded by mu; when the worker's state changed last
	// unready is when the worker stopped being ready, or the agent began to start its engine; zero while it is
	// ready.
	unready time.Time // guarded by mu
	history history   // guarded by mu; the processes that have ended
	relays  relays    // guarded by mu; nil while no process runs

	orders       orders                  // guarded by mu; from the planner
	orderedAgain chan struct{}           // guarded by mu; closed and replaced when orders changes
	alive        bool                    // guarded by mu; between begun and stopped
	draining     bool                    // guarded by mu; Draining replaces the state Ready
	endLife      context.CancelCauseFunc // of the goroutine of keepAlive
	obsolete     bool                    // guarded by mu; no launch names the engine any more
	quit         context.CancelFunc      // ends keepAlive; nil before Run
}

// newSupervisor returns a supervisor that has started nothing yet.
func newSupervisor(l engine.Launch, a *Agent) *supervisor {
	s := &supervisor{launch: l, agent: a, changed: make(chan struct{}, 1), since: time.Now()}
	s.orders.wanted = !l.Spare
	s.orderedAgain = make(chan struct{})
	if s.orders.wanted {
		s.unready = s.since
	}
	return s
}

// keepAlive keeps the engine alive while the plan wants it, until ctx ends.
func (s *supervisor) keepAlive(ctx context.Context) {
	for s.awaitWanted(ctx) {
		life, end := context.WithCancelCause(ctx)
		s.endLife = end
		s.begun()

		var all sync.WaitGroup
		all.Go(func() { s.obey(life, end) })
		s.live(life)
		end(nil)
		all.Wait()
		s.stopped()
	}
}

// live keeps the engine alive until ctx ends.
func (s *supervisor) live(ctx context.Context) {
	restarts := child.Supervisor{Stable: s.agent.probing.stable, Restarting: func(err error, pause time.Duration) {
		tail := s.failed(err)
		s.agent.cfg.Log.Warn("engine ended; starting it again", "worker", s.launch.Name, "err", err, "wait", pause,
			"last_line", tail.Last(), "remedy", tail.Remedy, "output", strings.Join(tail.Lines, "\n"))
	}}

	_ = restarts.Run(ctx, s.runOnce) // without a bound on failures it returns no error
}

// runOnce runs the engine from its start to its end. It returns for how long the engine was ready and
// why it ended.
func (s *supervisor) runOnce(ctx context.Context) (ready time.Duration, err error) {
	s.output.Begin()
	a, err := s.prepare(ctx)
	if err != nil {
		return 0, err
	}

	// No engine starts under the name of another one.
	endLease, err := s.claim(ctx, a.worker)
	if err != nil {
		s.abandon(a)
		return 0, err
	}

	// Routers and planners see the worker start while its files come.
	var proc process
	if err = s.fetchFiles(ctx, a); err == nil {
		proc, err = s.start(a)
	}
	if err != nil {
		a.cmd.Release()
		endLease(nil)
		return 0, err
	}

	w := a.worker
	s.started(proc.PID())
	s.agent.cfg.Log.Info("engine started", "worker", w.Name, "engine", w.Engine, "pid", proc.PID(), "address", w.Address)
	if _, err := s.agent.mirror.fleet.Put(w); err != nil {
		s.agent.cfg.Log.Warn("worker rejected by the local fleet; its KV events will not be relayed", "worker", w.Name, "err", err)
	}
	defer s.agent.mirror.forget(w.Name)

	// The companions end before the lease, whose last state is written while the process ends.
	inner, stop := context.WithCancel(ctx)
	var companions sync.WaitGroup
	s.startCompanions(inner, w, &companions)

	runsOn := false
	select {
	case <-proc.Exited():
		err = proc.Wait()
		if err == nil {
			err = errors.New("exit status 0")
		}
		s.setState(fleet.Down)
		if s.isDraining() {
			s.endLife(errNotWanted) // it is not started again
		}
	case <-ctx.Done():
		err = ctx.Err()
		runsOn = s.launch.Survive && !errors.Is(context.Cause(ctx), errNotWanted)
		if !runsOn {
			s.setState(fleet.Draining)
			proc.Stop(s.agent.cfg.Hard)
		}
	}

	// The lease is removed before runOnce returns, so that it cannot replace the lease of the next process.
	// The lease of an engine that runs on is left, so that routers keep the worker.
	stop()
	companions.Wait()
	if runsOn {
		endLease(bus.ErrLeave)
		s.leave(a)
	} else {
		endLease(nil)
		s.finish(a)
	}
	return s.ended(), err
}

// claim holds the lease of the worker until release is called, which waits until the lease is removed, or left if the
// cause is bus.ErrLeave. It returns when the lease is this agent's. The error is ctx's error.
func (s *supervisor) claim(ctx context.Context, w fleet.Worker) (release context.CancelCauseFunc, err error) {
	s.describe(w)
	holding, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	claimed := make(chan struct{})
	var holder sync.WaitGroup
	holder.Go(func() {
		lease := bus.Claim{
			Name: w.Name, Holder: s.agent.cfg.State.Holder(),
			Current: s.current, Changed: s.changed, Claimed: func() { close(claimed) },
		}
		if err := s.agent.cfg.Bus.HoldWorker(holding, lease); err != nil {
			s.agent.cfg.Log.Debug("lease left to expire", "worker", w.Name, "err", err)
		}
	})

	release = func(cause error) {
		stop(cause)
		holder.Wait()
	}
	select {
	case <-claimed:
		return release, nil
	case <-ctx.Done():
		release(nil)
		return nil, ctx.Err()
	}
}

// startCompanions starts the companions of a living engine: the prober of its health and load, and the
// relays of its KV events.
func (s *supervisor) startCompanions(ctx context.Context, w fleet.Worker, all *sync.WaitGroup) {
	cfg := s.agent.cfg
	probe := engineprobe.New(s.launch.Kind, w.Address, cfg.Engines)
	ready := make(chan struct{})

	all.Go(func() {
		defer probe.Close()
		s.probeEngine(ctx, probe, w.Epoch, ready)
	})

	if w.KVEvents == "" {
		return
	}
	ranks := newRelays(w, cfg, s.agent.metrics, s.agent.mirror, s.agent.events)
	s.mu.Lock()
	s.relays = ranks
	s.mu.Unlock()
	all.Go(func() { ranks.serve(ctx) })
	for _, r := range ranks {
		all.Go(func() {
			// A ready engine has opened its sockets. Events that it published before are replayed.
			select {
			case <-ready:
				r.relayEvents(ctx)
			case <-ctx.Done():
			}
		})
	}
}

// logLine handles one line of the engine's output.
func (s *supervisor) logLine(text string) {
	s.output.Add(text)
	s.agent.cfg.Log.Debug("engine output", "worker", s.launch.Name, "line", text)
}

// current returns the worker as its lease must describe it now.
func (s *supervisor) current() fleet.Worker {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.worker
}

// processID returns the id of the running process; 0 while none runs.
func (s *supervisor) processID() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.pid
}

// describe records the worker of the process that is about to start.
func (s *supervisor) describe(w fleet.Worker) {
	s.mu.Lock()
	defer s.mu.Unlock()

	state := w.State
	w.State = s.worker.State
	s.worker = w
	s.ready = time.Time{}
	s.setStateLocked(state)
}

// started records a new process.
func (s *supervisor) started(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.pid = pid
}

// ended records that the process is gone, and returns for how long it was ready.
func (s *supervisor) ended() (ready time.Duration) {
	s.mu.Lock()
	s.pid = 0
	s.relays = nil
	if !s.ready.IsZero() {
		ready = time.Since(s.ready)
	}
	s.mu.Unlock()

	s.renewLease()
	return ready
}

// setState changes the worker's state and renews its lease when the state is a new one.
func (s *supervisor) setState(state fleet.State) {
	s.mu.Lock()
	changed := s.setStateLocked(state)
	s.mu.Unlock()

	if changed {
		s.renewLease()
	}
}

// setStateLocked changes the worker's state and the times that depend on it. s.mu is held.
func (s *supervisor) setStateLocked(state fleet.State) (changed bool) {
	now := time.Now()
	serves := state == fleet.Ready
	if serves && s.draining {
		state = fleet.Draining
	}
	changed = s.worker.State != state
	s.worker.State = state
	if changed {
		s.since = now
	}

	if serves {
		s.unready = time.Time{}
		if s.ready.IsZero() {
			s.ready = now
		}
	} else if s.unready.IsZero() {
		s.unready = now
	}
	return changed
}

// renewLease has the holder of the lease write it now instead of at its next regular time.
func (s *supervisor) renewLease() {
	// The holder reads the newest state when it writes, so one waiting renewal covers any number of changes.
	select {
	case s.changed <- struct{}{}:
	default: // a renewal is waiting, and it will read the newest state
	}
}
