package sockets

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// The engine of a worker without an agent is asked for the values that an agent would read of it and publish:
//
//	value                        how often            destination
//	load                         500 ms, idle: below  Config.Load
//	capacity of the KV cache     with it              the fleet; as the worker's blocks, unless they are configured
//	block size                   with it              the fleet, unless events have shown it
//	whether it has a cache       with it, or as one   the health of the worker in the fleet: an engine without one is promised nothing
//	                             of the options
//	counters that begin again    with it              Config.Restarted, for a worker without KV events
//	context length, adapters     2 s, idle: below     the fleet
//	options                      when it gets ready   the fleet
//
// An engine is idle if its last report has no requests, and no router has sent it one since. The more workers there are, the longer are the
// pauses of idle ones: 15 ms for each worker, which is 2 s for 133 workers and 15 s for a thousand. A thousand idle engines would otherwise
// cost a third of a core.

const (
	// loadEvery is the pause between two readings of an engine's load, as agents read it.
	loadEvery = 500 * time.Millisecond
	// modelsEvery is the pause between two readings of an engine's models. Adapters are loaded and unloaded while it
	// runs, and it may restart with another context length. For an engine that lists neither, the pauses double up to
	// modelsSeldom.
	modelsEvery  = 2 * time.Second
	modelsSeldom = 30 * time.Second
	// idlePerWorker is the part of each worker in the pause between two readings of an idle engine, and idleMost the longest pause.
	idlePerWorker = 15 * time.Millisecond
	idleMost      = 30 * time.Second
)

// followEngine keeps the reports of a worker's engine up to date until ctx ends: its context length, adapters and
// capacity in the fleet, and its load. An engine that is not ready is not asked. One that reports nothing is as ready as
// before.
func (c Config) followEngine(ctx context.Context, w fleet.Worker) {
	probe := engineprobe.New(w.Engine, w.Address, c.Engines)
	defer probe.Close()
	var modelsAt, loadAt time.Time // when each is read again, if the engine is idle; zero for now
	retry := backoff.Backoff{Min: modelsEvery, Max: modelsSeldom}
	var last engineprobe.Load

	for ctx.Err() == nil {
		now, found := c.Fleet.Snapshot().Rank(w.Name, 0)
		if !found || now.Worker.Address != w.Address || now.Worker.State != fleet.Ready {
			if found && now.Worker.Address == w.Address && now.Worker.Adapters.Known() {
				c.update(w.Name, func(w *fleet.Worker) { w.Adapters = "" }) // it may come back without them
			}
			modelsAt, loadAt = time.Time{}, time.Time{}
			_ = backoff.Sleep(ctx, loadEvery)
			continue
		}

		if modelsAt.IsZero() {
			c.readOptions(ctx, probe, now.Worker, w.Blocks > 0)
		}
		idle := last.Running+last.Waiting == 0 && c.isUnused(now.Worker)
		if !time.Now().Before(modelsAt) {
			pause := retry.Next()
			if c.readModels(ctx, probe, now.Worker) {
				retry.Reset()
				pause = modelsEvery
			}
			if idle {
				pause = max(pause, c.idlePause())
			}
			modelsAt = time.Now().Add(pause)
		}
		if probe.ReadsLoad() && (!idle || !time.Now().Before(loadAt)) {
			last = c.readLoad(ctx, probe, now.Worker, w.Blocks > 0, last)
			loadAt = time.Now().Add(c.idlePause())
		}
		pause := loadEvery
		if idle {
			pause = min(max(loadEvery, c.idlePause()), modelsEvery) // so soon a first request is noticed
		}
		_ = backoff.Sleep(ctx, pause)
	}
}

// idlePause is the pause between two readings of an idle engine.
func (c Config) idlePause() time.Duration {
	return min(time.Duration(len(c.Fleet.Snapshot().Workers))*idlePerWorker, idleMost)
}

// isUnused reports whether no router has a request booked on a worker.
func (c Config) isUnused(w *fleet.Worker) bool {
	for number := range w.Ranks {
		rank, ok := c.Fleet.Snapshot().Rank(w.Name, number)
		if ok && rank.Load.Booked().Requests > 0 {
			return false
		}
	}
	return true
}

// readModels reads an engine's context length and adapters into the fleet. It returns false for an engine that lists
// neither. After an error the fleet keeps the earlier values.
func (c Config) readModels(ctx context.Context, probe *engineprobe.Probe, w *fleet.Worker) bool {
	models, err := probe.Models(ctx)
	if err != nil {
		c.Log.Debug("models not read", "worker", w.Name, "err", err)
		return false
	}

	if models.Adapters != w.Adapters {
		c.Log.Info("adapters of the engine", "worker", w.Name, "adapters", len(models.Adapters.Names()), "skipped", models.Skipped)
	}
	c.Settings.listed(w, models.Names)
	c.update(w.Name, func(w *fleet.Worker) {
		w.Adapters = models.Adapters
		if models.MaxModelLen > 0 {
			w.MaxModelLen = models.MaxModelLen
			w.Figures.ContextLength.Set(models.MaxModelLen, fleet.FromModels)
		}
	})
	return models.MaxModelLen > 0 || models.Adapters.Known()
}

