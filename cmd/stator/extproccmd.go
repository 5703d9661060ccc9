package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/extproc"
	"github.com/stator-project/stator/extproc/poolmetrics"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/listen"
)

const extProcAbout = `Runs a router: Envoy's external processor, and the receiver of its access log on the same port.
Its workers are those of the configuration, of the bus, and of a Kubernetes cluster: the pods of
InferencePools, or with some labels.`

// extProcFlags are the flags of `stator extproc` beside the flags that every part has.
type extProcFlags struct {
	listen, relay, health string
	others                otherRouters
	drain                 time.Duration
	shadow                bool
	decisions             string
}

func (o *extProcFlags) addFlags(f *cli.Flags, p *process) {
	f.StringVar(&o.listen, "listen-address", "127.0.0.1:9002", "`address` for Envoy, ip:port or unix:///path")
	f.StringVar(&o.relay, "relay-address", "",
		"`ip:port` for streams with models[].migration, and for requests of models with prefill and decode workers that need a second "+
			"attempt, or both workers at once, as Envoys reach it; stator xds must have the same (default none)")
	f.BoolVar(&p.pools.reachesRelay, "pool-reaches-relay", false,
		"the gateway sends requests of --inference-pool to --relay-address, too: its pool is of type ORIGINAL_DST, or has its endpoints "+
			"from stator xds. SGLang's prefill and decode workers, and those with vLLM's p2p transfer, are refused without it")
	f.StringVar(&o.health, "health-address", "",
		"`ip:port` of a further port for gRPC's health protocol alone, without TLS: for the probes of a "+
			"kubelet (default none; --listen-address answers, too)")
	p.doors.AddClientFlags(f.FlagSet)
	p.pools.addFlags(f)
	o.others.addFlags(f)
	f.DurationVar(&o.drain, "drain-time", time.Minute,
		"how long a router that stops goes on with responses that pass through it, which they do "+
			"in Envoys that send them and no access log; give its process longer than that")
	f.BoolVar(&o.shadow, "shadow", false,
		"decide about copies of requests, which Envoys send with observability_mode, and change nothing: needs a decision log, of which "+
			"`stator shadow report` makes a report")
	addDecisionLogFlag(f, &o.decisions)
}

func runExtProc(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "extproc", extProcAbout)
	p := newProcess(env, f, "extproc", "127.0.0.1:8081")
	defer p.close()
	var o extProcFlags
	o.addFlags(f, p)
	if err := f.Read(args); err != nil {
		return err
	}
	if p.pools.reachesRelay && o.relay == "" {
		return f.UsageError("--pool-reaches-relay needs --relay-address, which is the address that the gateway reaches")
	}
	if err := p.open(); err != nil {
		return err
	}
	if err := o.settle(p); err != nil {
		return err
	}
	if err := p.findWorkersOf(ctx, o.health); err != nil {
		return err
	}
	router, err := o.newRouter(p)
	if err != nil {
		return err
	}
	if err := p.join(ctx, router.BusLost); err != nil {
		return err
	}
	if err := o.others.join(ctx, p); err != nil {
		return err
	}
	defer o.others.close()
	ln, err := p.doors.ForEnvoys(o.listen, "--listen-address", slog.New(slog.DiscardHandler)) // its warnings come when it is opened again
	if err == nil {
		err = ln.Close() // the address is free; the router listens later, when it has its fleet
	}
	if err != nil {
		return err
	}

	// The port for health answers while the router waits for its fleet: a kubelet must not take that for a process that hangs. It stays
	// open until the last response has ended.
	var health net.Listener
	if o.health != "" {
		health, err = listen.On(o.health, "--health-address")
		if err != nil {
			return err
		}
	}
	p.part(func(ctx context.Context) error {
		return router.Run(ctx, extproc.RunConfig{
			Listen: func() (net.Listener, error) { return p.doors.ForEnvoys(o.listen, "--listen-address", p.log) },
			Health: health, Bus: p.bus, Peers: o.others.bus, AwaitFleet: true, DrainTime: o.drain, Hard: env.hard,
		})
	})
	p.part(func(ctx context.Context) error { return p.followConfig(ctx, router.Reload) })
	return p.runParts(ctx, admin.Sources{
		Ready: func() error { return cmp.Or(p.foundNone(), router.Listening(), router.ReadyModels()) },
		Fleet: router.Fleet().Snapshot, RouterSources: routerSources(router), Degraded: router.Degraded,
		Drains: router.Drains(), OnBus: p.bus != nil,
	})
}

