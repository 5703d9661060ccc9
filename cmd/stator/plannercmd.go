package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plansettings"
	"github.com/stator-project/stator/planner"
	"github.com/stator-project/stator/planner/connectors/local"
	"github.com/stator-project/stator/planner/connectors/virtual"
	prom "github.com/stator-project/stator/planner/prometheus"
)

const plannerAbout = `Runs the planner, which observes demand and engines on the bus, and publishes a plan there: how many
workers each model should have, which of them are drained, and what share of traffic each gets. Any number
of planners may run: one leads. See docs/planning.md.`

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
	workers, err := p.cfg.FleetWorkers()
	if err != nil {
		return err
	}
	followed, err := discovery.NewMembers(discovery.MembersConfig{
		Fleet: members, Listed: workers, Log: p.log, Engines: p.engines, IgnorePlan: true,
	})
	if err != nil {
		return err
	}
	pl, err := newPlanner(p.cfg, members, p.bus, p.log, p.reg)
	if err != nil {
		return err
	}

	p.part(pl.Run)
	p.part(func(ctx context.Context) error {
		followed.Run(ctx)
		return nil
	})
	p.part(func(ctx context.Context) error { return followed.FollowBus(ctx, p.bus) })
	p.part(func(ctx context.Context) error { return p.bus.HoldPart(ctx, bus.PartPlanner, "") })
	p.part(func(ctx context.Context) error {
		return p.followed.Follow(ctx, func(cfg *config.Config) error {
			next, err := plansettings.Settings(cfg)
			if err != nil {
				return err
			}
			workers, err := cfg.FleetWorkers()
			if err != nil {
				return err
			}
			if err := followed.Set(workers); err != nil {
				return err
			}
			reloadPlanner(pl, cfg, next)
			return nil
		})
	})
	return p.runParts(ctx, admin.Sources{Fleet: members.Snapshot, Plan: pl.Current})
}

// newPlanner returns a planner as the configuration sets it.
func newPlanner(cfg *config.Config, members *fleet.Fleet, b *bus.Bus, log *slog.Logger, reg prometheus.Registerer) (*planner.Planner,
	error) {
	settings, err := plansettings.Settings(cfg)
	if err != nil {
		return nil, err
	}

	out := planner.Config{
		Settings: settings, Fleet: members, Bus: b, Advisory: cfg.Planner.Advisory, Interval: cfg.Planner.Interval.Std(),
		Log: log, Metrics: reg,
	}
	switch {
	case cfg.Planner.Connector == config.ConnectorVirtual:
		out.Connector = virtual.New(b)
	case cfg.Planner.ByAgents():
		out.Connector = local.New(local.Config{Bus: b, Fleet: members, Drain: cfg.Planner.DrainTimeout.Std(), Log: log})
	}
	if err := openPlannerFiles(cfg, &out); err != nil {
		return nil, err
	}
	return planner.New(out), nil
}

// reloadPlanner replaces the settings of a planner that newPlanner has made.
func reloadPlanner(pl *planner.Planner, cfg *config.Config, next *plan.Settings) {
	if c, ok := pl.Connector().(*local.Connector); ok {
		c.SetDrain(cfg.Planner.DrainTimeout.Std())
	}
	pl.Reload(next, cfg.Planner.Advisory)
}

// plannerText describes the configuration of a planner, for people.
func plannerText(p *config.Planner) string {
	switch {
	case p.Algorithm == plan.AlgorithmConfigured:
		return "publishes the configured replicas"
	case p.Advisory:
		return p.Algorithm + ", advisory: it carries nothing out"
	case p.Connector == config.ConnectorNone:
		return p.Algorithm + ", without a connector"
	}
	return p.Algorithm + ", connector " + p.Connector
}

// openPlannerFiles opens the planner's inputs and outputs besides the bus: earlier rates, its log, and Prometheus.
func openPlannerFiles(cfg *config.Config, out *planner.Config) error {
	p := &cfg.Planner
	rates := map[string][]float64{}
	if p.Warm != "" {
		file, err := os.Open(p.Warm)
		if err != nil {
			return fmt.Errorf("planner.warm: %w", err)
		}
		list, err := planner.ReadRates(file)
		_ = file.Close()
		if err != nil {
			return fmt.Errorf("planner.warm: %s: %w", p.Warm, err)
		}
		m := &out.Settings.Models[0] // the only one: see config.Planner.Warm
		rates[m.Name] = list
		out.State = out.State.Warm(m, list)
	}

	if p.Log != "" {
		log, err := planner.OpenLog(p.Log, planner.LogBytes, rates)
		if err != nil {
			return err
		}
		out.Record = log.Record
	}
	if p.Prometheus.URL != "" {
		x := &p.Prometheus
		source, err := prom.New(prom.Config{URL: x.URL, TokenFile: x.TokenFile, CAFile: x.CAFile, Namespace: x.Namespace})
		if err != nil {
			return err
		}
		out.Demand = source
	}
	return nil
}
