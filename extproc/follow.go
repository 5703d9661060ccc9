package extproc

import (
	"context"
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/extproc/sockets"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/drift"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kvsource/sources"
	"github.com/stator-project/stator/internal/route/pick"
)

// settleTime is the time that a worker waits for its first pick after it has become ready. Within a second every Envoy has the worker. An
// Envoy ignores a pick of an address that it does not have.
const settleTime = 1500 * time.Millisecond

// addListedWorkers puts the workers of the configuration into the fleet, and prepares the parts that follow them.
func (r *Router) addListedWorkers(cfg Config) error {
	workers, err := cfg.Settings.FleetWorkers()
	if err != nil {
		return err
	}
	r.members, err = discovery.NewMembers(discovery.MembersConfig{
		Fleet: r.fleet, Listed: workers, Log: r.log, Engines: cfg.Engines, Metrics: cfg.Metrics,
		Settle: settleTime, Later: addedLater, Moved: r.workersMoved, Died: r.forgetCache, Canary: canaries(cfg.Settings),
	})
	if err != nil {
		return err
	}

	settings := sockets.NewSettings(r.fleet, r.pools)
	cfg.Metrics.MustRegister(settings)
	r.sockets, err = sockets.New(sockets.Config{
		Fleet: r.fleet, Feed: r.feed, Log: r.log, Engines: cfg.Engines, Sources: sources.Register(cfg.Metrics, "sockets"),
		Load: r.applyListedLoad, Restarted: r.forgetCache, Take: r.takeIndex, Settings: settings,
	}, r.members.Workers())
	return err
}

// pools returns the models of workers by the names that clients use for them.
func (r *Router) pools() map[string]string {
	pools := map[string]string{}
	for _, m := range r.routes.Models() {
		if m.Parent == "" {
			pools[m.Name] = m.Pool
		}
	}
	return pools
}

// canaries returns a function that returns the interval of a model's canaries.
func canaries(cfg *config.Config) func(model string) time.Duration {
	of := map[string]time.Duration{}
	for i := range cfg.Models {
		of[cfg.Models[i].Name] = cfg.Models[i].Canary.Std()
	}
	return func(model string) time.Duration { return of[model] }
}

// addedLater is the time from a change of the configuration until the new listed workers join the fleet, and from a lookup until the new
// address of a listed one is used. Until then the control plane has it, too, and every Envoy has the endpoint. Envoy ignores a pick of an
// address that it does not have.
const addedLater = 3 * time.Second

// followList applies new lists of workers until ctx ends:
//
//	event                        listed workers in the fleet
//	a list comes                 workers that it lacks are removed
//	addedLater has passed        new ones are added, and changed ones are replaced
//	another list comes meanwhile its workers count instead; those that were in the last one wait no longer than before
//
// A change of weight or taints waits, too. It is not urgent.
func (r *Router) followList(ctx context.Context) {
	// This goroutine alone changes the listed workers, so it reads them as they are.
	coming := arrivals{since: map[fleet.Worker]time.Time{}}
	var list []fleet.Worker
	var due <-chan time.Time // when a worker of the list has waited for long enough; nil if none waits
	for {
		select {
		case list = <-r.lists:
			r.members.Drop(list)
		case <-due:
		case <-ctx.Done():
			return
		}

		// Both events end here: a list may have workers that need not wait, and the time of one may be over when a list comes. Applying
		// the same workers again changes nothing.
		now, next := coming.arrived(list, r.members.Workers(), time.Now())
		r.applyList(now)
		due = nil
		if next > 0 {
			due = time.After(next)
		}
	}
}

// arrivals has the times since which workers are in the list and not in the fleet.
type arrivals struct{ since map[fleet.Worker]time.Time }

// arrived returns the workers that the fleet should have of a list: those that it has, and those that have waited for addedLater. One that
// has changed stays as it was meanwhile. wait is the time until the next one has waited; 0 if none waits.
func (a *arrivals) arrived(list, present []fleet.Worker, now time.Time) (workers []fleet.Worker, wait time.Duration) {
	before := make(map[string]fleet.Worker, len(present))
	for _, w := range present {
		before[w.Name] = w
	}

	// A worker waits as long as the list has it unchanged, so the times of others are dropped with the old map. Pods come in hundreds
	// during a rollout: each has its own time, so that none of them waits for the others.
	waiting := map[fleet.Worker]time.Time{}
	for _, w := range list {
		old, exists := before[w.Name]
		since, known := a.since[w]
		if !known {
			since = now
		}
		rest := addedLater - now.Sub(since)
		switch {
		case exists && isSame(w, old), rest <= 0:
			workers = append(workers, w)
			continue
		case exists:
			workers = append(workers, old)
		}
		waiting[w] = since
		if wait == 0 || rest < wait {
			wait = rest
		}
	}
	a.since = waiting
	return workers, wait
}

