package workeragent

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/workeragent/engine"
)

// process is a running engine: one that ends with the agent, or one that survives it.
type process interface {
	PID() int
	Exited() <-chan struct{}
	Wait() error
	Stop(ctx context.Context)
}

// attempt is one life of an engine process, from before its start.
type attempt struct {
	cmd    *engine.Command
	worker fleet.Worker // as its first lease describes it
	// detached is the process, if it survives the agent; nil until it runs. One that has survived an earlier agent
	// runs from the beginning.
	detached *child.Detached
}

// prepare finds the engine that has survived an earlier agent, or prepares the start of a new one.
//
//	found engine                              effect
//	a running engine, same command line       adopted, in the same epoch
//	a running engine, another command line    stopped; a new one
//	none                                      a new one
func (s *supervisor) prepare(ctx context.Context) (*attempt, error) {
	if s.launch.Survive {
		if a := s.adopt(ctx); a != nil {
			return a, nil
		}
	}

	cmd, err := s.launch.Build(&s.agent.cfg.Site)
	if err != nil {
		return nil, err
	}

	// The start time is a good epoch: no later process of this worker has the same, on any node.
	w := cmd.Worker
	w.Epoch, w.State = uint64(time.Now().UnixNano()), fleet.Starting
	return &attempt{cmd: cmd, worker: w}, nil
}

// adopt returns the engine that has survived an earlier agent; nil if there is none that can be used.
func (s *supervisor) adopt(ctx context.Context) *attempt {
	log := s.agent.cfg.Log.With("worker", s.launch.Name)
	record, found, ok := s.agent.cfg.State.find(s.launch.Name)
	if !ok {
		return nil
	}

	cmd, err := s.launch.Rebuild(&s.agent.cfg.Site, record.Port, record.TransferPort)
	if err != nil || cmd.Fingerprint() != record.Command {
		log.Info("the launch has changed; stopping the engine that has survived the agent", "pid", found.PID())
		found.Stop(s.agent.cfg.Hard)
		if err == nil {
			cmd.Release()
		}
		return nil
	}

	// Its lease is still there, or has just ended. An engine that was ready must not be taken out for a moment.
	w := cmd.Worker
	w.Epoch, w.State = record.Epoch, fleet.Starting
	probe := engineprobe.New(s.launch.Kind, w.Address, s.agent.cfg.Engines)
	defer probe.Close()
	if probe.Healthy(ctx) == nil {
		w.State = fleet.Ready
		if models, err := probe.Models(ctx); err == nil {
			w.MaxModelLen = models.MaxModelLen
			w.Adapters = models.Adapters
		}
	}
	log.Info("engine adopted that has survived the agent", "pid", found.PID(), "state", w.State)
	return &attempt{cmd: cmd, worker: w, detached: found}
}

// fetchFiles has the files of the model on this node before its engine starts. Models that engines find on a hub, or in a file, are theirs.
func (s *supervisor) fetchFiles(ctx context.Context, a *attempt) error {
	folder := s.launch.ModelPath
	if s.agent.cfg.Files == nil || a.detached != nil || !filepath.IsAbs(folder) || filepath.Ext(folder) == ".gguf" {
		return nil
	}
	shown := int64(-1)
	return s.agent.cfg.Files(ctx, s.launch.Model, folder, func(done, total int64) {
		if share := 100 * done / max(1, total); share > shown {
			shown = share
			s.output.Add(fmt.Sprintf("stator agent: fetching the files of the model: %d %%", share))
		}
	})
}

// start starts the attempt's process, unless it runs.
func (s *supervisor) start(a *attempt) (process, error) {
	if a.detached != nil {
		return a.detached, nil
	}

	s.agent.metrics.starts.WithLabelValues(s.launch.Name).Inc()
	cfg := child.Config{Path: a.cmd.Path, Args: a.cmd.Args, Env: a.cmd.Env, Dir: a.cmd.Dir, Holder: a.cmd.Holder, Line: s.logLine}
	if !s.launch.Survive {
		return child.Start(cfg)
	}

	state := s.agent.cfg.State
	started, err := child.StartDetached(cfg, state.output(s.launch.Name))
	if err != nil {
		return nil, err
	}
	a.detached = started
	err = state.save(s.launch.Name, engineRecord{
		Holder: started.Identity(), PID: started.PID(), Port: a.cmd.Port(), TransferPort: a.cmd.TransferPort(),
		Epoch: a.worker.Epoch, Command: a.cmd.Fingerprint(),
	})
	if err != nil {
		s.agent.cfg.Log.Warn("the engine cannot be found again by a later agent", "worker", s.launch.Name, "err", err)
	}
	return started, nil
}

// finish gives back the resources of the attempt, when its process has ended.
func (s *supervisor) finish(a *attempt) {
	if s.launch.Survive {
		s.agent.cfg.State.forget(s.launch.Name)
		s.output.Set(child.LastLines(s.agent.cfg.State.output(s.launch.Name), false))
	}
	a.cmd.Release()
}

// abandon gives up an attempt whose process was not started by it. One that has survived an earlier agent runs on.
func (s *supervisor) abandon(a *attempt) {
	if a.detached != nil {
		s.leave(a)
		return
	}
	a.cmd.Release()
}

// leave lets the process of a surviving engine run on.
func (s *supervisor) leave(a *attempt) {
	s.agent.cfg.Log.Info("engine left running; stop it with stator agent --stop-engines", "worker", s.launch.Name, "pid", a.detached.PID())
	a.detached.Leave()
	a.cmd.Leave()
}
