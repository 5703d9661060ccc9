package main

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/envoy"
	"github.com/stator-project/stator/extproc"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/internal/listen"
	"github.com/stator-project/stator/workeragent"
	"github.com/stator-project/stator/workeragent/engine"
	"github.com/stator-project/stator/xds"
)

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
	u.listeners.relay, err = listenRelay("127.0.0.1:0")
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
	u.router, err = extproc.New(extproc.Config{Settings: u.cfg, Relay: u.listeners.relay, TenantKey: key, Log: u.log, Metrics: u.reg,
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
		s.Relays = []string{u.listeners.relay.Addr().String()}
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
	u.listeners.extproc, err = listen.On(u.socket("extproc"), "extproc")
	if err != nil {
		return err
	}
	u.listeners.xds, err = listen.On(u.socket("xds"), "xds")
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
	u.stores, err = newKVStores(u.cfg, wanted, "", &site, u.bus, u.log, u.reg)
	if err != nil {
		return err
	}
	u.agent, err = workeragent.New(workeragent.Config{Launches: wanted, Scaled: u.cfg.Planner.ByAgents(), Site: site, Bus: u.bus,
		Log: u.log, Metrics: u.reg, Engines: u.engines, IndexBytes: u.cfg.Index.MaxBytes, Store: u.stores.report, Hard: u.env.hard})
	return err
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
