package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/admin/history"
	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/extproc"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/plansettings"
	"github.com/stator-project/stator/planner"
	"github.com/stator-project/stator/workeragent"
)

// nodePrefix and a number from 0 on are the node ids of the Envoys that stator up runs. nodeID is the default of stator envoy bootstrap.
const (
	nodePrefix = "gateway-"
	nodeID     = nodePrefix + "0"
)

func runUp(ctx context.Context, env environment, args []string) error {
	o, err := readUpFlags(env, args)
	if err != nil {
		return err
	}
	log, err := o.log.Logger(env.err)
	if err != nil {
		return err
	}
	cfg, err := o.config()
	if err != nil {
		return err
	}

	dir, err := makeRunFolder(log)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()

	u := &up{flags: o, cfg: cfg, env: env, log: log, dir: dir, reg: newRegistry(), console: newConsole(env.out)}
	defer u.close()
	err = u.prepare(ctx)
	switch {
	case err != nil && ctx.Err() != nil: // it waited for engines
		u.console.stopped()
		return nil
	case err != nil:
		return err
	}
	return u.runParts(ctx)
}

// up is all parts on one machine. They use the same sockets and the same bus as on several machines.
type up struct {
	flags *upFlags
	cfg   *config.Config
	env   environment
	log   *slog.Logger
	// dir has the sockets and the files of this run. It is removed at the end.
	dir     string
	reg     *prometheus.Registry
	console *console

	// The parts, in the order in which prepare makes them. One that prepare has not reached is nil.
	embedded *bus.Embedded // nil with a bus of the configuration
	bus      *bus.Bus
	router   *extproc.Router
	engines  *enginetls.Client // nil without TLS to engines
	control  *control
	planner  *planner.Planner
	agent    *workeragent.Agent
	stores   kvStores
	envoys   envoys

	// The listeners are opened before the parts that serve them, so that an address in use is found first.
	admin     *adminPort
	listeners struct{ extproc, xds, relay net.Listener } // the relay is in Envoy's pools if a model may need it

	// followed follows the configuration file; nil without one.
	followed *configfile.Follower
	// own are the engines of --to; nil without that flag.
	own *ownEngines
}

func (u *up) close() {
	if u.admin != nil {
		u.admin.close()
	}
	if u.bus != nil {
		u.bus.Close()
	}
	if u.embedded != nil {
		u.embedded.Close()
	}
}

// runParts returns when ctx ends or a part fails. Parts are stopped in the order in which they are
// added. Envoy is the first, so that it drains while all others still serve.
func (u *up) runParts(ctx context.Context) error {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var g run.Group
	g.Add(func() error { return u.envoys.run(base) }, func(error) { u.console.stopping(u.env.hard); u.envoys.stop() })
	part := func(f func(context.Context) error) {
		ctx, stop := context.WithCancel(base)
		g.Add(func() error { return f(ctx) }, func(error) { stop() })
	}

	part(func(inner context.Context) error { return u.announce(ctx, inner) })
	part(u.replaceOnSignal)
	part(func(ctx context.Context) error {
		return u.router.Run(ctx, extproc.RunConfig{Listen: func() (net.Listener, error) { return u.listeners.extproc, nil }, Bus: u.bus})
	})
	u.control.addParts(part, u.listeners.xds, u.bus)
	part(u.planner.Run)
	part(func(ctx context.Context) error { return u.bus.HoldPart(ctx, bus.PartPlanner, "") })
	u.stores.addParts(part, u.bus, "")
	part(u.agent.Run)
	past := history.New(u.reg)
	part(past.Run)
	u.admin.show(u.sources(past))
	part(u.admin.wait)
	if u.own != nil {
		part(func(ctx context.Context) error { return u.own.follow(ctx, u.router.Fleet(), u.reload) })
	}
	if u.followed != nil {
		part(func(ctx context.Context) error { return u.followed.Follow(ctx, u.reload) })
	}

	err := g.Run()
	if ctx.Err() != nil {
		u.console.stopped()
		return nil
	}
	return err
}

func (u *up) sources(past *history.History) admin.Sources {
	return admin.Sources{
		Metrics: u.reg, History: past, RouterSources: routerSources(u.router), Plan: u.planner.Current,
		Fleet: u.router.Fleet().Snapshot, Drains: u.router.Drains(), OnBus: true, Config: u.configStatus(),
		Engines: u.engines, Agent: u.agent.Status, EnvoyMetrics: u.envoys.metrics, KV: u.stores.sources(), XDS: u.control.server.Status,
		Degraded: func() error {
			return errors.Join(u.bus.Err(), u.router.Degraded(), u.followed.Degraded(), u.envoys.missing())
		},
		Ready: func() error {
			if err := u.router.ReadyModels(); err != nil {
				return err
			}
			n, _, err := u.envoys.ready(u.busyModels())
			if n > 0 {
				return nil
			}
			return err
		},
	}
}

// reload applies the settings that may change while the parts run.
func (u *up) reload(cfg *config.Config) error {
	if err := u.flags.overlay(cfg); err != nil {
		return err
	}
	wanted, err := plansettings.Settings(cfg)
	if err != nil {
		return err
	}
	settings, err := u.xdsSettings(cfg)
	if err != nil {
		return err
	}
	launches, err := u.launches(cfg)
	if err != nil {
		return err
	}

	if err := u.router.Reload(cfg); err != nil {
		return err
	}
	// Envoys have a worker before the router does.
	if err := u.control.reload(cfg, settings); err != nil {
		return err
	}

	reloadPlanner(u.planner, cfg, wanted)
	return u.agent.Reload(launches, cfg.Planner.DrainTimeout.Std())
}

// configStatus returns the function that describes the configuration file; nil without one.
func (u *up) configStatus() func() configfile.Status {
	if u.followed == nil {
		return nil
	}
	return u.followed.Status
}