// isSame reports whether a worker of a list is the one that is present, apart from what is found out later: the configuration sets no
// epoch, and the address of a name comes from a lookup. A worker that was discovered has both from the start.
func isSame(listed, present fleet.Worker) bool {
	if listed.Epoch == 0 {
		listed.Epoch = present.Epoch
	}
	if listed.Named != "" && listed.Named == present.Named {
		listed.Address = present.Address
		listed.State = present.State
	}
	return listed == present
}

// applyList makes these the listed workers.
func (r *Router) applyList(workers []fleet.Worker) {
	err := r.members.Set(workers)
	if err == nil {
		err = r.readSockets()
	}
	if err != nil {
		r.log.Error("listed workers not changed", "err", err)
		return
	}
	r.log.Debug("listed workers applied", "workers", len(workers))
	r.routes.Wake(time.Now())
}

// readSockets has the sockets of the listed workers read at the addresses that the workers have now.
func (r *Router) readSockets() error {
	// The list must not change between the two, or an older one could be set last.
	r.socketsMu.Lock()
	defer r.socketsMu.Unlock()
	return r.sockets.Set(r.members.Workers())
}

// workersMoved follows listed workers whose names have other addresses.
func (r *Router) workersMoved() {
	if err := r.readSockets(); err != nil {
		r.log.Error("sockets of listed workers not changed", "err", err)
	}
}

// forgetCache drops the known content of the cache of a worker whose process has ended, with the predictions for it. The next process
// begins with an empty cache, and publishes it from the start, unless it has none: an engine that this process asks by itself counts as one
// without until it has answered.
func (r *Router) forgetCache(w *fleet.Worker) {
	if rank, ok := r.fleet.Snapshot().Rank(w.Name, 0); ok && !w.Leased {
		sockets.DoubtCaching(&rank)
	}
	for rank := range w.Ranks {
		r.feed.Forget(w.Name, rank)
	}
}

// followBus keeps the fleet, its loads and the cache states as published on the bus, until ctx ends.
func (r *Router) followBus(ctx context.Context, b *bus.Bus) {
	// Each part has its own subscription and goroutine, so that a slow one does not delay the others:
	// events can be late by a recovery, load and bookings must not be.
	var all sync.WaitGroup
	r.subscribe(&all, "fleet", func() error { return r.members.FollowBus(ctx, b) })
	r.subscribe(&all, "load", func() error { return b.SubscribeLoad(ctx, r.applyLoad) })
	r.subscribe(&all, "events", func() error { return r.caches.Run(ctx, b) })
	all.Go(func() { r.followReplicas(ctx, b) })
	all.Go(func() { r.publishDemand(ctx, b) })
	all.Go(func() { r.followBudgets(ctx, b) })
	all.Go(func() { r.pruneDrift(ctx) })
	all.Wait()
}

// followReplicas exchanges bookings and the ends of requests with the other replicas, until ctx ends. b may have no buckets.
func (r *Router) followReplicas(ctx context.Context, b *bus.Bus) {
	var all sync.WaitGroup
	r.subscribe(&all, "bookings", func() error { return b.SubscribeBookings(ctx, r.applyBookings) })
	r.subscribe(&all, "ends", func() error { return b.SubscribeEnds(ctx, r.replica, r.applyEnd) })
	r.subscribe(&all, "gone", func() error { return b.SubscribeGone(ctx, r.applyGone) })
	all.Go(func() { r.publishBookings(ctx, b) })
	all.Go(func() { _ = b.HoldPart(ctx, bus.PartRouter, "") })
	all.Go(func() { b.WatchParts(ctx, &r.parts) })
	all.Wait()
}

// subscribe starts a subscription. It ends early only if the bus refuses it. The others are still useful then.
func (r *Router) subscribe(all *sync.WaitGroup, of string, run func() error) {
	all.Go(func() {
		if err := run(); err != nil {
			r.log.Error("bus subscription ended", "of", of, "err", err)
		}
	})
}

