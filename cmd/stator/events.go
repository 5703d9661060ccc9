package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/extproc/sockets"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
)

// settleTime is how long a new worker waits for its first pick: Envoys hear of it meanwhile,
// within a second at most.
const settleTime = 1500 * time.Millisecond

// followBus keeps the decider's fleet, index and loads as the bus tells, until ctx ends. It calls
// synced, which may be nil, when the workers that are there now are known.
func (d *decider) followBus(ctx context.Context, b *bus.Bus, fromFile map[string]bool, synced func()) error {
	var all sync.WaitGroup
	all.Go(func() {
		logEnd(d.log, "fleet", discovery.Bus(ctx, discovery.Config{
			Bus: b, Fleet: d.fleet, Log: d.log, Keep: fromFile, Settle: settleTime, Synced: synced,
		}))
	})
	all.Go(func() { logEnd(d.log, "load", b.SubscribeLoad(ctx, d.takeLoad)) })
	all.Go(func() { logEnd(d.log, "bookings", b.SubscribeBookings(ctx, d.takeBookings)) })
	all.Go(func() { d.tellBookings(ctx, b) })
	f := newFollower(d, b, fromFile)
	all.Go(func() { logEnd(d.log, "events", f.run(ctx)) })
	all.Wait()
	return nil
}

func logEnd(log *slog.Logger, what string, err error) {
	if err != nil {
		log.Error("bus subscription ended", "of", what, "err", err)
	}
}

// takeLoad believes an engine's word about itself, of its epoch only.
func (d *decider) takeLoad(l bus.Load) {
	now := time.Now()
	r, ok := d.fleet.Snapshot().Rank(l.Worker, l.Rank)
	if !ok || r.Worker.Epoch != l.Epoch {
		return
	}
	report := fleet.Report{At: now, Running: l.Running, Waiting: l.Waiting, KVUsage: l.KVUsage, Gaps: l.Gaps, GapTime: l.GapTime}
	if n := d.router.ObserveReport(r, report); n > 0 {
		d.log.Warn("bookings ended: their engine is empty", "worker", l.Worker, "bookings", n)
	}
	// An engine's counts are those of all its ranks.
	if l.PrefixQueries > 0 && d.drift.Counted(l.Worker, l.Epoch, l.PrefixQueries, l.PrefixHits, now) {
		d.resync(r.Worker)
	}
}

// served tells what a decision promised, once its request has ended.
func (d *decider) served(r fleet.Rank, decided time.Time, prompt, cached int) {
	d.drift.Served(r.Worker.Name, r.Worker.Epoch, decided, prompt, cached, d.blockSize(r.Worker))
}

// resync drops what is known of a worker whose engine does not find what was promised. patrol
// then has it told anew.
func (d *decider) resync(w *fleet.Worker) {
	for _, s := range d.drift.Stats() {
		if s.Worker == w.Name {
			d.log.Warn("engine and router disagree on what is cached; what is known of the worker is built up anew",
				"worker", w.Name, "ratio", s.Ratio, "promised", s.Promised, "found", s.Found)
		}
	}
	for rank := range w.Ranks {
		d.feed.Forget(w.Name, rank)
	}
}

// fileWorkers are the workers that the configuration names.
func fileWorkers(cfg *config.Config) ([]fleet.Worker, error) {
	var out []fleet.Worker
	for _, m := range cfg.Models {
		for _, w := range m.Workers {
			role, err := fleet.ParseRole(w.Role)
			if err != nil {
				return nil, err
			}
			taints, err := fleet.NewTaints(w.Taints)
			if err != nil {
				return nil, fmt.Errorf("worker %s: %w", w.Name, err)
			}
			out = append(out, fleet.Worker{
				Name: w.Name, Model: m.Name, Role: role, Address: w.Address, Engine: w.Engine, Ranks: w.Ranks, Weight: uint32(w.Weight),
				KVEvents: w.KVEvents, KVReplay: w.KVReplay, Blocks: w.Blocks, BlockSize: m.BlockSize, State: fleet.Ready, Taints: taints,
			})
		}
	}
	return out, nil
}

// busLost marks what the bus told us of caches as stale. What is read from sockets is not touched.
func (d *decider) busLost() {
	direct := d.direct.Load()
	for _, r := range d.fleet.Snapshot().Ranks {
		if direct == nil || !(*direct)[r.Worker.Name] {
			d.feed.Lost(r.Worker.Name, r.Number)
		}
	}
}

func namesOf(workers []fleet.Worker) map[string]bool {
	names := map[string]bool{}
	for _, w := range workers {
		names[w.Name] = true
	}
	return names
}

// followFile puts the configuration's own workers into the fleet and listens to their event
// sockets, until ctx ends.
func (d *decider) followFile(ctx context.Context, workers []fleet.Worker) error {
	names := namesOf(workers)
	d.direct.Store(&names)
	for _, w := range workers {
		if _, err := d.fleet.Put(w); err != nil {
			return fmt.Errorf("add worker from the configuration: %w", err)
		}
	}
	if err := sockets.Run(ctx, sockets.Config{Feed: d.feed, Log: d.log}, workers); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