// routerSources returns the parts of a router that pages of the admin port show.
func routerSources(r *extproc.Router) admin.RouterSources {
	return admin.RouterSources{
		Router: r.Routes(), DryRun: r.DryRun, Feed: r.Feed(), Peers: r.Peers(), Emitters: r.Emitters, Coverage: r.Coverage,
		Promises: r.Promises, Envoys: r.Envoys,
	}
}

// settle compares the flags with the configuration, and changes both where one decides about the other.
func (o *extProcFlags) settle(p *process) error {
	if p.pools.names != "" && !p.pools.reachesRelay {
		if p.cfg.Migrates() {
			return errors.New("models[].migration: streams go to the relay, which is no endpoint of an InferencePool: if the gateway's " +
				"pool is of type ORIGINAL_DST, or has its endpoints from stator xds, say so with --pool-reaches-relay and --relay-address")
		}
		o.relay = "" // no request may name it, whatever its hints are
	}
	p.cfg.Decisions.Log = cmp.Or(o.decisions, p.cfg.Decisions.Log)
	if !o.shadow {
		return nil
	}
	if p.cfg.Decisions.Log == "" {
		return errors.New("--shadow: name the file of its decisions with --decision-log FILE")
	}
	p.cfg.Decisions.HashEvery = 1 // the report needs to know where prompts part
	return nil
}

// newRouter makes the router, which does not listen yet.
func (o *extProcFlags) newRouter(p *process) (*extproc.Router, error) {
	relay, err := listenRelay(o.relay)
	if err != nil {
		return nil, err
	}
	key, err := tenantKey(&p.cfg.Gateway, p.log)
	if err != nil {
		return nil, err
	}
	router, err := extproc.New(extproc.Config{
		Settings: p.cfg, Relay: relay, TenantKey: key, Shadow: o.shadow, Log: p.log, Metrics: p.reg, Engines: p.engines,
	})
	if err == nil && p.pools.names != "" {
		p.reg.MustRegister(poolmetrics.New(p.pools.members, router.Fleet().Snapshot, router.Routes().Queues))
	}
	return router, err
}

// listenRelay opens the listener of the relay; nil if at is empty. Its address is the one that routers give to Envoys.
func listenRelay(at string) (net.Listener, error) {
	if at == "" {
		return nil, nil
	}
	a, err := netip.ParseAddrPort(at)
	if err != nil || a.Addr().IsUnspecified() {
		return nil, fmt.Errorf("--relay-address is %q: use the IP and port at which Envoys reach this router, such as 10.0.0.1:9004", at)
	}
	ln, err := net.Listen("tcp", at)
	if err != nil {
		return nil, fmt.Errorf("--relay-address: %w", err)
	}
	return ln, nil
}

func addDecisionLogFlag(f *cli.Flags, path *string) {
	f.StringVar(path, "decision-log", "",
		"`file` to which decisions are appended as JSON lines, instead of decisions.log of the configuration")
}

// tenantKey returns the key of tenants' cache salts, by the file of the configuration; nil if it names none.
func tenantKey(g *config.Gateway, log *slog.Logger) (func() []byte, error) {
	if g.TenantSecretFile == "" {
		return nil, nil
	}
	secret, err := listen.OpenToken(g.TenantSecretFile, log)
	if err != nil {
		return nil, fmt.Errorf("gateway.tenantSecretFile: %w", err)
	}
	return secret.Key, nil
}
