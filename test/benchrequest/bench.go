package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/envoy"
	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/test/loopback"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/xds"
)

// setup is one way to serve requests.
type setup struct {
	name    string
	warm    bool   // the measured requests continue known turns
	gateway string // where clients connect
	envoy   int    // process id
	extproc int    // process id; 0 if there is none
	admin   string // its admin port, for profiles
	pool
	witness
}

// bench is everything that runs.
type bench struct {
	*options
	envoyPath string
	dir       string
	progress  *lines
	workers   *workers
	prefills  *workers // nil without --legs
	setups    []*setup
	ends      []func() // in the order in which parts were started
	failed    context.CancelCauseFunc
	broken    context.Context // ends when a part ends by itself
}

// begin starts all set-ups and returns when each has served a request.
func begin(ctx context.Context, o *options, progress io.Writer) (b *bench, err error) {
	b = &bench{options: o, progress: &lines{out: progress}}
	b.broken, b.failed = context.WithCancelCause(ctx)

	defer func() {
		if err != nil {
			b.end()
		}
	}()

	b.envoyPath, err = envoy.Find(o.envoy)
	if err != nil {
		return b, err
	}
	for _, program := range []string{o.stator, o.before} {
		if program == "" {
			continue
		}
		if _, err := os.Stat(program); err != nil {
			return b, fmt.Errorf("%w: run `make build`, or name the program with --stator or --before", err)
		}
	}

	b.dir, err = os.MkdirTemp("", "benchrequest-")
	if err != nil {
		return b, fmt.Errorf("make a folder for sockets: %w", err)
	}

	b.workers, err = startWorkers(4, answerAll)
	if err != nil {
		return b, fmt.Errorf("start workers: %w", err)
	}

	for _, start := range []func() error{
		b.startPlain, b.startEmpty, b.startOurs, b.startBefore, b.startDuplex, b.startFrontDoor, b.startLegs,
	} {
		if err := start(); err != nil {
			return b, err
		}
	}
	return b, nil
}

// end stops everything, last started first.
func (b *bench) end() {
	b.failed(nil)
	b.progress.close() // from here on the parts log the ends of each other

	for i := len(b.ends) - 1; i >= 0; i-- {
		b.ends[i]()
	}
	for _, w := range []*workers{b.workers, b.prefills} {
		if w != nil {
			w.stop()
		}
	}
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}

func (b *bench) startPlain() error {
	path, cfg, err := b.writeConfig("plain", b.four())
	if err != nil {
		return err
	}

	boot, err := plainBootstrap(cfg)
	if err != nil {
		return err
	}

	pid, err := b.startEnvoy("plain", boot)
	if err != nil {
		return err
	}

	b.setups = append(b.setups, &setup{name: plainName, gateway: cfg.Gateway.Listen, envoy: pid, witness: plainWitness{}})
	return b.awaitAnswer(path, cfg.Gateway.Listen, plainWitness{})
}

func (b *bench) startEmpty() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}

	admin, err := loopback.Address()
	if err != nil {
		return err
	}

	socket := b.socket("empty")
	pid, err := b.start("the empty handler", self, emptyCommand, socket, admin)
	if err != nil {
		return err
	}

	w := emptyWitness{admin}
	s := &setup{name: emptyName, extproc: pid, admin: admin, witness: w}
	b.setups = append(b.setups, s)
	file, cfg, err := b.writeConfig("empty", b.four())
	if err != nil {
		return err
	}

	s.envoy, err = b.startGateway("empty", b.stator, file, socket)
	if err != nil {
		return err
	}

	s.gateway = cfg.Gateway.Listen
	return b.awaitAnswer(file, s.gateway, w)
}

func (b *bench) startOurs() error {
	return b.startRouter("ours", b.stator, coldName, warmName, b.four())
}

// startBefore starts the older program, if there is one.
func (b *bench) startBefore() error {
	if b.before == "" || b.legs {
		return nil // --legs has other set-ups of it
	}
	return b.startRouter("before", b.before, beforeColdName, beforeWarmName, b.four())
}

// startDuplex starts a router and an Envoy that sends it bodies in pieces, if that is asked for.
func (b *bench) startDuplex() error {
	if !b.duplex {
		return nil
	}
	const name = "duplex"
	r, err := b.startExtproc(name, b.stator, b.four())
	if err != nil {
		return err
	}
	boot, err := duplexBootstrap(r.cfg, r.socket)
	if err != nil {
		return err
	}
	proxy, err := b.startEnvoy(name, boot)
	if err != nil {
		return err
	}
	s := r.setup(duplexName, proxy)
	b.setups = append(b.setups, s)
	return b.awaitAnswer(r.file, s.gateway, s.witness)
}

