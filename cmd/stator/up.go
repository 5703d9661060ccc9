package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/admin/history"
	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/envoy"
	"github.com/stator-project/stator/extproc"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/listen"
	"github.com/stator-project/stator/internal/plansettings"
	"github.com/stator-project/stator/kvbm/announce"
	"github.com/stator-project/stator/kvbm/node"
	"github.com/stator-project/stator/planner"
	"github.com/stator-project/stator/workeragent"
	"github.com/stator-project/stator/workeragent/engine"
	"github.com/stator-project/stator/xds"
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
	history *history.History
	console *console

	// The parts, in the order in which prepare makes them. One that prepare has not reached is nil.
	embedded *bus.Embedded // nil with a bus of the configuration
	bus      *bus.Bus
	router   *extproc.Router
	engines  *enginetls.Client // nil without TLS to engines
	control  *control
	planner  *planner.Planner
	agent    *workeragent.Agent
	stores   []*node.Node        // of KV blocks
	found    *announce.Announcer // of the stores
	envoys   envoys

	// The listeners are opened before the parts that serve them, so that an address in use is found first.
	admin *adminPort
	// followed follows the configuration file; nil without one.
	followed *configfile.Follower
	// own are the engines of --to; nil without that flag.
	own              *ownEngines
	extprocLn, xdsLn net.Listener
	relayLn          net.Listener // of the relay, which is in Envoy's pools if a model may need it
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

// prepare creates every part, so that errors are reported before anything runs.
func (u *up) prepare(ctx context.Context) error {
	path, err := envoy.Find(u.flags.envoy)
	if err != nil {
		return err
	}
	if err := listen.Check(u.cfg.Gateway.Listen, "--listen-address"); err != nil {
		return err
	}
	if u.cfg.Gateway.TrustedListen != "" {
		if err := listen.Check(u.cfg.Gateway.TrustedListen, "gateway.trustedListen"); err != nil {
			return err
		}
	}
	if u.flags.file != "" {
		u.followed, _, err = configfile.NewFollower(configfile.FollowerConfig{
			Path: u.flags.file, Read: configfile.Read, Log: u.log, Metrics: u.reg,
		})
		if err != nil {
			return err
		}
	}
	u.admin, err = openAdmin(u.flags.admin, &u.flags.doors, u.log, u.reg)
	if err != nil {
		return err
	}

	if u.flags.set["to"] {
		u.own = newOwnEngines(u.flags, u.cfg, u.console, u.log)
		u.cfg, err = u.own.await(ctx)
		if err != nil {
			return err
		}
	}
	u.console.title(u.cfg)
	if err := u.checkInstalled(ctx); err != nil {
		return err
	}
	u.relayLn, err = listenRelay("127.0.0.1:0")
	if err != nil {
		return err
	}
	u.engines, err = openEngines(u.cfg, u.log)
	if err != nil {
		return err
	}
	key, err := tenantKey(&u.cfg.Gateway, u.log)
	if err != nil {
		return err
	}
	u.router, err = extproc.New(extproc.Config{Settings: u.cfg, Relay: u.relayLn, TenantKey: key, Log: u.log, Metrics: u.reg,
		Engines: u.engines, LogRequests: cli.IsTerminal(u.env.err)})
	if err != nil {
		return err
	}
	if err := u.joinBus(ctx); err != nil {
		return err
	}
	if err := u.makeControl(); err != nil {
		return err
	}

	return u.makeEnvoys(path)
}

func (u *up) socket(name string) string { return "unix://" + filepath.Join(u.dir, name+".sock") }

// xdsSettings returns the settings of the control plane.
func (u *up) xdsSettings(cfg *config.Config) (s xds.Settings, err error) {
	s, err = gatewaySettings(cfg, []string{u.socket("extproc")})
	if err != nil {
		return s, err
	}
	if cfg.UsesRelay() {
		s.Relays = []string{u.relayLn.Addr().String()}
	}
	if cfg.Gateway.FiltersAffinity() {
		s.AffinityModule, err = envoy.FindAffinityModule()
	}
	return s, err
}

