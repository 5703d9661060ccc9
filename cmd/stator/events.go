package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/workeragent/kvsource"
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
	f := &follower{decider: d, bus: b, asked: map[string]time.Time{}}
	all.Go(func() { logEnd(d.log, "events", b.SubscribeEvents(ctx, func(e *bus.Events) { f.apply(ctx, e) })) })
	all.Go(func() { f.greet(ctx) })
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
	r.Load.SetReport(fleet.Report{At: now, Running: l.Running, Waiting: l.Waiting, KVUsage: l.KVUsage})
	if n := d.router.Reconcile(r.ID, l.Running+l.Waiting, now); n > 0 {
		d.log.Warn("bookings ended: their engine is empty", "worker", l.Worker, "bookings", n)
	}
}

// follower applies events from the bus and asks agents for what is missing.
type follower struct {
	*decider
	bus *bus.Bus

	mu    sync.Mutex
	asked map[string]time.Time // guarded by mu; when a rank's past was asked for last
}

// askAgain is the least time between two requests for one rank's past.
const askAgain = time.Second

// greet asks every worker that is new to us for its past, until ctx ends: it may be idle for
// long, and its cache full. After the bus was away all are asked again.
func (f *follower) greet(ctx context.Context) {
	met := map[string]uint64{} // epochs by worker
	for {
		changed, back := f.fleet.Changed(), f.bus.Back()
		f.meet(ctx, met)
		select {
		case <-changed:
		case <-back:
			clear(met)
		case <-ctx.Done():
			return
		}
	}
}

// meet asks for the past of every worker that is new to us.
func (f *follower) meet(ctx context.Context, met map[string]uint64) {
	snap := f.fleet.Snapshot()
	for _, w := range snap.Workers {
		if w.KVEvents == "" || w.State == fleet.Starting || met[w.Name] == w.Epoch {
			continue
		}
		met[w.Name] = w.Epoch
		for rank := range w.Ranks {
			f.catchUp(ctx, w.Name, rank, 0)
		}
	}
	for name := range met {
		if snap.Worker(name) == nil {
			delete(met, name)
		}
	}
}

func (f *follower) apply(ctx context.Context, e *bus.Events) {
	resume, gap := f.feed.Apply(e.Worker, e.Epoch, e.Rank, e.Seq, e.Batch, time.Now())
	if !gap || !f.mayAsk(e.Worker, e.Rank) {
		return
	}
	f.catchUp(ctx, e.Worker, e.Rank, resume)
	// Again, in case the past ended before this batch; twice is no harm.
	f.feed.Apply(e.Worker, e.Epoch, e.Rank, e.Seq, e.Batch, time.Now())
}

// catchUp asks an agent for a rank's batches from seq on. Live batches wait in their queue
// meanwhile.
func (f *follower) catchUp(ctx context.Context, worker string, rank int, from uint64) {
	epoch, next, err := f.bus.Replay(ctx, worker, rank, from, func(e *bus.Events) {
		f.feed.Apply(e.Worker, e.Epoch, e.Rank, e.Seq, e.Batch, time.Now())
	})
	switch {
	case err == nil:
		f.feed.Complete(worker, epoch, rank, next, time.Now())
	case ctx.Err() == nil:
		f.log.Warn("cache events not recovered; the rank may be stale", "worker", worker, "rank", rank, "err", err)
	}
}

// mayAsk spaces requests for one rank's past.
func (f *follower) mayAsk(worker string, rank int) bool {
	key := worker + "/" + strconv.Itoa(rank)
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.asked[key]) < askAgain {
		return false
	}
	f.asked[key] = time.Now()
	return true
}

// followSockets reads the event sockets that the configuration names, until ctx ends: that is
// how a router works that has no bus.
func (d *decider) followSockets(ctx context.Context, workers []fleet.Worker) error {
	var all sync.WaitGroup
	defer all.Wait()
	for _, w := range workers {
		if w.KVEvents == "" {
			continue
		}
		for rank := range w.Ranks {
			src, err := d.rankSource(w, rank)
			if err != nil {
				return err
			}
			all.Go(func() {
				logEnd(d.log, "socket "+w.KVEvents, src.Run(ctx, func(seq uint64, b *kvevent.Batch) (uint64, bool) {
					return d.feed.Apply(w.Name, w.Epoch, rank, seq, b, time.Now())
				}))
			})
		}
	}
	return nil
}

// rankSource listens to one rank: its ports are those of rank 0 raised by its number.
func (d *decider) rankSource(w fleet.Worker, rank int) (*kvsource.Source, error) {
	events, err := raisePort(w.KVEvents, rank)
	if err != nil {
		return nil, fmt.Errorf("worker %s: kvEvents: %w", w.Name, err)
	}
	replay, err := raisePort(w.KVReplay, rank)
	if err != nil {
		return nil, fmt.Errorf("worker %s: kvReplay: %w", w.Name, err)
	}
	src, err := kvsource.New(kvsource.Config{Endpoint: events, Replay: replay, Rank: rank, Logger: d.log, Connected: func(up bool) {
		if !up {
			d.feed.Lost(w.Name, rank)
		}
	}})
	if err != nil {
		return nil, fmt.Errorf("worker %s: %w", w.Name, err)
	}
	return src, nil
}

func raisePort(endpoint string, by int) (string, error) {
	if by == 0 || endpoint == "" {
		return endpoint, nil
	}
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	host, port, err := net.SplitHostPort(rest)
	n, err2 := strconv.Atoi(port)
	if !ok || err != nil || err2 != nil || n+by > 65535 {
		return "", fmt.Errorf("%q has no port to raise for rank %d: use tcp://host:port", endpoint, by)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(n+by)), nil
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
			out = append(out, fleet.Worker{
				Name: w.Name, Model: m.Name, Role: role, Address: w.Address, Engine: w.Engine, Ranks: w.Ranks, Weight: uint32(w.Weight),
				KVEvents: w.KVEvents, KVReplay: w.KVReplay, Blocks: w.Blocks, BlockSize: m.BlockSize, State: fleet.Ready,
			})
		}
	}
	return out, nil
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
	for _, w := range workers {
		if _, err := d.fleet.Put(w); err != nil {
			return fmt.Errorf("add worker from the configuration: %w", err)
		}
	}
	if err := d.followSockets(ctx, workers); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
