// Package discovery says who the workers are: it takes them from the configuration file or
// from the bus and puts them into a fleet.
//
// It does not judge workers and does not look at their load.
//
// # Concurrency
//
// Functions that watch block until their context ends.
package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
)

// File makes the fleet hold exactly these workers, all ready: nobody watches them, so Envoy's
// retries are what finds the dead.
func File(workers []fleet.Worker, f *fleet.Fleet) error {
	keep := map[string]bool{}
	for _, w := range workers {
		w.State = fleet.Ready
		if _, err := f.Put(w); err != nil {
			return fmt.Errorf("add worker from file: %w", err)
		}
		keep[w.Name] = true
	}
	for _, w := range f.Snapshot().Workers {
		if !keep[w.Name] {
			f.Remove(w.Name)
		}
	}
	return nil
}

// Config says how Bus follows the bus.
type Config struct {
	Bus   *bus.Bus
	Fleet *fleet.Fleet
	Log   *slog.Logger
	// Keep names workers that stay even when no lease has them.
	Keep map[string]bool
	// Settle is how long a worker that has become ready waits until it is put into the fleet as
	// ready, if others are ready already. A router waits until every Envoy has heard of the
	// worker: a pick that Envoy does not know is ignored.
	// Workers that are there from the beginning do not wait.
	Settle time.Duration
	// Synced is called once, when the workers that are there now are in the fleet. It may be nil.
	Synced func()
}

// Bus keeps the fleet equal to the leases on the bus until ctx ends.
func Bus(ctx context.Context, cfg Config) error {
	w := &watcher{Config: cfg, due: map[string]*settling{}}
	defer w.stop()
	return cfg.Bus.WatchWorkers(ctx, w.apply, w.sync)
}

// watcher applies leases. apply is called from one goroutine; timers have theirs.
type watcher struct {
	Config

	mu      sync.Mutex
	due     map[string]*settling // guarded by mu; workers that settle
	synced  bool                 // guarded by mu
	stopped bool                 // guarded by mu
}

// settling is a worker that will be ready when its timer fires.
type settling struct {
	worker fleet.Worker
	timer  *time.Timer
}

func (w *watcher) apply(name string, worker *fleet.Worker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Keep[name] || w.stopped {
		return
	}
	if d := w.due[name]; d != nil {
		if worker != nil && d.worker == *worker {
			return // its lease was asserted again: that puts nothing off
		}
		d.timer.Stop()
		delete(w.due, name)
	}
	if worker == nil {
		if w.Fleet.Remove(name) {
			w.Log.Info("worker gone", "worker", name)
		}
		return
	}
	if w.mustSettle(worker) {
		d := &settling{worker: *worker}
		d.timer = time.AfterFunc(w.Settle, func() { w.settled(d) })
		w.due[name] = d
		worker.State = fleet.Starting
	}
	w.put(*worker)
}

// sync is called when all that are there have been applied, again after each reconnection.
func (w *watcher) sync() {
	w.mu.Lock()
	first := !w.synced
	w.synced = true
	w.mu.Unlock()
	if first && w.Synced != nil {
		w.Synced()
	}
}

// mustSettle says whether a worker is ready in a place that is new, while others can serve.
func (w *watcher) mustSettle(worker *fleet.Worker) bool {
	if !w.synced || w.Settle == 0 || worker.State != fleet.Ready {
		return false
	}
	others := false
	for _, m := range w.Fleet.Snapshot().Workers {
		if m.Name == worker.Name && m.Address == worker.Address && m.State == fleet.Ready {
			return false
		}
		others = others || m.Name != worker.Name && m.Model == worker.Model && m.State == fleet.Ready
	}
	return others
}

func (w *watcher) settled(d *settling) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.due[d.worker.Name] != d || w.stopped {
		return // it has changed again meanwhile
	}
	delete(w.due, d.worker.Name)
	w.put(d.worker)
}

func (w *watcher) put(worker fleet.Worker) {
	old := w.Fleet.Snapshot().Worker(worker.Name)
	changed, err := w.Fleet.Put(worker)
	switch {
	case err != nil:
		w.Log.Warn("worker ignored", "worker", worker.Name, "err", err)
	case changed:
		say(w.Log, old, &worker)
	}
}

func (w *watcher) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	for _, d := range w.due {
		d.timer.Stop()
	}
}

// say logs what a person would put into an incident timeline.
func say(log *slog.Logger, old, w *fleet.Worker) {
	switch {
	case old != nil && old.State == w.State && old.Epoch == w.Epoch:
		log.Debug("worker changed", "worker", w.Name)
	case w.State == fleet.Down:
		log.Warn("worker down", "worker", w.Name, "model", w.Model)
	default:
		log.Info("worker changed state", "worker", w.Name, "state", w.State.String(), "model", w.Model, "address", w.Address)
	}
}