// joinBus connects to the configured bus, or embeds one that only this process can reach.
func (u *up) joinBus(ctx context.Context) (err error) {
	name := bus.Redacted(u.cfg.Bus.URL)
	if name == "" {
		name = "NATS, in this process"
		u.embedded, err = bus.Embed(bus.EmbedConfig{Dir: filepath.Join(u.dir, "nats")})
		if err != nil {
			return err
		}
	}

	u.bus, err = joinBus(ctx, u.cfg, "up", u.embedded, u.log, u.reg, u.router.BusLost)
	if err != nil {
		return err
	}
	u.console.ready("bus", name)
	return nil
}

// makeControl creates the control plane, the planner and the agent.
func (u *up) makeControl() (err error) {
	u.extprocLn, err = listen.On(u.socket("extproc"), "extproc")
	if err != nil {
		return err
	}
	u.xdsLn, err = listen.On(u.socket("xds"), "xds")
	if err != nil {
		return err
	}

	// The control plane and the router have separate fleets: the router adds a worker only when Envoy has
	// it.
	settings, err := u.xdsSettings(u.cfg)
	if err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler) // the router logs and counts the same changes
	u.control, err = newControl(u.cfg, settings, u.engines, u.log, quiet, u.reg, nil)
	if err != nil {
		return err
	}

	u.planner, err = newPlanner(u.cfg, u.control.fleet, u.bus, nil, u.log, u.reg)
	if err != nil {
		return err
	}

	wanted, err := u.launches(u.cfg)
	if err != nil {
		return err
	}
	site, err := engine.NewSite("127.0.0.1", engine.DefaultPorts, u.dir)
	if err != nil {
		return err
	}
	u.stores, u.found, err = kvStores(u.cfg, wanted, "", &site, u.bus, u.log, u.reg)
	if err != nil {
		return err
	}
	u.agent, err = workeragent.New(workeragent.Config{Launches: wanted, Scaled: u.cfg.Planner.ByAgents(), Site: site, Bus: u.bus,
		Log: u.log, Metrics: u.reg, Engines: u.engines, IndexBytes: u.cfg.Index.MaxBytes, Store: reportedStore(u.stores), Hard: u.env.hard})
	return err
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
		return u.router.Run(ctx, extproc.RunConfig{Listen: func() (net.Listener, error) { return u.extprocLn, nil }, Bus: u.bus})
	})
	u.control.addParts(part, u.xdsLn, u.bus)
	part(u.planner.Run)
	part(func(ctx context.Context) error { return u.bus.HoldPart(ctx, bus.PartPlanner, "") })
	part(u.found.Run)
	if len(u.stores) > 0 {
		part(func(ctx context.Context) error { return u.bus.HoldPart(ctx, bus.PartStore, "") })
	}
	for _, s := range u.stores {
		part(s.Run)
	}
	part(u.agent.Run)
	u.history = history.New(u.reg)
	part(u.history.Run)
	u.admin.show(u.sources())
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

func (u *up) sources() admin.Sources {
	return admin.Sources{
		Metrics: u.reg, History: u.history, Router: u.router.Routes(), Feed: u.router.Feed(), Peers: u.router.Peers(),
		Emitters: u.router.Emitters,
		Plan:     u.planner.Current, Fleet: u.router.Fleet().Snapshot, Coverage: u.router.Coverage, Promises: u.router.Promises,
		Envoys: u.router.Envoys, DryRun: u.router.DryRun, Drains: u.router.Drains(), OnBus: true, Config: u.configStatus(),
		Engines: u.engines, Agent: u.agent.Status, EnvoyMetrics: u.envoys.metrics, KV: kvSources(u.stores), XDS: u.control.server.Status,
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

// checkInstalled asks each interpreter once for the package of its engines: an engine without one would be started again for ever.
func (u *up) checkInstalled(ctx context.Context) error {
	list, err := engine.Configured(u.cfg, "")
	if err != nil {
		return err
	}
	asked := map[string]bool{}
	for i := range list {
		l := &list[i]
		if key := l.Kind + " " + l.Python; !asked[key] {
			asked[key] = true
			if err := l.Installed(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// launches returns the engines of a configuration. All of them end with this process.
func (u *up) launches(cfg *config.Config) ([]engine.Launch, error) {
	list, err := launchesOf(cfg, "", u.log)
	for i := range list {
		list[i].Survive = false
	}
	return list, err
}
