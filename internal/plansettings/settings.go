package plansettings

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/workeragent/engine"
)

// Settings returns the configuration's settings for plans. It reads the profiles and the models' config.json that the configuration
// names.
func Settings(cfg *config.Config) (*plan.Settings, error) {
	p := &cfg.Planner
	s := &plan.Settings{Budget: plan.Budget{MinGPUs: p.MinGPUs, MaxGPUs: p.MaxGPUs, MaxWatts: p.MaxWatts}}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		pools, err := configuredPools(m)
		if err != nil {
			return nil, fmt.Errorf("models[%d]: %w", i, err)
		}
		if len(pools) == 0 {
			continue // its workers were found, and the configuration has nothing to plan for them
		}
		s.Models = append(s.Models, plan.Model{
			Name: m.Name, Algorithm: p.Algorithm, Every: p.Interval.Std(), Targets: targetsOf(m), Pools: pools, UpOnly: p.UpOnly,
			IdleAfter: m.IdleAfter.Std(),
			Tuning:    plan.Tuning{Mode: p.Mode, Forecast: p.Forecast, Headroom: p.Headroom, DownAfter: p.DownAfter.Std()},
		})
	}
	return s, nil
}

// targetsOf returns the latencies that the planner keeps for a model.
func targetsOf(m *config.Model) capacity.Targets {
	t := &m.Targets
	return capacity.Targets{TTFT: t.TTFT.Std(), ITL: t.ITL.Std(), E2E: t.E2E.Std(), Quantile: t.Quantile}
}

// configuredPools returns the pools of a model by role. Workers that are listed are a fixed part of them.
func configuredPools(m *config.Model) ([]plan.Configured, error) {
	pools := map[fleet.Role]*plan.Configured{}
	of := func(name string) (*plan.Configured, error) {
		role, err := fleet.ParseRole(name)
		if err != nil {
			return nil, err
		}
		if pools[role] == nil {
			pools[role] = &plan.Configured{Role: role, Doubt: math.Inf(1)}
		}
		return pools[role], nil
	}

	for k := range m.Launch {
		p, err := of(m.Launch[k].Role)
		if err != nil {
			return nil, err
		}
		if err := addLaunch(p, m, &m.Launch[k]); err != nil {
			return nil, fmt.Errorf("launch[%d]: %w", k, err)
		}
	}
	for i := range m.Workers {
		p, err := of(m.Workers[i].Role)
		if err != nil {
			return nil, err
		}
		p.Replicas++
		p.Min++
		p.Max++
		p.GPUs = max(p.GPUs, 1)
	}

	var out []plan.Configured
	for _, p := range pools {
		if math.IsInf(p.Doubt, 1) { // there is no launch
			e, err := NewEngine(m, &config.Launch{}, p.GPUs)
			if err != nil {
				return nil, err
			}
			p.Engine, p.Doubt = e.Engine, e.doubt
		}
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b plan.Configured) int { return int(a.Role) - int(b.Role) })
	return out, nil
}

// addLaunch adds the engines of a launch to a pool. Budgets count the largest engine of the pool, and the plan the one whose speed is
// known best.
func addLaunch(p *plan.Configured, m *config.Model, l *config.Launch) error {
	gpus, err := engine.GPUs(l)
	if err != nil {
		return err
	}
	e, err := NewEngine(m, l, gpus)
	if err != nil {
		return err
	}

	p.Replicas += l.Count
	p.Min += l.Min
	p.Max += l.Max
	p.GPUs = max(p.GPUs, gpus)
	p.Watts = max(p.Watts, e.watts)
	p.StartUp = max(p.StartUp, l.StartUp.Std())
	if e.doubt < p.Doubt {
		p.Engine, p.Doubt = e.Engine, e.doubt
	}
	return nil
}

// ReadModelSize reads the config.json of a model's folder, or of a model on a hub. A path that is no folder has none.
func ReadModelSize(ctx context.Context, path string) ([]byte, error) {
	path, err := modelfile.Local(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("read model configuration: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read model configuration: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("read model configuration: %s is a file: the size of a model is read from the config.json of a folder", path)
	}
	return modelfile.ReadBounded(path+"/config.json", maxModelConfig)
}

// maxModelConfig bounds a model's config.json.
const maxModelConfig = 1 << 20
