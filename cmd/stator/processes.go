package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/extproc"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/grpcserve"
	"github.com/stator-project/stator/planner"
	"github.com/stator-project/stator/workeragent"
	"github.com/stator-project/stator/xds"
)

// process is what the commands that run one part have in common: a configuration file, a bus,
// an admin port, a log, and an end.
type process struct {
	name     string
	env      environment
	flags    *flagSet
	file     string
	busURL   string
	adminAt  string
	logFlags *logFlags

	cfg   *config.Config
	log   *slog.Logger
	reg   *prometheus.Registry
	bus   *bus.Bus // nil where no bus is configured
	admin net.Listener
	group run.Group
}

// newProcess adds the common flags to f.
func newProcess(env environment, f *flagSet, name, adminAt string) *process {
	p := &process{name: name, env: env, flags: f, reg: newRegistry()}
	f.StringVar(&p.file, "config", "", "configuration `file`; see docs/configuration.md")
	f.StringVar(&p.busURL, "bus", "", "NATS `url`, instead of bus.url of the file")
	f.StringVar(&p.adminAt, "admin-address", adminAt, "`address` of the admin port")
	p.logFlags = addLogFlags(f)
	return p
}

// open reads the configuration and opens the admin port.
func (p *process) open() (err error) {
	if p.log, err = p.logFlags.logger(p.env.err); err != nil {
		return err
	}
	if p.file == "" {
		return p.flags.usageError("name the configuration file with --config")
	}
	if p.cfg, err = readConfig(p.file); err != nil {
		return err
	}
	if p.busURL != "" {
		p.cfg.Bus.URL = p.busURL
	}
	if p.admin, err = listen(p.adminAt, "--admin-address"); err != nil {
		return err
	}
	return nil
}

// join joins the bus, where one is configured. lost is called when it breaks, and may be nil.
func (p *process) join(ctx context.Context, lost func()) (err error) {
	if p.cfg.Bus.URL != "" {
		p.bus, err = joinBus(ctx, p.cfg, p.name, nil, p.log, p.reg, lost)
	}
	return err
}

// openOnBus opens a part that can do nothing without a bus, and joins that.
func (p *process) openOnBus(ctx context.Context) error {
	if err := p.open(); err != nil {
		return err
	}
	if p.cfg.Bus.URL == "" {
		return fmt.Errorf("stator %s needs a bus: set bus.url in %s, or pass --bus URL; `stator bus` runs one", p.name, p.file)
	}
	return p.join(ctx, nil)
}

// part adds something that runs until its context ends.
func (p *process) part(f func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	p.group.Add(func() error { return f(ctx) }, func(error) { stop() })
}

// run serves until ctx ends or a part fails.
func (p *process) run(ctx context.Context, s admin.Sources) error {
	s.Metrics = p.reg
	if s.Ready == nil {
		s.Ready = func() error { return nil }
	}
	p.part(func(inner context.Context) error {
		select {
		case <-ctx.Done():
		case <-inner.Done():
		}
		return nil
	})
	p.part(func(ctx context.Context) error { return serveAdmin(ctx, p.admin, s) })
	p.log.Info("serving", "part", p.name, "admin", p.admin.Addr().String())
	err := p.group.Run()
	if p.bus != nil {
		p.bus.Close()
	}
	if ctx.Err() == nil {
		return err
	}
	p.log.Info("stopped", "part", p.name)
	return nil
}

const extProcAbout = `Runs the router: Envoy's external processor, and the receiver of its access log on the same
port. With a bus it takes its workers from there; without one, from the file, and reads
their event sockets itself: that is how it joins an Envoy that is already there.`

func runExtProc(ctx context.Context, env environment, args []string) error {
	f := flags(env, "extproc", extProcAbout)
	p := newProcess(env, f, "extproc", "127.0.0.1:8081")
	at := f.String("listen-address", "127.0.0.1:9002", "`address` for Envoy, ip:port or unix:///path")
	decisions := ""
	addDecisionLogFlag(f, &decisions)
	if err := parse(f, args); err != nil {
		return err
	}
	if err := p.open(); err != nil {
		return err
	}
	p.cfg.Decisions.Log = cmp.Or(decisions, p.cfg.Decisions.Log)
	router, err := extproc.New(extproc.Config{Settings: p.cfg, Log: p.log, Metrics: p.reg})
	if err != nil {
		return err
	}
	if err := p.join(ctx, router.BusLost); err != nil {
		return err
	}
	ln, err := listen(*at, "--listen-address")
	if err == nil {
		err = ln.Close() // the address is free; the router listens when it knows its fleet
	}
	if err != nil {
		return err
	}

	p.part(func(ctx context.Context) error {
		return router.Run(ctx, extproc.RunConfig{
			Listen: func() (net.Listener, error) { return listen(*at, "--listen-address") },
			Bus:    p.bus, AwaitFleet: true,
		})
	})
	p.part(func(ctx context.Context) error { return watchConfig(ctx, p.file, p.log, router.Reload) })
	return p.run(ctx, admin.Sources{
		Ready: router.ReadyModels, Fleet: router.Fleet().Snapshot, Router: router.Routes(), Feed: router.Feed(), Peers: router.Peers(),
	})
}

func addDecisionLogFlag(f *flagSet, path *string) {
	f.StringVar(path, "decision-log", "", "`file` to which decisions are appended as JSON lines, instead of decisions.log of the file")
}

