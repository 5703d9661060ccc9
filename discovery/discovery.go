// Package discovery puts the workers of a cluster into a fleet: workers of the configuration file,
// and workers with a lease on the bus.
//
// It does not read the load of workers. It asks engines for their health if no agent reports it: see [Probe].
//
// # A worker on the bus
//
//	event                                    worker in the fleet
//	lease written, state other than ready    added or updated, with that state
//	lease written, ready, at the start       added as ready
//	lease written, ready, later              added as starting; ready after Config.Settle
//	lease removed                            removed
//	lease expired                            stays, and its engine is asked: see [Probe]
//
// The weights and drains of the cluster's plan are applied apart from all this: see [Plans].
//
// # Concurrency
//
// Functions that watch block until their context ends.
package discovery

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
)

// Config is read by Bus and not changed later.
type Config struct {
	Bus   *bus.Bus
	Fleet *fleet.Fleet
	Log   *slog.Logger
	// Listed has the workers that stay without a lease: the workers of the configuration. May be nil.
	Listed *Listed
	// Settle is the time for which a worker that became ready stays in state starting while others of
	// its model are ready. Meanwhile every Envoy receives its endpoint: Envoy ignores a pick of an
	// endpoint that it does not have. Workers that are there at the start do not wait. 0 waits for
	// none.
	Settle time.Duration
	// Synced is called once, when the workers that were there at the start are in the fleet. Nil is
	// not called.
	Synced func()
}

// Bus keeps the fleet equal to the leases on the bus until ctx ends.
func Bus(ctx context.Context, cfg Config) error {
	w := &watcher{Config: cfg, due: map[string]*settling{}}
	defer w.stop()
	return cfg.Bus.WatchWorkers(ctx, w.apply, w.sync)
}

// watcher applies leases to the fleet. The bus calls apply and sync from one goroutine; timers call
// settled from theirs.
type watcher struct {
	Config

	mu      sync.Mutex
	due     map[string]*settling // guarded by mu; workers that wait for Settle, by name
	synced  bool                 // guarded by mu; the workers of the start were applied
	stopped bool                 // guarded by mu; timers change nothing any more
}

// settling is a worker that becomes ready in the fleet when its timer fires.
type settling struct {
	worker fleet.Worker
	timer  *time.Timer
}

// apply applies one change of a lease.
func (w *watcher) apply(l bus.Lease) {
	name, worker := l.Name, l.Worker
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Listed.Has(name) || w.stopped {
		return
	}

	if d := w.due[name]; d != nil {
		if worker != nil && d.worker == *worker {
			return // its lease was renewed without a change, so the timer runs on
		}
		d.timer.Stop()
		delete(w.due, name)
	}

	switch {
	case l.Expired:
		w.expired(name)
		return
	case worker == nil:
		w.remove(name, "its lease was removed")
		return
	}
	if old := w.Fleet.Snapshot().Worker(name); old != nil && !old.Unleased.IsZero() {
		w.Log.Info("agent of a worker is back", "worker", name)
	}

	if w.mustSettle(worker) {
		d := &settling{worker: *worker}
		d.timer = time.AfterFunc(w.Settle, func() { w.settled(d) })
		w.due[name] = d
		worker.State = fleet.Starting
	}

	w.putWorker(*worker)
}

// sync is called when the leases that are there have been applied: at the start and after each
// reconnection. Config.Synced is called the first time.
func (w *watcher) sync() {
	w.mu.Lock()
	first := !w.synced
	w.synced = true
	w.mu.Unlock()
	if first && w.Synced != nil {
		w.Synced()
	}
}

// mustSettle reports whether a worker must wait for Settle: it is ready at an address that the fleet does
// not have as ready, and other workers of its model can serve meanwhile. w.mu is held.
func (w *watcher) mustSettle(worker *fleet.Worker) bool {
	if !w.synced || w.Settle == 0 || worker.State != fleet.Ready {
		return false
	}
	others := false
	for _, m := range w.Fleet.Snapshot().Workers {
		if m.Name == worker.Name && m.Address == worker.Address && (m.State == fleet.Ready || m.Withheld()) {
			return false
		}
		others = others || m.Name != worker.Name && m.Model == worker.Model && m.State == fleet.Ready
	}
	return others
}

// settled puts a worker into the fleet as ready, unless its lease has changed since its timer started.
func (w *watcher) settled(d *settling) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.due[d.worker.Name] != d || w.stopped {
		return
	}
	delete(w.due, d.worker.Name)
	w.putWorker(d.worker)
}

// expired handles a lease that was not renewed. An agent that hangs, or that is cut off from the bus, does not renew its
// leases. Its engine may serve all the same, so it is asked. w.mu is held.
func (w *watcher) expired(name string) {
	worker := w.Fleet.Snapshot().Worker(name)
	switch {
	case worker == nil:
		return
	case worker.State != fleet.Ready && !worker.Withheld(): // it gets no requests
		w.remove(name, "its lease expired")
		return
	case !worker.Unleased.IsZero():
		return
	}

	if _, err := w.Fleet.Update(name, func(kept *fleet.Worker) { kept.Unleased = time.Now() }); err != nil {
		w.Log.Warn("worker ignored", "worker", name, "err", err)
		return
	}
	w.Log.Warn("lease of a worker expired; its agent is silent, and its engine is asked", "worker", name, "address", worker.Address)
}

// remove removes a worker from the fleet. w.mu is held.
func (w *watcher) remove(name, reason string) {
	if w.Fleet.Remove(name) {
		w.Log.Info("worker gone", "worker", name, "reason", reason)
	}
}

// putWorker adds or updates a worker, and logs the change. w.mu is held.
func (w *watcher) putWorker(worker fleet.Worker) {
	worker.Leased = true
	old := w.Fleet.Snapshot().Worker(worker.Name)
	changed, err := w.Fleet.Put(worker)
	switch {
	case err != nil:
		w.Log.Warn("worker ignored", "worker", worker.Name, "err", err)
	case changed:
		logChange(w.Log, old, &worker)
	}
}

// stop stops all timers. A timer that has fired already finds stopped set.
func (w *watcher) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	for _, d := range w.due {
		d.timer.Stop()
	}
}

// logChange logs a change of a worker: its state as information for a timeline of incidents, anything
// else for debugging.
func logChange(log *slog.Logger, old, w *fleet.Worker) {
	switch {
	case old != nil && old.State == w.State && old.Epoch == w.Epoch:
		log.Debug("worker changed", "worker", w.Name)
	case w.State == fleet.Down:
		log.Warn("worker down", "worker", w.Name, "model", w.Model)
	default:
		log.Info("worker changed state", "worker", w.Name, "state", w.State.String(), "model", w.Model, "address", w.Address)
	}
}
