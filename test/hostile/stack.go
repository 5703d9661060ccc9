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
	"sync"
	"time"

	"github.com/stator-project/stator/envoy"
	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/test/loopback"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/xds"
)

// stack is a gateway: Envoy, its control plane, a router and two simulated engines, each as a process.
type stack struct {
	dir     string
	gateway string // host:port for clients
	admin   string // host:port of the router's admin pages
	router  int    // process id
	ends    []func()

	mu  sync.Mutex
	log strings.Builder // guarded by mu; warnings and errors of all parts
}

// engineSpeedup makes the engines' time negligible.
const engineSpeedup = "1000"

// start starts the parts and waits until a request is served.
func start(ctx context.Context, o *options) (s *stack, err error) {
	s = &stack{}
	defer func() {
		if err != nil {
			s.end()
		}
	}()

	path, err := envoy.Find(o.envoy)
	if err != nil {
		return nil, err
	}
	s.dir, err = os.MkdirTemp("", "hostile-")
	if err != nil {
		return nil, err
	}
	file, err := s.writeConfig(ctx, o)
	if err != nil {
		return nil, err
	}

	s.admin, err = loopback.Address()
	if err != nil {
		return nil, err
	}
	s.router, err = s.run(o.stator, "extproc", "--config", file, "--listen-address", s.socket("extproc"), "--admin-address", s.admin)
	if err != nil {
		return nil, err
	}
	xdsAdmin, err := loopback.Address()
	if err != nil {
		return nil, err
	}
	_, err = s.run(o.stator, "xds", "--config", file, "--listen-address", s.socket("xds"), "--extproc-address", s.socket("extproc"),
		"--admin-address", xdsAdmin)
	if err != nil {
		return nil, err
	}
	if err := s.startEnvoy(ctx, path); err != nil {
		return nil, err
	}
	return s, s.awaitAnswer(ctx)
}

// writeConfig starts two engines and writes a configuration that lists them.
func (s *stack) writeConfig(ctx context.Context, o *options) (path string, err error) {
	s.gateway, err = loopback.Address()
	if err != nil {
		return "", err
	}
	// The memory of prompts is a cache that fills. It is small here, so that growth has another cause.
	text := fmt.Sprintf("apiVersion: %s\nkind: %s\ngateway: {listen: %q, maxBodyBytes: %d, hintsFrom: everyone, hints: headers}\n"+
		"prompts: {memoryBytes: 1048576}\nmodels:\n- name: sim\n  path: \"builtin:sim\"\n  aliases: [alias]\n  workers:\n",
		config.APIVersion, config.Kind, s.gateway, maxBody)
	for i := range 2 {
		address, err := loopback.Address()
		if err != nil {
			return "", err
		}
		_, err = s.run(o.stator, "sim", "--listen-address", address, "--engine-speedup", engineSpeedup, "--log-level", "warn")
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf("  - {name: w%d, address: %q, engine: sim}\n", i, address)
	}
	path = filepath.Join(s.dir, "stator.yaml")
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// run starts a process and keeps what it has to complain about.
func (s *stack) run(path string, args ...string) (pid int, err error) {
	p, err := child.Start(child.Config{Path: path, Args: args, Line: func(line string) {
		if !strings.Contains(line, "level=INFO") {
			s.note(args[0] + ": " + line)
		}
	}})
	if err != nil {
		return 0, err
	}
	s.ends = append(s.ends, func() { p.Stop(context.Background()) })
	return p.PID(), nil
}

func (s *stack) startEnvoy(ctx context.Context, path string) error {
	boot, err := xds.Bootstrap(xds.BootstrapSettings{
		NodeID: "hostile", Admin: "127.0.0.1:0", MaxConnections: 10_000, XDS: s.socket("xds"),
	})
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(noteWriter{s}, &slog.HandlerOptions{Level: slog.LevelError}))
	stop, err := process.StartEnvoy(ctx, envoy.Config{Path: path, Bootstrap: boot, Dir: s.dir, Concurrency: 2, Log: log})
	if stop != nil {
		s.ends = append(s.ends, stop)
	}
	return err
}

// note keeps a line of a part's log.
func (s *stack) note(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const most = 1 << 20
	if s.log.Len() < most {
		s.log.WriteString(line + "\n")
	}
}

// noteWriter keeps what is written to it as lines of the log.
type noteWriter struct{ s *stack }

func (w noteWriter) Write(p []byte) (int, error) {
	w.s.note(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// end stops the parts, last started first.
func (s *stack) end() {
	for i := len(s.ends) - 1; i >= 0; i-- {
		s.ends[i]()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

func (s *stack) socket(name string) string { return "unix://" + filepath.Join(s.dir, name+".sock") }

// awaitAnswer sends a request until it is served.
func (s *stack) awaitAnswer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		resp, err := http.Post("http://"+s.gateway+completionsPath, "application/json", //nolint:noctx // bounded by the loop
			strings.NewReader(`{"model":"sim","prompt":"Are you there?","max_tokens":1}`))
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("the gateway does not serve requests:\n%s", s.log.String())
		}
	}
}
