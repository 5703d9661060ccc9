package envoy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/child"
)

// SupervisorConfig is read by NewSupervisor and not changed later.
type SupervisorConfig struct {
	Config
	// DrainTime bounds how long Stop waits for requests in flight.
	DrainTime time.Duration
	// Hard ends when Envoy must be killed instead of drained and stopped.
	Hard context.Context
	// Ended is called after each Envoy process has ended. It must not block.
	Ended func()
}

// Supervisor keeps one Envoy running, and drains it before it stops it.
//
//	event                       effect
//	Envoy ends, was ready       it is started again after a pause
//	Envoy ends, was not ready   the same; the third such end in a row makes Run return an error
//	Restart                     Envoy gets no new requests, finishes the ones in flight, and ends; it is started again after a pause
//	Stop                        the same, and it is not started again
//
// All methods are safe for concurrent use.
type Supervisor struct {
	cfg SupervisorConfig

	mu       sync.Mutex
	proc     *Process      // guarded by mu; nil while none runs
	gone     chan struct{} // guarded by mu; closed when proc has ended
	stopping bool          // guarded by mu; no process is started any more
	started  time.Time     // guarded by mu; of proc
	ready    time.Time     // guarded by mu; when proc was ready; zero before that
	cancel   func()        // guarded by mu; ends the restarts
}

// maxFailures is the number of times in a row that Envoy may end before it is ready: the first failure may come
// from a port that is still in use, the third shows that the configuration or the binary is wrong.
const maxFailures = 3

// stable is the time of service after which an Envoy that ends is started again after the shortest pause: its start takes less than a
// second, and while one of two is away the other carries all requests.
const stable = 5 * time.Second

// NewSupervisor returns a supervisor that has started nothing yet.
func NewSupervisor(cfg SupervisorConfig) *Supervisor {
	return &Supervisor{cfg: cfg, cancel: func() {}}
}

// Run keeps Envoy running until ctx ends or Stop is called. It returns an error when Envoy does not become
// ready. The end of ctx alone does not end Envoy: call Stop, which drains it. Run may be called once.
func (s *Supervisor) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.cancel = cancel
	if s.stopping { // Stop came first, and had nothing to cancel
		cancel()
	}

	s.mu.Unlock()

	restarts := child.Supervisor{
		MaxFailures: maxFailures,
		Stable:      stable,
		Restarting: func(err error, pause time.Duration) {
			s.cfg.Log.Warn("envoy ended; starting it again", "err", err, "wait", pause)
		},
	}

	if err := restarts.Run(ctx, s.runOnce); err != nil {
		return fmt.Errorf("keep envoy running: %w", err)
	}
	return nil
}

// runOnce runs one Envoy from its start to its end.
func (s *Supervisor) runOnce(ctx context.Context) (ready time.Duration, err error) {
	p, err := s.start()
	if err != nil {
		return 0, err
	}

	// WaitReady must not end with ctx: after Stop, Envoy still drains, and is ready while it does.
	waitCtx, stopWaiting := context.WithCancel(context.WithoutCancel(ctx))
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if p.WaitReady(waitCtx) == nil {
			s.setReady()
			p.reportConnections(waitCtx, s.cfg.MaxConnections)
		}
	})

	// Stop ends this wait too, after it has drained Envoy.
	err = p.Run()
	stopWaiting()
	// The waiter must have ended before the readiness is read.
	waiting.Wait()
	s.cfg.Ended()
	return s.ended(), err
}

// start starts a process, unless Stop was called.
func (s *Supervisor) start() (*Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.stopping {
		return nil, errors.New("envoy is being stopped")
	}

	p, err := Start(s.cfg.Config)
	if err != nil {
		return nil, err
	}

	s.proc = p
	s.gone = make(chan struct{})
	s.started = time.Now()
	s.ready = time.Time{}
	return p, nil
}

// setReady records that the process serves requests.
func (s *Supervisor) setReady() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.ready = time.Now()
}

// ended records that the process is gone, and returns for how long it was ready.
func (s *Supervisor) ended() (ready time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if !s.ready.IsZero() {
		ready = max(1, time.Since(s.ready)) // 0 would count as never ready
	}

	s.proc = nil
	close(s.gone)
	s.ready = time.Time{}
	return ready
}

// Ready describes the running Envoy for people. The error is not nil before it serves.
func (s *Supervisor) Ready() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.proc == nil || s.ready.IsZero() {
		return "", errors.New("it has no listener yet")
	}
	return fmt.Sprintf("%s (pid %d, started in %.2f s)", s.cfg.Path, s.proc.PID(), s.ready.Sub(s.started).Seconds()), nil
}

// Metrics returns the metrics of the running Envoy in the format of Prometheus: those that have counted something. An Envoy with
// more than maxAnswer of them is an error.
func (s *Supervisor) Metrics(ctx context.Context) (string, error) {
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	if p == nil {
		return "", errors.New("envoy does not run")
	}

	// Metrics that have counted nothing are most of them, and would exceed the bound of the answer.
	admin, err := p.AdminAddress()
	if err != nil {
		return "", err
	}
	return call(ctx, http.MethodGet, admin, "/stats/prometheus?usedonly")
}

// HealthyMembers returns to how many endpoints of a cluster Envoy would send requests; 0 while Envoy
// does not answer.
func (s *Supervisor) HealthyMembers(cluster string) int {
	// The request to Envoy is sent without the lock, because it may take a second.
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	if p == nil {
		return 0
	}

	n, err := p.Stat(s.cfg.Hard, "cluster."+cluster+".membership_healthy")
	if err != nil {
		return 0
	}
	return n
}

// Stop drains Envoy for the drain time at most, then ends it. It returns when Envoy is gone, and no
// other one is started.
func (s *Supervisor) Stop() {
	s.mu.Lock()
	s.stopping = true
	s.cancel()
	p := s.proc
	s.mu.Unlock()
	if p == nil {
		return
	}

	s.drain(p)
}

// Restart drains the running Envoy for the drain time at most, and ends it. It returns when that process is gone; Run starts another one.
func (s *Supervisor) Restart() {
	s.mu.Lock()
	p, gone := s.proc, s.gone
	s.mu.Unlock()
	if p == nil {
		return
	}
	s.drain(p)
	<-gone
}

// drain drains a process and ends it.
func (s *Supervisor) drain(p *Process) {
	// Draining ends early when the user asks a second time to stop: then Hard ends.
	ctx, cancel := context.WithTimeout(s.cfg.Hard, s.cfg.DrainTime)
	defer cancel()
	p.Drain(ctx)
	p.Stop(s.cfg.Hard)
}
