package workeragent

import (
	"context"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/workeragent/engine"
)

// pace says how often engines are looked at.
type pace struct {
	starting    time.Duration // between probes of a starting engine
	loads       time.Duration // between samples of a ready one
	healthEvery int           // samples between two health probes
	unhealthy   int           // failed health probes until a worker is down
}

var usualPace = pace{starting: 50 * time.Millisecond, loads: 500 * time.Millisecond, healthEvery: 4, unhealthy: 3}

// watch turns the engine's health into the worker's state and reports its load, until ctx
// ends. It closes ready when the engine first serves.
func (k *keeper) watch(ctx context.Context, probe *engine.Probe, epoch uint64, ready chan<- struct{}) {
	p := k.agent.pace
	for probe.Healthy(ctx) != nil {
		if pause(ctx, p.starting) != nil {
			return
		}
	}
	close(ready)
	k.setState(fleet.Ready)
	failed := 0
	for n := 1; pause(ctx, p.loads) == nil; n++ {
		if n%p.healthEvery == 0 {
			failed = k.judge(ctx, probe, failed)
		}
		if probe.ReadsLoad() && failed == 0 {
			k.report(ctx, probe, epoch)
		}
	}
}

// judge probes the health of an engine that was ready. One that does not answer is down, but
// its process is left alone: it may be busy, and killing it would lose its cache.
func (k *keeper) judge(ctx context.Context, probe *engine.Probe, failed int) int {
	err := probe.Healthy(ctx)
	switch {
	case ctx.Err() != nil:
		return failed
	case err == nil:
		k.setState(fleet.Ready)
		return 0
	case failed+1 == k.agent.pace.unhealthy:
		k.agent.cfg.Log.Warn("engine does not answer; no requests go there until it does", "worker", k.launch.Name, "err", err)
		k.setState(fleet.Down)
	}
	return failed + 1
}

func (k *keeper) report(ctx context.Context, probe *engine.Probe, epoch uint64) {
	l, err := probe.Load(ctx)
	if err != nil {
		k.agent.cfg.Log.Debug("load not read", "worker", k.launch.Name, "err", err)
		return
	}
	err = k.agent.cfg.Bus.PublishLoad(bus.Load{
		Worker: k.launch.Name, Epoch: epoch, Running: l.Running, Waiting: l.Waiting, KVUsage: l.KVUsage,
		PrefixQueries: l.PrefixQueries, PrefixHits: l.PrefixHits, Gaps: l.Gaps, GapTime: l.GapTime,
	})
	if err != nil {
		k.agent.cfg.Log.Debug("load not published", "worker", k.launch.Name, "err", err)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