// clientKey is the API key that all clients send. Only the front door reads it.
const clientKey = "key-of-benchrequest"

// clientTenant is the tenant that all clients name. Only the set-up with tenants reads it.
const clientTenant = "red"

// startFrontDoor starts two routers with an Envoy each, if that is asked for: one has tenants by a header, as behind a proxy of an
// operator, and one has keys, tenants, limits, both access logs and tokens of answers.
func (b *bench) startFrontDoor() error {
	if !b.frontDoor {
		return nil
	}
	trusted, err := loopback.Address()
	if err != nil {
		return err
	}
	tenants := b.four()
	tenants.gateway = fmt.Sprintf(", trustedListen: %q, tenantHeader: x-tenant", trusted)
	if err := b.startRouter("tenants", b.stator, tenantsColdName, tenantsWarmName, tenants); err != nil {
		return err
	}

	keys := filepath.Join(b.dir, "keys.yaml")
	if err := os.WriteFile(keys, []byte("- {tenant: "+clientTenant+", key: "+clientKey+"}\n"), 0o600); err != nil {
		return err
	}
	p := b.four()
	p.gateway = fmt.Sprintf(", auth: {keysFile: %q}, accessLog: %q, answerTokens: true, limits: {requestsPerMinute: 0, "+
		"promptTokensPerMinute: 1000000000, answerTokensPerMinute: 1000000000}", keys, filepath.Join(b.dir, "access.log"))
	return b.startRouter("front-door", b.stator, doorColdName, doorWarmName, p)
}

// router is a running extproc.
type router struct {
	file   string // its configuration
	cfg    *config.Config
	socket string
	admin  string
	pid    int
	pool   pool
}

// setup returns the set-up of a router and an Envoy that asks it.
func (r *router) setup(name string, envoy int) *setup {
	gateway := cmp.Or(r.cfg.Gateway.TrustedListen, r.cfg.Gateway.Listen)
	s := &setup{name: name, gateway: gateway, envoy: envoy, extproc: r.pid, admin: r.admin, pool: r.pool}
	s.witness = ourWitness{r.admin}
	if r.pool.prefills != nil {
		s.witness = legsWitness{ourWitness{r.admin}}
	}
	return s
}

// startExtproc starts a program's router.
func (b *bench) startExtproc(name, program string, p pool) (*router, error) {
	admin, err := loopback.Address()
	if err != nil {
		return nil, err
	}

	file, cfg, err := b.writeConfig(name, p)
	if err != nil {
		return nil, err
	}

	socket := b.socket(name)
	pid, err := b.start(program+" extproc", program, "extproc", "--config", file, "--listen-address", socket, "--admin-address", admin)
	if err != nil {
		return nil, err
	}
	return &router{file: file, cfg: cfg, socket: socket, admin: admin, pid: pid, pool: p}, nil
}

// startRouter starts a program's router and control plane with an Envoy, as two set-ups.
func (b *bench) startRouter(name, program, coldName, warmName string, p pool) error {
	r, err := b.startExtproc(name, program, p)
	if err != nil {
		return err
	}
	proxy, err := b.startGateway(name, program, r.file, r.socket)
	if err != nil {
		return err
	}

	cold := r.setup(coldName, proxy)
	warm := *cold
	warm.name, warm.warm = warmName, true
	b.setups = append(b.setups, cold, &warm)
	return b.awaitAnswer(r.file, cold.gateway, cold.witness)
}

// startGateway starts a program's control plane for the file, and an Envoy that gets everything from it.
func (b *bench) startGateway(name, program, file, extproc string) (pid int, err error) {
	admin, err := loopback.Address()
	if err != nil {
		return 0, err
	}

	socket := b.socket(name + "-xds")
	_, err = b.start(program+" xds", program, "xds", "--config", file, "--listen-address", socket, "--extproc-address", extproc,
		"--admin-address", admin)
	if err != nil {
		return 0, err
	}

	boot, err := xds.Bootstrap(xds.BootstrapSettings{NodeID: name, Admin: "127.0.0.1:0", MaxConnections: 10_000, XDS: socket})
	if err != nil {
		return 0, err
	}
	return b.startEnvoy(name, boot)
}

