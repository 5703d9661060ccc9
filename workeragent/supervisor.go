package workeragent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/workeragent/engine"
)

// supervisor keeps one engine running and its lease current.
//
//	event                      worker's state
//	process started            Starting, in a new epoch
//	first health probe passes  Ready
//	health probes fail         Down; the process keeps running
//	a health probe passes      Ready
//	process ended              Down, then started again
//	agent stops                Draining, until the process has ended
//	agent stops, engine        unchanged: the lease stays until it expires, and the next agent renews it
//	    survives it
type supervisor struct {
	launch engine.Launch
	agent  *Agent
	output lastLine

	// changed has one place: a change that finds it full is covered by the one before it.
	changed chan struct{}

	mu     sync.Mutex
	worker fleet.Worker // guarded by mu; what the lease contains
	pid    int          // guarded by mu; 0 while no process runs
	ready  time.Time    // guarded by mu; when the engine became ready; zero before that
}

// newSupervisor returns a supervisor that has started nothing yet.
func newSupervisor(l engine.Launch, a *Agent) *supervisor {
	return &supervisor{launch: l, agent: a, changed: make(chan struct{}, 1)}
}

// run keeps the engine alive until ctx ends.
func (s *supervisor) run(ctx context.Context) {
	restarts := child.Supervisor{Restarting: func(err error, pause time.Duration) {
		s.agent.cfg.Log.Warn("engine ended; starting it again",
			"worker", s.launch.Name, "err", err, "wait", pause, "last_line", s.output.last())
	}}

	_ = restarts.Run(ctx, s.runOnce) // without a bound on failures it returns no error
}

// runOnce runs the engine from its start to its end. It returns for how long the engine was ready and
// why it ended.
func (s *supervisor) runOnce(ctx context.Context) (ready time.Duration, err error) {
	a, err := s.prepare(ctx)
	if err != nil {
		return 0, err
	}

	proc, err := s.start(a)
	if err != nil {
		a.cmd.Release()
		return 0, err
	}

	w := a.worker
	s.started(w, proc.PID())
	if _, err := s.agent.mirror.fleet.Put(w); err != nil {
		s.agent.cfg.Log.Warn("worker rejected by the local fleet; its KV events will not be relayed", "worker", w.Name, "err", err)
	}
	defer s.agent.mirror.forget(w.Name)

	// The companions end before the lease, whose last state is written while the process ends.
	inner, stop := context.WithCancel(ctx)
	leased, endLease := context.WithCancelCause(context.WithoutCancel(ctx))
	var companions sync.WaitGroup
	companions.Go(func() { s.holdLease(leased, w.Name) })
	s.startCompanions(inner, w, &companions)

	runsOn := false
	select {
	case <-proc.Exited():
		err = proc.Wait()
		if err == nil {
			err = errors.New("exit status 0")
		}
		s.setState(fleet.Down)
	case <-ctx.Done():
		err = ctx.Err()
		runsOn = s.launch.Survive
		if !runsOn {
			s.setState(fleet.Draining)
			proc.Stop(s.agent.cfg.Hard)
		}
	}

	// The lease is removed before runOnce returns, so that it cannot replace that of the next process. That of
	// an engine that runs on is left, so that routers keep the worker.
	stop()
	if runsOn {
		endLease(bus.ErrLeave)
	} else {
		endLease(nil)
	}
	companions.Wait()
	if runsOn {
		s.leave(a, proc)
	} else {
		s.finish(a)
	}
	return s.ended(), err
}

// holdLease holds the worker's lease until ctx ends.
func (s *supervisor) holdLease(ctx context.Context, worker string) {
	if err := s.agent.cfg.Bus.HoldWorker(ctx, worker, s.current, s.changed); err != nil {
		s.agent.cfg.Log.Debug("lease left to expire", "worker", worker, "err", err)
	}
}

// startCompanions starts what runs beside a living engine: the prober of its health and load, and the relays
// of its KV events.
func (s *supervisor) startCompanions(ctx context.Context, w fleet.Worker, all *sync.WaitGroup) {
	cfg := s.agent.cfg
	probe := engine.NewProbe(s.launch.Kind, w.Address)
	ready := make(chan struct{})

	all.Go(func() {
		defer probe.Close()
		s.probeEngine(ctx, probe, w.Epoch, ready)
	})

	if w.KVEvents == "" {
		return
	}
	ranks := newRelays(w, cfg, s.agent.metrics, s.agent.mirror, s.agent.events)
	all.Go(func() { ranks.serve(ctx) })
	for _, r := range ranks {
		all.Go(func() {
			// A ready engine has opened its sockets. Events that it published before are replayed.
			select {
			case <-ready:
				r.run(ctx)
			case <-ctx.Done():
			}
		})
	}
}

// logLine handles one line of the engine's output.
func (s *supervisor) logLine(text string) {
	s.output.set(text)
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

// started records a new process.
func (s *supervisor) started(w fleet.Worker, pid int) {
	s.mu.Lock()
	s.worker = w
	s.pid = pid
	s.ready = time.Time{}
	s.mu.Unlock()

	s.renewLease()
}

// ended records that the process is gone, and returns for how long it was ready.
func (s *supervisor) ended() (ready time.Duration) {
	s.mu.Lock()
	s.pid = 0
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
	same := s.worker.State == state
	s.worker.State = state
	if state == fleet.Ready && s.ready.IsZero() {
		s.ready = time.Now()
	}
	s.mu.Unlock()

	if !same {
		s.renewLease()
	}
}

// setMaxModelLen records the context length of the engine. The change of state that follows renews the lease.
func (s *supervisor) setMaxModelLen(tokens int) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.worker.MaxModelLen = tokens
}

// renewLease has the holder of the lease write it now instead of at its next regular time.
func (s *supervisor) renewLease() {
	// The holder reads the newest state when it writes, so one waiting renewal covers any number of changes.
	select {
	case s.changed <- struct{}{}:
	default: // a renewal is waiting, and it will read the newest state
	}
}

// lastLine is the last line of an engine's output, which mostly names the reason of its death.
type lastLine struct {
	mu   sync.Mutex
	text string // guarded by mu
}

// maxLastLine bounds the bytes of a line that are kept.
const maxLastLine = 500

// set replaces the line.
func (l *lastLine) set(text string) {
	if len(text) > maxLastLine {
		text = text[:maxLastLine] + "…"
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = text
}

// last returns the line; empty before the first.
func (l *lastLine) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.text
}