// applyListedLoad applies the load of a worker's engine that this router has read itself, because it has no agent. An engine
// with several ranks reports one load for all of them.
func (r *Router) applyListedLoad(w *fleet.Worker, l engineprobe.Load) {
	r.applyLoad(bus.Load{
		Worker: w.Name, Epoch: w.Epoch, Running: l.Running, Waiting: l.Waiting, KVUsage: l.KVUsage,
		PrefixQueries: l.PrefixQueries, PrefixHits: l.PrefixHits, Gaps: l.Gaps, GapTime: l.GapTime,
		StepTokens: l.StepTokens, Asleep: l.Asleep,
	})
}

// applyLoad applies an engine's report of its load, unless it is from another epoch of the worker: a report
// of the old process would end bookings of the new one.
func (r *Router) applyLoad(l bus.Load) {
	now := time.Now()
	rank, ok := r.fleet.Snapshot().Rank(l.Worker, l.Rank)
	if !ok || rank.Worker.Epoch != l.Epoch {
		return
	}

	// A worker that this router reads itself has no store.
	report := fleet.Report{
		At: now, Running: l.Running, Waiting: l.Waiting, KVUsage: l.KVUsage, Gaps: l.Gaps, GapTime: l.GapTime, StepTokens: l.StepTokens,
		Store: l.Store, Asleep: l.Asleep,
	}
	if n := r.routes.ObserveReport(rank, report); n > 0 {
		r.log.Warn("bookings ended: their engine is empty", "worker", l.Worker, "bookings", n)
	}

	// An engine reports one counter for all its ranks, so drift is found per worker and not per rank. Engines without these counters, and
	// those that have computed nothing yet, have nothing to compare.
	counters := drift.Counters{Worker: l.Worker, Epoch: l.Epoch, Queries: l.PrefixQueries, Hits: l.PrefixHits}
	var v drift.Verdict
	if l.PrefixQueries > 0 {
		v = r.drift.Counted(counters, now)
	}
	switch {
	case l.Asleep:
		// It may report only with its next step that it has dropped its blocks.
		for number := range rank.Worker.Ranks {
			r.feed.Emptied(rank.Worker.Name, number)
		}
	case v.Rebuild:
		r.rebuild(rank.Worker)
	case !v.Missed.IsZero():
		r.promisesMissed(rank.Worker, v.Missed)
	}
}

// promisesMissed empties the ranks of a worker whose engine has found none of the promised tokens: its cache was reset, and it has not
// reported that.
func (r *Router) promisesMissed(w *fleet.Worker, decided time.Time) {
	snap := r.fleet.Snapshot()
	for number := range w.Ranks {
		rank, _ := snap.Rank(w.Name, number)
		if s := r.feed.State(rank); s != feed.Exact && s != feed.None {
			continue // events that were held up may explain it
		}
		if r.feed.Missed(w.Name, number, decided) {
			r.log.Warn("the engine found none of the promised tokens, and has reported no empty cache; its blocks are forgotten",
				"worker", w.Name, "rank", number)
		}
	}
}

// requestServed records the cached tokens that a decision predicted, when its request has ended.
func (r *Router) requestServed(rank fleet.Rank, decided time.Time, t pick.Tokens) {
	if rank.Worker.Role == fleet.Decode {
		return // its engine fetches the tokens and finds none in its cache
	}
	r.drift.Served(drift.Request{
		Worker: rank.Worker.Name, Epoch: rank.Worker.Epoch, Decided: decided,
		PromptTokens: int(t.Prompt), CachedTokens: int(t.Cached), CertainTokens: int(t.Certain), BlockSize: r.models.blockSize(rank.Worker),
	})
}

// rebuild empties the ranks of a worker whose engine does not find the predicted tokens. They are not
// exact then, so that cachesync recovers them.
func (r *Router) rebuild(w *fleet.Worker) {
	for _, s := range r.drift.Stats() {
		if s.Worker == w.Name {
			r.log.Warn("engine and router disagree on cached tokens; the worker's cache state is rebuilt",
				"worker", w.Name, "ratio", s.Ratio, "promised", s.Promised, "found", s.Found)
		}
	}
	for rank := range w.Ranks {
		r.feed.Forget(w.Name, rank)
	}
}

// pruneDrift drops the figures of workers that leave the fleet, until ctx ends. Without this the metrics
// would keep a label for every worker that ever was.
func (r *Router) pruneDrift(ctx context.Context) {
	for {
		changed := r.fleet.Changed()
		snap := r.fleet.Snapshot()
		r.drift.Keep(func(worker string) bool { return snap.Worker(worker) != nil })

		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
