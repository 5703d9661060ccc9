package workeragent

import (
	"context"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/workeragent/engine"
)

// probing is how often an engine is probed. Tests make it faster.
type probing struct {
	starting    time.Duration // pause between health probes of an engine that is not ready yet
	load        time.Duration // pause between two readings of a ready engine's load
	healthEvery int           // readings of the load between two health probes
	unhealthy   int           // health probes that must fail in a row before the worker is down
}

var usualProbing = probing{starting: 50 * time.Millisecond, load: 500 * time.Millisecond, healthEvery: 4, unhealthy: 3}

// probeEngine probes the engine until ctx ends: its health becomes the worker's state, and its load is
// published. It closes ready when the first probe passes.
func (s *supervisor) probeEngine(ctx context.Context, probe *engine.Probe, epoch uint64, ready chan<- struct{}) {
	every := s.agent.probing

	for probe.Healthy(ctx) != nil {
		if backoff.Sleep(ctx, every.starting) != nil {
			return
		}
	}
	close(ready)

	// The length comes before the state: the first prompt that a router sends here needs it.
	s.setMaxModelLen(probe.MaxModelLen(ctx))
	s.setState(fleet.Ready)

	// From here on the worker's state follows the probes, and its load is published while they pass.
	failures := 0
	for n := 1; backoff.Sleep(ctx, every.load) == nil; n++ {
		if n%every.healthEvery == 0 {
			failures = s.probeHealth(ctx, probe, failures)
		}
		if probe.ReadsLoad() && failures == 0 {
			s.publishLoad(ctx, probe, epoch)
		}
	}
}

// probeHealth probes the health of an engine that was ready, and returns how many probes have failed
// in a row. An engine that does not answer is down, but its process goes on: it may be busy, and
// killing it would lose its KV cache.
func (s *supervisor) probeHealth(ctx context.Context, probe *engine.Probe, failures int) int {
	err := probe.Healthy(ctx)
	switch {
	case ctx.Err() != nil:
		return failures
	case err == nil:
		s.setState(fleet.Ready)
		return 0
	}

	// The warning and the change come once, with the probe that reaches the bound.
	if failures+1 == s.agent.probing.unhealthy {
		s.agent.cfg.Log.Warn("engine does not answer; no requests go there until it does", "worker", s.launch.Name, "err", err)
		s.setState(fleet.Down)
	}
	return failures + 1
}

// publishLoad reads the engine's load and publishes it on the bus.
func (s *supervisor) publishLoad(ctx context.Context, probe *engine.Probe, epoch uint64) {
	load, err := probe.Load(ctx)
	if err != nil {
		s.agent.cfg.Log.Debug("load not read", "worker", s.launch.Name, "err", err)
		return
	}

	err = s.agent.cfg.Bus.PublishLoad(bus.Load{
		Worker: s.launch.Name, Epoch: epoch, Running: load.Running, Waiting: load.Waiting, KVUsage: load.KVUsage,
		PrefixQueries: load.PrefixQueries, PrefixHits: load.PrefixHits, Gaps: load.Gaps, GapTime: load.GapTime,
	})
	if err != nil {
		s.agent.cfg.Log.Debug("load not published", "worker", s.launch.Name, "err", err)
	}
}