func (b *bench) startEnvoy(name string, boot []byte) (pid int, err error) {
	dir := filepath.Join(b.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, err
	}

	log := slog.New(slog.NewTextHandler(b.progress, nil))
	p, err := envoy.Start(envoy.Config{Path: b.envoyPath, Bootstrap: boot, Dir: dir, Concurrency: b.threads, Log: log})
	if err != nil {
		return 0, err
	}

	b.watch("envoy of "+name, p.Run, p.Stop)
	if err := p.WaitReady(b.broken); err != nil {
		return 0, err
	}
	return p.PID(), nil
}

// start runs one of our processes, and shows its output except for information.
func (b *bench) start(what, path string, args ...string) (pid int, err error) {
	p, err := child.Start(child.Config{Path: path, Args: args, Line: func(line string) {
		if !strings.Contains(line, "level=INFO") {
			_, _ = fmt.Fprintf(b.progress, "%s: %s\n", what, line)
		}
	}})

	if err != nil {
		return 0, err
	}

	b.watch(what, p.Wait, p.Stop)
	return p.PID(), nil
}

// watch breaks the run when a process ends by itself, and has it stopped at the end.
func (b *bench) watch(what string, wait func() error, stop func(context.Context)) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.failed(fmt.Errorf("%s has ended: %w", what, wait()))
	}()
	b.ends = append(b.ends, func() {
		stop(context.Background())
		<-ended
	})
}

// pool is one way to configure workers.
type pool struct {
	gateway  string   // further members of the gateway, in YAML, each after a comma
	router   string   // members of the model's router, in YAML
	workers  string   // lines of the model's workers, in YAML
	prefills *workers // that compute the prompts; nil if the worker that answers does
	single   bool     // one worker answers all requests
}

// computed returns how many prompts the prefill workers have computed.
func (p *pool) computed() int64 {
	if p.prefills == nil {
		return 0
	}
	return p.prefills.served.Load()
}

// four returns the pool of most set-ups: all workers.
func (b *bench) four() pool {
	var text strings.Builder
	for i, address := range b.workers.addresses {
		fmt.Fprintf(&text, "  - {name: w%d, address: %q}\n", i, address)
	}
	return pool{router: "policy: kv", workers: text.String()}
}

// writeConfig writes the configuration of a gateway on a free port.
func (b *bench) writeConfig(name string, p pool) (path string, cfg *config.Config, err error) {
	listen, err := loopback.Address()
	if err != nil {
		return "", nil, err
	}

	// The workers here answer at once and publish no KV events. The router cannot learn the time of their
	// prefills, and a cost in time would send short prompts away from their caches.
	text := fmt.Sprintf("apiVersion: %s\nkind: %s\ngateway: {listen: %q%s}\nmodels:\n- name: sim\n  path: %q\n  router: {%s}\n  "+
		"workers:\n%s", config.APIVersion, config.Kind, listen, p.gateway, b.model, p.router, p.workers)
	cfg, err = config.Parse([]byte(text))
	if err != nil {
		return "", nil, err
	}

	path = filepath.Join(b.dir, name+".yaml")
	return path, cfg, os.WriteFile(path, []byte(text), 0o600)
}

// awaitAnswer sends requests until one is served as it should be.
func (b *bench) awaitAnswer(file, gateway string, w witness) error {
	text := newCorpus("probe", "Are you there? ")
	err := process.Await(b.broken, 30*time.Second, func(ctx context.Context) error {
		before, err := w.read(ctx)
		if err != nil {
			return err
		}
		c, err := dial(gateway, 1)
		if err != nil {
			return err
		}
		defer c.close()

		_, _, err = c.sendAll(ctx, 1, func(dst []byte, _ int) []byte {
			return dialogue{seed: 1, chars: least}.appendBody(dst, text, 1)
		})
		if err != nil {
			return err
		}
		return process.Await(ctx, 5*time.Second, func(ctx context.Context) error {
			now, err := w.read(ctx)
			if err != nil {
				return err
			}
			return w.prove(now.since(before), 1)
		})
	})
	if err != nil {
		return fmt.Errorf("serve %s: %w", filepath.Base(file), err)
	}
	return nil
}

func (b *bench) socket(name string) string { return "unix://" + filepath.Join(b.dir, name+".sock") }

// lines lets many goroutines write to one writer, until it is closed.
type lines struct {
	mu  sync.Mutex
	out io.Writer // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

func (l *lines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out = io.Discard
}
