package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/stator-project/stator/envoy"
	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/test/loopback"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/xds"
)

// fleet is Envoy, its control plane, a router and simulated engines, each as a process.
type fleet struct {
	url string // of the gateway

	o        *options
	progress io.Writer
	dir      string // of sockets and the configuration
	gateway  string // host:port
	admin    string // of the router
	router   *child.Process
	ends     []func()
}

// startFleet starts the parts, and waits until a request is served by a decision.
func startFleet(ctx context.Context, o *options, arm string, progress io.Writer) (f *fleet, err error) {
	f = &fleet{o: o, progress: progress}
	defer func() {
		if err != nil {
			f.stop()
		}
	}()

	f.dir, err = os.MkdirTemp("", "affinity-")
	if err != nil {
		return nil, err
	}
	if err := f.startEngines(arm); err != nil {
		return nil, err
	}
	if err := f.startRouter(); err != nil {
		return nil, err
	}
	module, err := filepath.Abs(o.module)
	if err != nil {
		return nil, err
	}
	_, err = f.run("xds", "--config", f.config(), "--listen-address", f.socket("xds"), "--extproc-address", f.socket("extproc"),
		"--admin-address", "127.0.0.1:0", "--affinity-module", module)
	if err != nil {
		return nil, err
	}
	if err := f.startEnvoy(ctx); err != nil {
		return nil, err
	}
	return f, f.awaitDecision(ctx)
}

func (f *fleet) config() string { return filepath.Join(f.dir, "stator.yaml") }

func (f *fleet) socket(name string) string { return "unix://" + filepath.Join(f.dir, name+".sock") }

// startEngines starts the engines, and writes a configuration that lists them.
func (f *fleet) startEngines(arm string) (err error) {
	f.gateway, err = loopback.Address()
	if err != nil {
		return err
	}
	f.url = "http://" + f.gateway
	f.admin, err = loopback.Address()
	if err != nil {
		return err
	}

	text := fmt.Sprintf("apiVersion: %s\nkind: %s\ngateway: {listen: %q, affinityFilter: %q}\n"+
		"models:\n- name: sim\n  path: \"builtin:sim\"\n  workers:\n", config.APIVersion, config.Kind, f.gateway, arm)
	for i := range f.o.workers {
		address, err := loopback.Address()
		if err != nil {
			return err
		}
		events := fmt.Sprintf("ipc://%s/events-%d", f.dir, i)
		replay := fmt.Sprintf("ipc://%s/replay-%d", f.dir, i)
		_, err = f.run("sim", "--listen-address", address, "--log-level", "warn", "--kv-events", events, "--kv-replay", replay)
		if err != nil {
			return err
		}
		text += fmt.Sprintf("  - {name: w%d, address: %q, engine: sim, kvEvents: %q, kvReplay: %q}\n", i, address, events, replay)
	}
	return os.WriteFile(f.config(), []byte(text), 0o600)
}

// run starts a part of the program. Its errors are printed.
func (f *fleet) run(args ...string) (*child.Process, error) {
	p, err := child.Start(child.Config{Path: f.o.stator, Args: args, Line: func(line string) {
		if strings.Contains(line, "level=ERROR") || !strings.Contains(line, "level=") {
			fmt.Fprintf(f.progress, "%s: %s\n", args[0], line)
		}
	}})
	if err == nil {
		f.ends = append(f.ends, func() { p.Stop(context.Background()) })
	}
	return p, err
}

func (f *fleet) startRouter() (err error) {
	f.router, err = f.run("extproc", "--config", f.config(), "--listen-address", f.socket("extproc"), "--admin-address", f.admin)
	return err
}

// killRouter ends the router at once.
func (f *fleet) killRouter() error {
	if err := syscall.Kill(f.router.PID(), syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the router: %w", err)
	}
	<-f.router.Exited()
	return nil
}

func (f *fleet) startEnvoy(ctx context.Context) error {
	path, err := envoy.Find(f.o.envoy)
	if err != nil {
		return err
	}
	boot, err := xds.Bootstrap(xds.BootstrapSettings{NodeID: "affinity", Admin: "127.0.0.1:0", XDS: f.socket("xds")})
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(f.progress, &slog.HandlerOptions{Level: slog.LevelError}))
	stop, err := process.StartEnvoy(ctx, envoy.Config{Path: path, Bootstrap: boot, Dir: f.dir, Concurrency: 2, Log: log})
	if stop != nil {
		f.ends = append(f.ends, stop)
	}
	return err
}

// startTime bounds the time until the fleet serves, most of which Envoy needs to compile the module.
const startTime = time.Minute

// awaitDecision sends requests until one is served by a decision.
func (f *fleet) awaitDecision(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		decided := f.ask(ctx)
		if decided {
			return nil
		}
		if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("the gateway does not serve requests within %s", startTime)
		}
	}
}

// ask sends a request, and reports whether a router decided it.
func (f *fleet) ask(ctx context.Context) bool {
	const body = `{"model":"sim","prompt":"Are you there?","max_tokens":1}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return false
	}
	req.Header.Set("content-type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK && resp.Header.Get("x-stator-decision") != ""
}

// stop ends the parts, the last started first.
func (f *fleet) stop() {
	for i := len(f.ends) - 1; i >= 0; i-- {
		f.ends[i]()
	}
	_ = os.RemoveAll(f.dir)
}
