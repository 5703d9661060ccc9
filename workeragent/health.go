package workeragent

import (
	"cmp"
	"context"
	"net/netip"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// probing sets how often an engine is probed. Tests make it faster.
type probing struct {
	starting    time.Duration // pause between health probes of an engine that is not ready yet
	load        time.Duration // pause between two readings of a ready engine's load
	healthEvery int           // readings of the load between two health probes, and between two of the adapters
	unhealthy   int           // health probes that must fail in a row before the worker is down
	stable      time.Duration // how long an engine must be ready for the pauses between starts to begin again; 0 is the usual time
}

var usualProbing = probing{starting: 50 * time.Millisecond, load: 500 * time.Millisecond, healthEvery: 4, unhealthy: 3}

// probeEngine probes the engine until ctx ends: its health becomes the worker's state, and its load is
// published. It closes ready when the first probe passes.
func (s *supervisor) probeEngine(ctx context.Context, probe *engineprobe.Probe, epoch uint64, ready chan<- struct{}) {
	every, began := s.agent.probing, time.Now()
	if !s.awaitHealthy(ctx, probe) {
		return
	}
	close(ready)

	// The limits come before the state: the first prompt that a router sends here needs them.
	s.setLimits(ctx, probe)
	s.setState(fleet.Ready)
	s.agent.cfg.Log.Info("engine is ready", "worker", s.launch.Name, "after", time.Since(began).Round(time.Millisecond))

	// From here on the worker's state follows the probes, and its load is published while they pass.
	failures, native := 0, nativeTiers{}
	for n := 1; backoff.Sleep(ctx, every.load) == nil; n++ {
		if n%every.healthEvery == 0 {
			failures = s.probeHealth(ctx, probe, failures)
			if failures == 0 {
				s.followAdapters(ctx, probe)
			}
		}
		if probe.ReadsLoad() && failures == 0 {
			s.publishLoad(ctx, probe, epoch, native)
		}
	}
}

// setLimits records the context length of the engine, its adapters and the capacity of its cache, as far as it reports
// them. The change of state that follows renews the lease.
func (s *supervisor) setLimits(ctx context.Context, probe *engineprobe.Probe) {
	// An engine that does not answer here has no limits yet. Its adapters are read again soon.
	models, err := probe.Models(ctx)
	if err != nil {
		s.agent.cfg.Log.Debug("models not read", "worker", s.launch.Name, "err", err)
	}
	var load engineprobe.Load
	if probe.ReadsLoad() {
		load, _ = probe.Load(ctx) // without it the capacity stays unknown
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.worker.MaxModelLen = models.MaxModelLen
	s.worker.Adapters = models.Adapters
	// Engines may use another size than they were started with: engines of hybrid models do.
	s.worker.BlockSize = cmp.Or(load.BlockSize, s.worker.BlockSize)
	// The capacity of some kinds is part of their launch.
	if s.worker.Blocks == 0 {
		s.worker.Blocks = fleet.BlocksOf(load.Capacity, s.worker.BlockSize)
	}
}

// followAdapters reads the adapters of the engine again, because they are loaded and unloaded while it runs, and renews
// the lease when they are others.
func (s *supervisor) followAdapters(ctx context.Context, probe *engineprobe.Probe) {
	models, err := probe.Models(ctx)
	if err != nil {
		s.agent.cfg.Log.Debug("models not read", "worker", s.launch.Name, "err", err)
		return
	}

	// A process that has just ended answers no more, so the answer is of the process that the worker describes.
	s.mu.Lock()
	changed := s.worker.Adapters != models.Adapters
	s.worker.Adapters = models.Adapters
	s.mu.Unlock()
	if !changed {
		return
	}

	// Adapters change a few times a day at most, so a line for each change does not flood the log. Names are of whatever
	// length the engine gives them, and are not logged.
	s.agent.cfg.Log.Info("adapters of the engine", "worker", s.launch.Name, "adapters", len(models.Adapters.Names()),
		"skipped", models.Skipped)
	s.renewLease()
}

// foreignPause is the pause between health probes while another program answers them, and warnForeignEvery that
// between warnings about it.
const (
	foreignPause     = time.Second
	warnForeignEvery = time.Minute
)

// readOutputEvery is the interval at which the output of a starting engine is read, if it is in a file.
const readOutputEvery = time.Second

// awaitHealthy probes a starting engine until it is healthy. It returns false when ctx ends first. An answer of another
// program that has taken the engine's port does not count.
func (s *supervisor) awaitHealthy(ctx context.Context, probe *engineprobe.Probe) bool {
	var warned, read time.Time
	for {
		// The output of an engine that survives the agent is in a file.
		if s.launch.Survive && time.Since(read) > readOutputEvery {
			read = time.Now()
			s.output.Set(child.LastLines(s.agent.cfg.State.output(s.launch.Name), true))
		}
		pause := s.agent.probing.starting
		if probe.Healthy(ctx) == nil {
			if !s.isForeign() {
				return true
			}
			pause = foreignPause
			if time.Since(warned) > warnForeignEvery {
				warned = time.Now()
				s.agent.cfg.Log.Warn("another program answers at the port of the engine; the worker is not ready until it is gone: "+
					"stop that program, or choose other ports with --engine-ports", "worker", s.launch.Name, "address", s.current().Address)
			}
		}
		if backoff.Sleep(ctx, pause) != nil {
			return false
		}
	}
}

// isForeign reports whether the server at the worker's address is not the engine's. It is false if that is not
// known, as on systems other than Linux. The command of kind exec may be a client of a container runtime, whose
// processes are not below it, so its server is not checked.
func (s *supervisor) isForeign() bool {
	w := s.current()
	address, err := netip.ParseAddrPort(w.Address)
	if err != nil || s.launch.Kind == engines.Exec.Name {
		return false
	}
	return child.OthersListen(s.processID(), address)
}

// probeHealth probes the health of an engine that was ready, and returns how many probes have failed
// in a row. An engine that does not answer is down, but its process goes on: it may be busy, and
// killing it would lose its KV cache.
func (s *supervisor) probeHealth(ctx context.Context, probe *engineprobe.Probe, failures int) int {
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

// publishLoad reads the engine's load, counts the transfers of its own tiers, and publishes the load on the bus.
func (s *supervisor) publishLoad(ctx context.Context, probe *engineprobe.Probe, epoch uint64, native nativeTiers) {
	load, err := probe.Load(ctx)
	if err != nil {
		s.agent.cfg.Log.Debug("load not read", "worker", s.launch.Name, "err", err)
		return
	}

	if load.Asleep {
		s.agent.mirror.emptied(s.current())
	}
	native.count(s.agent.metrics.native, s.launch.Name, load.Tiers)
	var store fleet.Store
	if s.launch.KVStore {
		store = s.agent.cfg.Store(s.launch.Model)
	}
	err = s.agent.cfg.Bus.PublishLoad(bus.Load{
		Worker: s.launch.Name, Epoch: epoch, Running: load.Running, Waiting: load.Waiting, KVUsage: load.KVUsage,
		PrefixQueries: load.PrefixQueries, PrefixHits: load.PrefixHits, Gaps: load.Gaps, GapTime: load.GapTime,
		StepTokens: load.StepTokens, Store: store, Asleep: load.Asleep,
	})
	if err != nil {
		s.agent.cfg.Log.Debug("load not published", "worker", s.launch.Name, "err", err)
	}
}