const xdsAbout = `Runs the control plane: serves listeners, routes, clusters and endpoints to any number of
Envoys over delta ADS. ` + "`stator envoy bootstrap`" + ` prints what such an Envoy starts with.`

func runXDS(ctx context.Context, env environment, args []string) error {
	f := flags(env, "xds", xdsAbout)
	p := newProcess(env, f, "xds", "127.0.0.1:8082")
	at := f.String("listen-address", "127.0.0.1:9003", "`address` for Envoys, ip:port or unix:///path")
	var routers textList
	f.Var(&routers, "extproc-address", "`address` at which Envoys reach a router; may be given more than once (default 127.0.0.1:9002)")
	if err := parse(f, args); err != nil {
		return err
	}
	if len(routers) == 0 {
		routers = textList{"127.0.0.1:9002"}
	}
	for _, address := range routers {
		if err := xds.CheckRouterAddress(address); err != nil {
			return f.usageError("--extproc-address %s: %v", address, err)
		}
	}
	if err := p.open(); err != nil {
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
	if err := discovery.File(workers, members); err != nil {
		return err
	}
	ln, err := listen(*at, "--listen-address")
	if err != nil {
		return err
	}
	srv, g := xds.NewServer(xdsSettings(p.cfg, routers), members, p.log, p.reg), grpc.NewServer(xds.Options()...)
	p.part(func(ctx context.Context) error {
		srv.Register(ctx, g)
		return grpcserve.Run(ctx, g, ln, srv.Run)
	})
	if p.bus != nil {
		p.part(func(ctx context.Context) error {
			return discovery.Bus(ctx, discovery.Config{Bus: p.bus, Fleet: members, Log: p.log, Keep: discovery.Names(workers)})
		})
	}
	p.part(func(ctx context.Context) error {
		return watchConfig(ctx, p.file, p.log, func(cfg *config.Config) error {
			srv.Reload(xdsSettings(cfg, routers))
			return nil
		})
	})
	return p.run(ctx, admin.Sources{Fleet: members.Snapshot})
}

const plannerAbout = `Runs the planner: watches the fleet on the bus and publishes a plan there. Today a plan is
the replicas that the configuration names, and says so.`

func runPlanner(ctx context.Context, env environment, args []string) error {
	f := flags(env, "planner", plannerAbout)
	p := newProcess(env, f, "planner", "127.0.0.1:8083")
	if err := parse(f, args); err != nil {
		return err
	}
	if err := p.openOnBus(ctx); err != nil {
		return err
	}
	members := fleet.New(fleet.Hooks{})
	wanted, err := pools(p.cfg)
	if err != nil {
		return err
	}
	pl := planner.New(wanted, members, p.bus, p.log, p.reg)
	p.part(pl.Run)
	p.part(func(ctx context.Context) error {
		return discovery.Bus(ctx, discovery.Config{Bus: p.bus, Fleet: members, Log: p.log})
	})
	p.part(func(ctx context.Context) error {
		return watchConfig(ctx, p.file, p.log, func(cfg *config.Config) error {
			next, err := pools(cfg)
			if err == nil {
				pl.Reload(next)
			}
			return err
		})
	})
	return p.run(ctx, admin.Sources{Fleet: members.Snapshot, Plan: pl.Current})
}

const agentAbout = `Runs a node agent: launches the engines that the configuration names for its node, keeps
them alive, and says on the bus what they are, hold and do.`

func runAgent(ctx context.Context, env environment, args []string) error {
	f := flags(env, "agent", agentAbout)
	p := newProcess(env, f, "agent", "127.0.0.1:8084")
	node := f.String("node", "", "this agent's `name`: it starts the launches with this node (default: those with none)")
	if err := parse(f, args); err != nil {
		return err
	}
	if err := p.openOnBus(ctx); err != nil {
		return err
	}
	wanted, err := launches(p.cfg, *node)
	if err != nil {
		return err
	}
	a, err := workeragent.New(workeragent.Config{Launches: wanted, Bus: p.bus, Log: p.log, Metrics: p.reg, IndexBytes: p.cfg.Index.AgentBytes, Hard: env.hard})
	if err != nil {
		return err
	}
	p.part(a.Run)
	return p.run(ctx, admin.Sources{})
}

const busAbout = `Runs the message bus: an embedded NATS server whose data stay in memory. Any NATS server
with JetStream does as well.`

func runBus(ctx context.Context, env environment, args []string) error {
	f := flags(env, "bus", busAbout)
	at := f.String("listen-address", "127.0.0.1:4222", "`address` for the other parts")
	lf := addLogFlags(f)
	if err := parse(f, args); err != nil {
		return err
	}
	log, err := lf.logger(env.err)
	if err != nil {
		return err
	}
	if err := free(*at, "--listen-address"); err != nil {
		return err
	}
	address, err := net.ResolveTCPAddr("tcp", *at)
	if err != nil {
		return fmt.Errorf("--listen-address: %w", err)
	}
	dir, err := os.MkdirTemp("", "stator-bus-")
	if err != nil {
		return fmt.Errorf("make a folder for the bus: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	e, err := bus.Embed(bus.EmbedConfig{Host: address.IP.String(), Port: address.Port, Dir: filepath.Join(dir, "nats")})
	if err != nil {
		return err
	}
	log.Info("serving", "part", "bus", "url", e.URL())
	<-ctx.Done()
	e.Close()
	log.Info("stopped", "part", "bus")
	return nil
}
