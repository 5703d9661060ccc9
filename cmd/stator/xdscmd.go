package main

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/xds"
)

const xdsAbout = `Runs the control plane: serves listeners, routes, clusters and endpoints to any number of Envoys
over ADS. ` + "`stator envoy bootstrap`" + ` prints the bootstrap of such an Envoy.`

// xdsFlags are the flags of `stator xds` that its settings need. Addresses and files are as the Envoys see them, which may run on other
// hosts.
type xdsFlags struct {
	routers, relays             cli.List
	secrets, serverName, module string
}

func runXDS(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "xds", xdsAbout)
	p := newProcess(env, f, "xds", "127.0.0.1:8082")
	defer p.close()
	at := f.String("listen-address", "127.0.0.1:9003", "`address` for Envoys, ip:port or unix:///path")
	p.doors.AddClientFlags(f.FlagSet)
	p.pools.addFlags(f)
	p.pools.reachesRelay = true
	var o xdsFlags
	o.addFlags(f)
	if err := f.Read(args); err != nil {
		return err
	}
	if err := o.check(f); err != nil {
		return err
	}

	if err := p.open(); err != nil {
		return err
	}
	if err := p.findWorkers(ctx); err != nil {
		return err
	}
	first, err := o.settings(p.cfg)
	if err != nil {
		return err
	}
	if err := p.join(ctx, nil); err != nil {
		return err
	}
	c, err := newControl(p.cfg, first, p.engines, p.log, p.log, p.reg, p.reg)
	if err != nil {
		return err
	}
	ln, err := p.doors.ForEnvoys(*at, "--listen-address", p.log)
	if err != nil {
		return err
	}

	c.addParts(p.part, ln, p.bus)
	p.part(func(ctx context.Context) error {
		return p.followConfig(ctx, func(cfg *config.Config) error {
			s, err := o.settings(cfg)
			if err != nil {
				return err
			}
			return c.reload(cfg, s)
		})
	})
	return p.runParts(ctx, admin.Sources{Fleet: c.fleet.Snapshot, Drains: c.members.Drains(), OnBus: p.bus != nil, XDS: c.server.Status})
}

func (o *xdsFlags) addFlags(f *cli.Flags) {
	f.Var(&o.routers, "extproc-address",
		"`address` at which Envoys reach a router: ip:port, name:port (all its addresses) or unix:///path; "+
			"may be a list with commas, and given more than once (default 127.0.0.1:9002)")
	f.Var(&o.relays, "relay-address",
		"`ip:port` of a router's relay, as stator extproc has it, for models with prefill and decode workers or migration; "+
			"may be given more than once")
	f.StringVar(&o.secrets, "extproc-secrets", "",
		"`folder` of secrets in each Envoy, written by stator envoy bootstrap: Envoys reach routers with TLS")
	f.StringVar(&o.serverName, "extproc-server-name", xds.DefaultExtProcServerName,
		"DNS `name` in the certificates of routers, with --extproc-secrets")
	f.StringVar(&o.module, "affinity-module", "",
		"`file` of the Wasm module in each Envoy, for gateway.affinityFilter: wasm; see make build-wasm")
}

// check refuses addresses that Envoys cannot use.
func (o *xdsFlags) check(f *cli.Flags) error {
	if err := checkRouters(f, &o.routers, o.secrets != ""); err != nil {
		return err
	}
	for _, at := range o.relays {
		if _, err := netip.ParseAddrPort(at); err != nil {
			return f.UsageError("--relay-address is %q: use an IP and a port, such as 10.0.0.1:9004", at)
		}
	}
	return nil
}

// settings returns the settings of the control plane for a configuration.
func (o *xdsFlags) settings(cfg *config.Config) (xds.Settings, error) {
	s, err := gatewaySettings(cfg, o.routers)
	if err != nil {
		return s, err
	}
	s.ExtProcSecrets, s.ExtProcServerName = o.secrets, o.serverName
	s.Relays = o.relays
	if !cfg.Gateway.FiltersAffinity() {
		return s, nil
	}
	if o.module == "" {
		return s, errors.New("gateway.affinityFilter is wasm: name the module in each Envoy with --affinity-module")
	}
	s.AffinityModule = o.module
	return s, nil
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
	if err := xds.CheckServers(all, withTLS); err != nil {
		return f.UsageError("--extproc-address: %v", err)
	}
	return nil
}

// gatewaySettings returns the settings with the keys of the gateway's clients, which it reads from files.
func gatewaySettings(cfg *config.Config, routers []string) (xds.Settings, error) {
	s := xdsSettings(cfg, routers)
	keys, sets, err := configfile.Keys(&cfg.Gateway)
	for _, k := range keys {
		s.Auth.Keys = append(s.Auth.Keys, xds.APIKey(k))
	}
	for i, set := range sets {
		j := &cfg.Gateway.Auth.JWT[i]
		s.Auth.Issuers = append(s.Auth.Issuers, xds.Issuer{
			Name: j.Issuer, Audiences: j.Audiences, JWKS: set, URL: j.JWKSURL, CAFile: j.JWKSCAFile, TenantClaim: j.TenantClaim,
		})
	}
	return s, err
}

// xdsSettings returns the settings without the keys of clients.
func xdsSettings(cfg *config.Config, routers []string) xds.Settings {
	g, t := &cfg.Gateway, &cfg.EngineTLS
	s := xds.Settings{
		Listen: g.Listen, TrustedListen: g.TrustedListen, ExtProc: routers, MaxBodyBytes: g.MaxBodyBytes,
		PassPaths:       g.PassPaths,
		DecisionTimeout: g.DecisionTimeout.Std(), IdleTimeout: g.IdleTimeout.Std(),
		AttemptIdleTimeout: g.AttemptIdleTimeout.Std(),
		HeadersTimeout:     g.HeadersTimeout.Std(), BodyTimeout: g.BodyTimeout.Std(),
		ConnectionIdleTimeout: g.ConnectionIdleTimeout.Std(),
		SessionHeaders:        g.SessionHeaders(), TenantHeader: g.TenantHeader, RoleHeader: g.RoleHeader,
		TLS:       xds.PEMFiles{CA: g.TLS.ClientCAFile, Cert: g.TLS.CertFile, Key: g.TLS.KeyFile},
		EngineTLS: xds.PEMFiles{CA: t.CAFile, Cert: t.CertFile, Key: t.KeyFile}, EngineServerName: t.ServerName,
		EnginesInClear: t.Excepted(),
		CORSOrigins:    g.CORSOrigins, AccessLog: g.AccessLog, AnswerTokens: g.AnswerTokens,
		HintHeaders: g.Hints == "headers" && g.TrustsEveryone(),
		Splits:      cfg.Splits(), FailClosed: cfg.FailsClosed(),
	}

	// Which authorities an Envoy of another host has is not known, so it makes no spans for a receiver with TLS.
	if t := &cfg.Tracing; !strings.HasPrefix(t.Endpoint, "https:") {
		s.Tracing = xds.Tracing{Receiver: t.Endpoint, Ratio: t.Ratio}
	}
	for _, m := range cfg.Models {
		s.Models = append(s.Models, m.Name)
	}
	return s
}
