package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/admin/history"
	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/listen"
)

// process is the common part of the commands that run one part: a configuration file, a bus, an admin
// port, a log, and a group of tasks that end together.
type process struct {
	name     string
	env      environment
	flags    *cli.Flags
	file     string
	busURL   string
	adminAt  string
	scrapeAt string
	doors    listen.Doors
	logFlags *cli.LogFlags

	pools     pools  // without flags for them there are none
	stopPools func() // nil before they run

	closeMetrics func() // nil without a port for metrics

	cfg *config.Config
	// followed follows the file; nil without one.
	followed *configfile.Follower
	engines  *enginetls.Client // nil without TLS to engines
	log      *slog.Logger
	reg      *prometheus.Registry
	bus      *bus.Bus // nil if no bus is configured
	admin    *adminPort
	group    run.Group
}

// newProcess adds the common flags to f.
func newProcess(env environment, f *cli.Flags, name, adminAt string) *process {
	p := &process{name: name, env: env, flags: f, reg: newRegistry()}
	f.StringVar(&p.file, "config", "", "configuration `file`; see docs/configuration.md")
	f.StringVar(&p.busURL, "bus", "", "NATS `url`, instead of bus.url of the file")
	f.StringVar(&p.adminAt, "admin-address", adminAt, "`address` of the admin port")
	f.StringVar(&p.scrapeAt, "metrics-address", "",
		"`ip:port` of a further port that serves /metrics alone, without token and TLS: for Prometheus (default none; the admin port has "+
			"/metrics, too)")
	p.doors.AddFlags(f.FlagSet, "its listeners")
	p.logFlags = cli.AddLogFlags(f)
	return p
}

// open reads the configuration and serves the admin port. Until the part runs, its pages show that it waits.
func (p *process) open() (err error) {
	p.log, err = p.logFlags.Logger(p.env.err)
	if err != nil {
		return err
	}
	if err := p.read(); err != nil {
		return err
	}
	if p.busURL != "" {
		p.cfg.Bus.URL = p.busURL
		if bus.HasSecret(p.busURL) {
			p.log.Warn("every user of this machine can read the login in --bus: use bus.user and bus.passwordFile")
		}
	}

	p.engines, err = openEngines(p.cfg, p.log)
	if err != nil {
		return err
	}
	p.admin, err = openAdmin(p.adminAt, &p.doors, p.log, p.reg)
	if err == nil && p.scrapeAt != "" {
		p.closeMetrics, err = openMetrics(p.scrapeAt, p.log, p.reg)
	}
	return err
}

// openEngines reads the certificates of connections to engines; nil without TLS.
func openEngines(cfg *config.Config, log *slog.Logger) (*enginetls.Client, error) {
	t := &cfg.EngineTLS
	return enginetls.New(enginetls.Settings{
		CA: t.CAFile, Cert: t.CertFile, Key: t.KeyFile, ServerName: t.ServerName, Except: t.Excepted(),
	}, log)
}

// partNames are the names of the parts in the configuration's changes, by command.
var partNames = map[string]string{"extproc": "routers", "xds": "control planes", "agent": "agents", "planner": "the planner"}

// read reads the configuration file. A part that finds its models in a cluster needs none.
func (p *process) read() (err error) {
	read := configfile.Read
	if p.pools.wanted() {
		read = configfile.ReadPartial
	}
	switch {
	case p.file != "":
		p.followed, p.cfg, err = configfile.NewFollower(configfile.FollowerConfig{
			Path: p.file, Read: read, Part: partNames[p.name], Log: p.log, Metrics: p.reg,
		})
		return err
	case p.pools.wanted():
		p.cfg = config.Default()
		return nil
	}
	return p.flags.UsageError("name the configuration file with --config")
}

// close stops what open has started. It is called once, when the command ends.
func (p *process) close() {
	if p.stopPools != nil {
		p.stopPools()
	}
	if p.closeMetrics != nil {
		p.closeMetrics()
	}
	if p.admin != nil {
		p.admin.close()
	}
}

// join connects to the bus if one is configured. lost is called when the connection breaks; it may be nil. Until the bus is there, the
// log and /readyz show that the part waits for it.
func (p *process) join(ctx context.Context, lost func()) (err error) {
	if p.cfg.Bus.URL == "" {
		return nil
	}

	url := bus.Redacted(p.cfg.Bus.URL)
	p.show(func() error { return fmt.Errorf("waiting for the bus at %s", url) })
	p.bus, err = joinBus(ctx, p.cfg, p.name, nil, p.log.With("admin", p.admin.address()), p.reg, lost)
	return err
}

// show has /readyz show why the part does not serve yet.
func (p *process) show(reason func() error) {
	p.admin.show(admin.Sources{Metrics: p.reg, Ready: reason})
}

// openOnBus opens a part that needs a bus, and connects to the bus.
func (p *process) openOnBus(ctx context.Context) error {
	if err := p.open(); err != nil {
		return err
	}
	if p.cfg.Bus.URL == "" {
		return fmt.Errorf("stator %s needs a bus: set bus.url in %s, or pass --bus URL; `stator bus` runs one", p.name, p.file)
	}
	return p.join(ctx, nil)
}

// part adds a task that runs until its context ends.
func (p *process) part(f func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	p.group.Add(func() error { return f(ctx) }, func(error) { stop() })
}

// runParts serves until ctx ends or a part fails.
func (p *process) runParts(ctx context.Context, s admin.Sources) error {
	s.Metrics, s.Engines = p.reg, p.engines
	if p.followed != nil {
		s.Config = p.followed.Status
	}
	if s.Ready == nil {
		s.Ready = func() error { return nil }
	}
	// Without its bus a part serves the last state that it knew. An agent serves nothing else, and has it in Ready.
	own := s.Degraded
	s.Degraded = func() (err error) {
		if p.bus != nil {
			err = p.bus.Err()
		}
		if p.pools.source != nil {
			err = errors.Join(err, p.pools.source.Err())
		}
		err = errors.Join(err, p.followed.Degraded())
		if own != nil {
			err = errors.Join(err, own())
		}
		return err
	}

	if s.Router != nil {
		s.History = history.New(p.reg)
		p.part(s.History.Run)
	}
	p.part(func(inner context.Context) error {
		select {
		case <-ctx.Done():
		case <-inner.Done():
		}
		return nil
	})

	p.admin.show(s)
	p.part(p.admin.wait)
	p.log.Info("serving", "part", p.name, "admin", p.admin.address())
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
