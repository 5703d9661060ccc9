package workeragent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/workeragent/engine"
)

// keeper looks after one engine.
type keeper struct {
	launch engine.Launch
	agent  *Agent
	tail   *tail

	mu      sync.Mutex
	worker  fleet.Worker // guarded by mu
	pid     int          // guarded by mu; 0 while no process runs
	changed chan struct{}
}

func newKeeper(l engine.Launch, a *Agent) *keeper {
	return &keeper{launch: l, agent: a, tail: &tail{}, changed: make(chan struct{}, 1)}
}

// run keeps the engine alive until ctx ends.
func (k *keeper) run(ctx context.Context) {
	log := k.agent.cfg.Log
	var pace backoff
	for ctx.Err() == nil {
		began := time.Now()
		err := k.live(ctx)
		if ctx.Err() != nil {
			return
		}
		wait := pace.after(time.Since(began))
		log.Warn("engine ended; starting it again", "worker", k.launch.Name, "err", err, "wait", wait, "last_line", k.tail.last())
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// live runs the engine once, from launch to death, and says why it ended.
func (k *keeper) live(ctx context.Context) error {
	cmd, err := k.launch.Build()
	if err != nil {
		return err
	}
	k.agent.metrics.restarts.WithLabelValues(k.launch.Name).Inc()
	proc, err := child.Start(child.Config{Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Line: k.line})
	if err != nil {
		return err
	}
	w := cmd.Worker
	w.Epoch, w.State = uint64(time.Now().UnixNano()), fleet.Starting
	k.set(w, proc.PID())
	if _, err := k.agent.know.fleet.Put(w); err != nil {
		log := k.agent.cfg.Log
		log.Warn("engine not understood; routers cannot be told what it holds", "worker", w.Name, "err", err)
	}
	defer k.agent.know.forget(w.Name)

	inner, stop := context.WithCancel(ctx)
	var parts sync.WaitGroup
	k.tend(inner, w, &parts)
	select {
	case <-proc.Exited():
		err = proc.Wait()
		if err == nil {
			err = errors.New("exit status 0")
		}
		k.setState(fleet.Down)
	case <-ctx.Done():
		k.setState(fleet.Draining)
		proc.Stop(k.agent.cfg.Hard)
		err = ctx.Err()
	}
	stop()
	parts.Wait()
	k.set(k.current(), 0)
	return err
}

// tend starts what accompanies a living engine: its lease, its health, its load, its events.
func (k *keeper) tend(ctx context.Context, w fleet.Worker, parts *sync.WaitGroup) {
	cfg := k.agent.cfg
	probe, ready := engine.NewProbe(k.launch.Kind, w.Address), make(chan struct{})
	parts.Go(func() {
		if err := cfg.Bus.HoldWorker(ctx, w.Name, k.current, k.changed); err != nil {
			cfg.Log.Debug("lease left to expire", "worker", w.Name, "err", err)
		}
	})
	parts.Go(func() {
		defer probe.Close()
		k.watch(ctx, probe, w.Epoch, ready)
	})
	if w.KVEvents != "" {
		r := newRelay(w, cfg, k.agent.metrics, k.agent.know)
		parts.Go(func() { r.serve(ctx) })
		parts.Go(func() {
			select {
			case <-ready: // its sockets are open; what it said before is replayed
				r.run(ctx)
			case <-ctx.Done():
			}
		})
	}
}

func (k *keeper) line(text string) {
	k.tail.add(text)
	if k.agent.cfg.EngineLine != nil {
		k.agent.cfg.EngineLine(k.launch.Name, text)
		return
	}
	k.agent.cfg.Log.Debug("engine said", "worker", k.launch.Name, "line", text)
}

func (k *keeper) current() fleet.Worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.worker
}

func (k *keeper) processID() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pid
}

func (k *keeper) set(w fleet.Worker, pid int) {
	k.mu.Lock()
	k.worker, k.pid = w, pid
	k.mu.Unlock()
	k.poke()
}

func (k *keeper) setState(s fleet.State) {
	k.mu.Lock()
	same := k.worker.State == s
	k.worker.State = s
	k.mu.Unlock()
	if !same {
		k.poke()
	}
}

func (k *keeper) poke() {
	select {
	case k.changed <- struct{}{}:
	default: // the lease is about to be asserted anyway
	}
}

// backoff spaces restarts: 250 ms, doubled up to 30 s, and from the start again after a life
// of a minute.
type backoff struct{ wait time.Duration }

func (b *backoff) after(lived time.Duration) time.Duration {
	if b.wait == 0 || lived > time.Minute {
		b.wait = 125 * time.Millisecond
	}
	b.wait = min(2*b.wait, 30*time.Second)
	return b.wait
}

// tail remembers an engine's last line, which mostly says why it died.
type tail struct {
	mu   sync.Mutex
	line string
}

func (t *tail) add(line string) {
	if len(line) > 500 {
		line = line[:500] + "…"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line = line
}

func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.line
}