// readLoad reads an engine's load and passes it on. It returns the load, or the last one if it cannot be read.
func (c Config) readLoad(ctx context.Context, probe *engineprobe.Probe, w *fleet.Worker, hasBlocks bool, last engineprobe.Load,
) engineprobe.Load {
	asked := time.Now()
	load, err := probe.Load(ctx)
	if err != nil {
		c.Log.Debug("load not read", "worker", w.Name, "err", err)
		if unreached := (*url.Error)(nil); ctx.Err() == nil && !errors.As(err, &unreached) {
			c.endCachingDoubt(w, asked) // its metrics are off
		}
		return last
	}

	// Counters begin again in a new process. Where events are read, their source finds that.
	restarted := load.PrefixQueries < last.PrefixQueries || load.Gaps < last.Gaps
	if restarted && w.KVEvents == "" && c.Restarted != nil {
		c.Log.Info("engine restarted", "worker", w.Name)
		c.Restarted(w)
		asked = time.Now()
	}

	// Events have the size that the engine uses, until a new process may use another.
	c.setFigures(w, hasBlocks, func(f *fleet.Figures) {
		f.Capacity.Set(load.Capacity, fleet.FromMetrics)
		if f.BlockSize.Source != fleet.FromEvents || restarted {
			f.BlockSize.Set(load.BlockSize, fleet.FromMetrics)
		}
	})
	if engines.Of(w.Engine).Metrics.Config != "" {
		c.observeCaching(w, load.CachingOff, asked)
	}
	c.Settings.loaded(w, &load)
	if c.Load != nil {
		c.Load(w, load)
	}
	return load
}

// DoubtCaching records that the engine of a rank may be another process, if the engine's metrics have whether it has a prefix cache.
func DoubtCaching(rank *fleet.Rank) {
	if engines.Of(rank.Worker.Engine).Metrics.Config != "" {
		rank.Load.Health().DoubtCaching(time.Now())
	}
}

// observeCaching records whether an engine has a prefix cache, by its answer to a question of that time. Without one its ranks have no
// blocks, and the blocks that were predicted are dropped.
func (c Config) observeCaching(w *fleet.Worker, off bool, asked time.Time) {
	rank, ok := c.firstRank(w)
	if !ok {
		return
	}
	rank.Load.Health().ObserveCaching(off, asked)
	if rank.Load.Health().View().CachingOff {
		for number := range rank.Worker.Ranks {
			c.Feed.Emptied(w.Name, number)
		}
	}
}

// endCachingDoubt records that an engine answers, and does not report whether it has a prefix cache.
func (c Config) endCachingDoubt(w *fleet.Worker, asked time.Time) {
	if rank, ok := c.firstRank(w); ok {
		rank.Load.Health().EndCachingDoubt(asked)
	}
}

// firstRank returns the first rank of a worker. ok is false if the worker has left, or has another address now.
func (c Config) firstRank(w *fleet.Worker) (rank fleet.Rank, ok bool) {
	rank, ok = c.Fleet.Snapshot().Rank(w.Name, 0)
	return rank, ok && rank.Worker.Address == w.Address
}

// setFigures changes the figures of an engine in the fleet. hasBlocks means that the capacity in blocks is configured.
//
// Two goroutines change them, one by metrics and one by events, so the change is made to the figures that the fleet has then.
func (c Config) setFigures(w *fleet.Worker, hasBlocks bool, change func(f *fleet.Figures)) {
	now := w.Figures
	change(&now)
	if now == w.Figures {
		return
	}
	c.update(w.Name, func(w *fleet.Worker) {
		change(&w.Figures)
		if blocks := fleet.BlocksOf(w.Figures.Capacity.Value, w.TokensPerBlock()); blocks > 0 && !hasBlocks {
			w.Blocks = blocks
		}
	})
}

// readOptions reads the figures that some kinds of engines report on a page of their options.
func (c Config) readOptions(ctx context.Context, probe *engineprobe.Probe, w *fleet.Worker, hasBlocks bool) {
	asked := time.Now()
	options, err := probe.Options(ctx)
	if err != nil {
		c.Log.Debug("options not read", "worker", w.Name, "err", err)
		return
	}
	if engines.Of(w.Engine).Pages == engines.SGLangPages {
		c.observeCaching(w, options.CachingOff, asked)
	}
	c.setFigures(w, hasBlocks, func(f *fleet.Figures) {
		if f.BlockSize.Source != fleet.FromEvents {
			f.BlockSize.Set(options.BlockSize, fleet.FromOptions)
		}
		if f.ContextLength.Source != fleet.FromModels {
			f.ContextLength.Set(options.ContextLength, fleet.FromOptions)
		}
		f.Requests.Set(options.Requests, fleet.FromOptions)
		f.BatchTokens.Set(options.BatchTokens, fleet.FromOptions)
	})
}

// update changes a worker of the fleet. It stays the same in all else, so its ranks keep their bookings and caches.
func (c Config) update(worker string, change func(w *fleet.Worker)) {
	if _, err := c.Fleet.Update(worker, change); err != nil {
		c.Log.Error("limits of an engine not used", "worker", worker, "err", err)
	}
}
