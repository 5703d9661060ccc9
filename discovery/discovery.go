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

// Bus keeps the fleet equal to the leases on the bus until ctx ends. Workers that are named in
// keep stay even when no lease has them.
func Bus(ctx context.Context, b *bus.Bus, f *fleet.Fleet, log *slog.Logger, keep map[string]bool) error {
	return b.WatchWorkers(ctx, func(name string, w *fleet.Worker) {
		if keep[name] {
			return
		}
		old := f.Snapshot().Worker(name)
		if w == nil {
			if f.Remove(name) {
				log.Info("worker gone", "worker", name)
			}
			return
		}
		changed, err := f.Put(*w)
		if err != nil {
			log.Warn("worker ignored", "worker", name, "err", err)
			return
		}
		if changed {
			say(log, old, w)
		}
	})
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
