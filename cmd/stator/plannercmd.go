package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/discovery"
	api "github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plansettings"
	"github.com/stator-project/stator/planner"
	"github.com/stator-project/stator/planner/connectors/kubernetes"
	"github.com/stator-project/stator/planner/connectors/local"
	"github.com/stator-project/stator/planner/connectors/virtual"
	prom "github.com/stator-project/stator/planner/prometheus"
	"github.com/stator-project/stator/workeragent/engine"
)

const plannerAbout = `Runs the planner, which observes demand and engines on the bus, and publishes a plan there: how many
workers each model should have, which of them are drained, and what share of traffic each gets. Any number
of planners may run: one leads. With planner.connector kubernetes it scales objects of a cluster, and finds its
workers among the pods of --inference-pool or --pod-selector, as routers do. See docs/planning.md.`

func runPlanner(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "planner", plannerAbout)
	p := newProcess(env, f, "planner", "127.0.0.1:8083")
	defer p.close()
	p.pools.addFlags(f)
	p.pools.reachesRelay = true // the routers decide which workers they can use
	dryRun := f.Bool("dry-run", false,
		"make one plan after planner.interval, print it with the changes that it asks for, change nothing, and end")
	once := f.Bool("once", false,
		"make one plan, carry it out with planner.connector kubernetes, print it, and end: with status 1 if an object could not be scaled")
	if err := f.Read(args); err != nil {
		return err
	}
	if p.file == "" {
		return f.UsageError("name the configuration file with --config")
	}
	if err := p.openOnBus(ctx); err != nil {
		return err
	}
	if err := p.findWorkers(ctx); err != nil {
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
	var hands *kubernetes.Connector // nil with another connector
	if p.cfg.Planner.Connector == config.ConnectorKubernetes {
		hands, err = p.kubernetesConnector(members)
		if err != nil {
			return err
		}
	}
	pl, err := newPlanner(p.cfg, members, p.bus, hands, p.log, p.reg)
	if err != nil {
		return err
	}

	run := pl.Run
	if *dryRun || *once {
		run = func(ctx context.Context) error { return planOnce(ctx, env, pl, hands, *once) }
	}
	p.part(run)
	p.part(func(ctx context.Context) error {
		followed.Run(ctx)
		return nil
	})
	p.part(func(ctx context.Context) error { return followed.FollowBus(ctx, p.bus) })
	p.part(func(ctx context.Context) error { return p.bus.HoldPart(ctx, bus.PartPlanner, "") })
	p.part(func(ctx context.Context) error {
		return p.followConfig(ctx, func(cfg *config.Config) error {
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

// kubernetesConnector returns the connector that scales the targets of the configuration.
func (p *process) kubernetesConnector(members *fleet.Fleet) (*kubernetes.Connector, error) {
	if !p.pools.wanted() {
		return nil, p.flags.UsageError("planner.connector is kubernetes: name the pods of the targets with --inference-pool or " +
			"--pod-selector")
	}
	settings := kubernetes.Config{
		Client: p.pools.client, Home: p.pools.home, Fleet: members, Rules: scaleRules(p.cfg), Drain: p.cfg.Planner.DrainTimeout.Std(),
		Interval: p.cfg.Planner.Interval.Std(), Log: p.log, Metrics: p.reg,
	}
	if p.pools.names != "" {
		settings.Pools = p.pools.source.Pools
	}
	for i := range p.cfg.Models {
		m := &p.cfg.Models[i]
		for k := range m.Launch {
			target, err := targetOf(m, &m.Launch[k], p.pools.home)
			if err != nil {
				return nil, fmt.Errorf("models[%d].launch[%d]: %w", i, k, err)
			}
			settings.Targets = append(settings.Targets, target)
		}
	}
	return kubernetes.New(settings), nil
}

// targetOf returns the target of a launch, in a namespace.
func targetOf(m *config.Model, l *config.Launch, namespace string) (kubernetes.Target, error) {
	object, err := config.ParseTarget(l.Target)
	if err != nil {
		return kubernetes.Target{}, err
	}
	role, err := fleet.ParseRole(l.Role)
	if err != nil {
		return kubernetes.Target{}, err
	}
	gpus, err := engine.GPUs(l)
	return kubernetes.Target{
		Object: api.Object{APIVersion: object.APIVersion, Kind: object.Kind, Namespace: namespace, Name: object.Name},
		Model:  m.Name, Role: role, GPUs: max(1, gpus),
	}, err
}

// scaleRules returns the bounds of changes.
func scaleRules(cfg *config.Config) kubernetes.Rules {
	return kubernetes.Rules{MaxGPUs: cfg.Planner.MaxGPUs, UpOnly: cfg.Planner.UpOnly}
}

// planOnce makes one plan, prints it with its changes, and carries it out if that is wanted.
func planOnce(ctx context.Context, env environment, pl *planner.Planner, hands *kubernetes.Connector, carryOut bool) error {
	if hands == nil && carryOut {
		return errors.New("--once needs planner.connector kubernetes: the other connectors end with the planner")
	}
	show := func() {
		made := pl.Current()
		_, _ = fmt.Fprint(env.out, made)
		if hands != nil {
			set, _ := hands.Preview(&made)
			_, _ = fmt.Fprint(env.out, "\n", set)
		}
	}
	ready := func() bool {
		if hands == nil {
			return true
		}
		_, complete := hands.Preview(&plan.Plan{})
		return complete
	}
	if !carryOut {
		err := pl.Once(ctx, ready, nil)
		if err == nil {
			show()
		}
		return err
	}

	var refused []plan.Wait
	shown := false
	err := pl.Once(ctx, ready, func() (done bool) {
		if !shown {
			shown = true
			show()
		}
		done, refused = hands.Done(pl.Current().Term)
		return done
	})
	if err == nil && len(refused) > 0 {
		err = fmt.Errorf("not carried out: %s", refused[0].Why)
	}
	return err
}

// newPlanner returns a planner as the configuration sets it. hands carry its plans out, if they are not nil.
func newPlanner(cfg *config.Config, members *fleet.Fleet, b *bus.Bus, hands *kubernetes.Connector, log *slog.Logger,
	reg prometheus.Registerer) (*planner.Planner, error) {
	if hands == nil && cfg.Planner.Connector == config.ConnectorKubernetes {
		return nil, errors.New("planner.connector is kubernetes, which only `stator planner` carries out")
	}
	settings, err := plansettings.Settings(cfg)
	if err != nil {
		return nil, err
	}

	out := planner.Config{
		Settings: settings, Fleet: members, Bus: b, Advisory: cfg.Planner.Advisory, Interval: cfg.Planner.Interval.Std(),
		Log: log, Metrics: reg,
	}
	switch {
	case hands != nil:
		out.Connector = hands
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
	switch c := pl.Connector().(type) {
	case *local.Connector:
		c.SetDrain(cfg.Planner.DrainTimeout.Std())
	case *kubernetes.Connector:
		c.Set(scaleRules(cfg), cfg.Planner.DrainTimeout.Std())
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
		if len(out.Settings.Models) == 0 {
			return errors.New("planner.warm: the model has neither launches nor workers")
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
