package main

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"google.golang.org/grpc"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/grpcserve"
	"github.com/stator-project/stator/xds"
)

const xdsAbout = `Runs the control plane: serves listeners, routes, clusters and endpoints to any number of Envoys
over ADS. ` + "`stator envoy bootstrap`" + ` prints the bootstrap of such an Envoy.`

func runXDS(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "xds", xdsAbout)
	p := newProcess(env, f, "xds", "127.0.0.1:8082")
	defer p.close()
	at := f.String("listen-address", "127.0.0.1:9003", "`address` for Envoys, ip:port or unix:///path")
	p.doors.AddClientFlags(f.FlagSet)
	var routers cli.List
	f.Var(&routers, "extproc-address", "`address` at which Envoys reach a router: ip:port, name:port (all its addresses) or unix:///path; "+
		"may be a list with commas, and given more than once (default 127.0.0.1:9002)")
	var relays cli.List
	f.Var(&relays, "relay-address", "`ip:port` of a router's relay, as stator extproc has it, for models with prefill and decode workers; "+
		"may be given more than once")
	secrets := f.String("extproc-secrets", "",
		"`folder` of secrets in each Envoy, written by stator envoy bootstrap: Envoys reach routers with TLS")
	serverName := f.String("extproc-server-name", xds.DefaultExtProcServerName,
		"DNS `name` in the certificates of routers, with --extproc-secrets")
	module := f.String("affinity-module", "",
		"`file` of the Wasm module in each Envoy, for gateway.affinityFilter: wasm; see make build-wasm")
	if err := f.Read(args); err != nil {
		return err
	}
	if err := checkRouters(f, &routers, *secrets != ""); err != nil {
		return err
	}
	for _, at := range relays {
		if _, err := netip.ParseAddrPort(at); err != nil {
			return f.UsageError("--relay-address is %q: use an IP and a port, such as 10.0.0.1:9004", at)
		}
	}
	settings := func(cfg *config.Config) (xds.Settings, error) {
		s := xdsSettings(cfg, routers)
		s.ExtProcSecrets, s.ExtProcServerName = *secrets, *serverName
		s.Relays = relays
		if cfg.Gateway.FiltersAffinity() {
			if *module == "" {
				return s, errors.New("gateway.affinityFilter is wasm: name the module in each Envoy with --affinity-module")
			}
			s.AffinityModule = *module
		}
		return s, nil
	}

	if err := p.open(); err != nil {
		return err
	}
	first, err := settings(p.cfg)
	if err != nil {
		return err
	}
	if err := p.join(ctx, nil); err != nil {
		return err
	}

	members := fleet.New(fleet.Hooks{})
	workers, err := p.cfg.FleetWorkers()
	if err != nil {
		return err
	}
	listed, err := discovery.NewListed(members, workers)
	if err != nil {
		return err
	}
	ln, err := p.doors.ForEnvoys(*at, "--listen-address", p.log)
	if err != nil {
		return err
	}

	srv := xds.NewServer(first, members, p.log, p.reg)
	g := grpc.NewServer(xds.Options()...)
	// An Envoy that already has workers would lose them for a moment if it were served before the workers on the bus are in the fleet,
	// and the listed ones have answered. It keeps its workers while it waits.
	complete := make(chan struct{})
	p.part(func(ctx context.Context) error {
		select {
		case <-complete:
		case <-ctx.Done():
		}
		discovery.AwaitFirstAnswers(ctx, members)
		srv.Register(ctx, g)
		return grpcserve.Run(ctx, g, ln, srv.Run)
	})
	p.part(func(ctx context.Context) error {
		discovery.Resolve(ctx, discovery.ResolveConfig{Listed: listed, Log: p.log})
		return nil
	})
	p.part(func(ctx context.Context) error {
		discovery.Probe(ctx, discovery.ProbeConfig{Fleet: members, Log: p.log, Metrics: p.reg})
		return nil
	})
	plans := discovery.NewPlans(discovery.PlansConfig{Fleet: members, Log: p.log, Metrics: p.reg})
	if p.bus != nil {
		p.part(func(ctx context.Context) error { return plans.Run(ctx, p.bus) })
		p.part(func(ctx context.Context) error {
			return discovery.Bus(ctx, discovery.Config{
				Bus: p.bus, Fleet: members, Log: p.log, Listed: listed, Synced: func() { close(complete) },
			})
		})
	} else {
		close(complete)
	}
	p.part(func(ctx context.Context) error {
		return configfile.Watch(ctx, p.file, p.log, func(cfg *config.Config) error {
			workers, err := cfg.FleetWorkers()
			if err != nil {
				return err
			}
			s, err := settings(cfg)
			if err != nil {
				return err
			}
			if err := listed.Set(workers); err != nil {
				return err
			}
			srv.Reload(s)
			return nil
		})
	})
	return p.run(ctx, admin.Sources{Fleet: members.Snapshot, XDS: srv.Status})
}

// checkRouters divides lists of addresses, sets the default, and refuses addresses that Envoy cannot use.
func checkRouters(f *cli.Flags, routers *cli.List, withTLS bool) error {
	var all cli.List
	for _, list := range *routers {
		all = append(all, strings.Split(list, ",")...)
	}
	if len(all) == 0 {
		all = cli.List{"127.0.0.1:9002"}
	}
	*routers = all
	if err := xds.CheckRouters(all, withTLS); err != nil {
		return f.UsageError("--extproc-address: %v", err)
	}
	return nil
}

func xdsSettings(cfg *config.Config, routers []string) xds.Settings {
	g := &cfg.Gateway
	s := xds.Settings{
		Listen: g.Listen, TrustedListen: g.TrustedListen, ExtProc: routers, MaxBodyBytes: g.MaxBodyBytes,
		PassPaths:       g.PassPaths,
		DecisionTimeout: g.DecisionTimeout.Std(), IdleTimeout: g.IdleTimeout.Std(),
		AttemptIdleTimeout: g.AttemptIdleTimeout.Std(),
		HeadersTimeout:     g.HeadersTimeout.Std(), BodyTimeout: g.BodyTimeout.Std(),
		ConnectionIdleTimeout: g.ConnectionIdleTimeout.Std(),
		AffinityHeader:        g.AffinityHeader, TenantHeader: g.TenantHeader, RoleHeader: g.RoleHeader,
		HintHeaders: g.Hints == "headers" && g.TrustsEveryone(),
		Splits:      cfg.Splits(), FailClosed: cfg.FailsClosed(),
	}
	for _, m := range cfg.Models {
		s.Models = append(s.Models, m.Name)
	}
	return s
}
