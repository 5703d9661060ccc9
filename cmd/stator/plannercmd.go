package main

import (
	"context"
	"slices"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/planner"
)

const plannerAbout = `Runs the planner, which watches the fleet on the bus and publishes a plan there. A plan has the
replicas that the configuration names.`

func runPlanner(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "planner", plannerAbout)
	p := newProcess(env, f, "planner", "127.0.0.1:8083")
	defer p.close()
	if err := f.Read(args); err != nil {
		return err
	}
	if err := p.openOnBus(ctx); err != nil {
		return err
	}

	members := fleet.New(fleet.Hooks{})
	wanted, err := planSettings(p.cfg)
	if err != nil {
		return err
	}

	pl := planner.New(wanted, members, p.bus, p.log, p.reg)
	p.part(pl.Run)
	p.part(func(ctx context.Context) error {
		return discovery.Bus(ctx, discovery.Config{Bus: p.bus, Fleet: members, Log: p.log})
	})
	p.part(func(ctx context.Context) error {
		return configfile.Watch(ctx, p.file, p.log, func(cfg *config.Config) error {
			next, err := planSettings(cfg)
			if err == nil {
				pl.Reload(next)
			}
			return err
		})
	})
	return p.run(ctx, admin.Sources{Fleet: members.Snapshot, Plan: pl.Current})
}

// planSettings returns what the configuration sets for plans.
func planSettings(cfg *config.Config) (*plan.Settings, error) {
	s := &plan.Settings{}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		pools, err := configuredPools(m)
		if err != nil {
			return nil, err
		}
		s.Models = append(s.Models, plan.Model{Name: m.Name, Pools: pools})
	}
	return s, nil
}

// configuredPools returns the number of configured workers by role.
func configuredPools(m *config.Model) ([]plan.Configured, error) {
	count := map[fleet.Role]int{}
	for _, l := range m.Launch {
		role, err := fleet.ParseRole(l.Role)
		if err != nil {
			return nil, err
		}
		count[role] += l.Count
	}
	for _, w := range m.Workers {
		role, err := fleet.ParseRole(w.Role)
		if err != nil {
			return nil, err
		}
		count[role]++
	}

	var out []plan.Configured
	for role, n := range count {
		out = append(out, plan.Configured{Role: role, Replicas: n})
	}
	slices.SortFunc(out, func(a, b plan.Configured) int { return int(a.Role) - int(b.Role) })
	return out, nil
}
