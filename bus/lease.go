package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stator-project/stator/internal/fleet"
)

// HoldWorker keeps a worker in the fleet as current says it is, until ctx ends; then it takes
// the worker out. current is asked at every assertion: every third of the TTL, after every
// reconnection and whenever changed receives.
func (b *Bus) HoldWorker(ctx context.Context, name string, current func() fleet.Worker, changed <-chan struct{}) error {
	for {
		reset := b.Back()
		wait := b.cfg.LeaseTTL / 3
		if err := b.assert(ctx, name, current()); err != nil && ctx.Err() == nil {
			b.cfg.Log.Warn("lease not asserted; trying again", "worker", name, "err", err)
			wait = 250 * time.Millisecond
		}
		next := time.NewTimer(wait)
		select {
		case <-next.C:
		case <-changed:
		case <-reset:
		case <-ctx.Done():
			next.Stop()
			if err := b.release(name); err != nil {
				b.cfg.Log.Debug("lease left to expire", "worker", name, "err", err)
			}
			return nil
		}
		next.Stop()
	}
}

func (b *Bus) assert(ctx context.Context, name string, w fleet.Worker) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.LeaseTTL)
	defer cancel()
	kv, err := b.bucket(ctx, "workers", b.cfg.LeaseTTL)
	if err != nil {
		return err
	}
	if _, err := kv.Put(ctx, name, appendWorker(nil, &w)); err != nil {
		return fmt.Errorf("assert lease of %s: %w", name, err)
	}
	return nil
}

func (b *Bus) release(name string) error {
	if !b.nc.IsConnected() {
		return nil // it will expire
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	kv, err := b.bucket(ctx, "workers", b.cfg.LeaseTTL)
	if err != nil {
		return err
	}
	if err := kv.Delete(ctx, name); err != nil {
		return fmt.Errorf("release lease of %s: %w", name, err)
	}
	return nil
}

// WatchWorkers calls apply for every worker in the fleet now and at every change, with nil
// for one that is gone, and synced, if it is not nil, whenever all that are there now have been
// applied. After the bus was away, workers that have not come back within one
// TTL are gone; until then the last known fleet stays in force.
func (b *Bus) WatchWorkers(ctx context.Context, apply func(name string, w *fleet.Worker), synced func()) error {
	if synced == nil {
		synced = func() {}
	}
	known := map[string]bool{}
	for ctx.Err() == nil {
		b.retry(ctx, "workers", b.watchOnce(ctx, b.Back(), known, apply, synced))
	}
	return nil
}

// watchOnce watches until the bus was away. known holds the workers applied so far.
func (b *Bus) watchOnce(ctx context.Context, reset <-chan struct{}, known map[string]bool, apply func(string, *fleet.Worker), synced func()) error {
	kv, err := b.bucket(ctx, "workers", b.cfg.LeaseTTL)
	if err != nil {
		return err
	}
	watch, err := kv.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("watch workers: %w", err)
	}
	defer func() { _ = watch.Stop() }()
	missing := map[string]bool{}
	for name := range known {
		missing[name] = true
	}
	grace := time.NewTimer(b.cfg.LeaseTTL)
	defer grace.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-reset:
			return nil
		case <-grace.C:
			for name := range missing {
				delete(known, name)
				apply(name, nil)
			}
			clear(missing)
		case entry, ok := <-watch.Updates():
			if !ok {
				return fmt.Errorf("watch workers: the watch has ended")
			}
			if entry == nil { // the end of what was there
				synced()
				continue
			}
			b.applyEntry(entry, known, missing, apply)
		}
	}
}

func (b *Bus) applyEntry(entry jetstream.KeyValueEntry, known, missing map[string]bool, apply func(string, *fleet.Worker)) {
	name := entry.Key()
	delete(missing, name)
	if entry.Operation() != jetstream.KeyValuePut {
		delete(known, name)
		apply(name, nil)
		return
	}
	w, err := readWorker(entry.Value())
	if err != nil || w.Name != name {
		b.cfg.Log.Warn("lease ignored", "worker", name, "err", err)
		return
	}
	known[name] = true
	apply(name, &w)
}
