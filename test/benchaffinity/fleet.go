package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/test/loopback"
	"github.com/stator-project/stator/test/parts"
	"github.com/stator-project/stator/test/process"
)

// fleet is Envoy, its control plane, a router and simulated engines, each as a process.
type fleet struct {
	url string // of the gateway

	parts  *parts.Parts
	admin  string // of the router
	router *child.Process
}

// startFleet starts the parts, and waits until a request is served by a decision.
func startFleet(ctx context.Context, o *options, arm string, progress io.Writer) (f *fleet, err error) {
	f = &fleet{}
	f.parts, err = parts.New(o.stator, func(part, line string) {
		if strings.Contains(line, "level=ERROR") || !strings.Contains(line, "level=") {
			fmt.Fprintf(progress, "%s: %s\n", part, line)
		}
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.parts.Stop()
		}
	}()

	if err := f.startEngines(o.workers, arm); err != nil {
		return nil, err
	}
	if err := f.startRouter(); err != nil {
		return nil, err
	}
	module, err := filepath.Abs(o.module)
	if err != nil {
		return nil, err
	}
	err = f.parts.RunEnvoy(ctx, parts.Edge{
		Config: f.config(), Envoy: o.envoy, Log: progress, Flags: []string{"--affinity-module", module},
	})
	if err != nil {
		return nil, err
	}
	return f, f.awaitDecision(ctx)
}

func (f *fleet) config() string { return filepath.Join(f.parts.Dir, "stator.yaml") }

// startEngines starts n engines, and writes a configuration that lists them.
func (f *fleet) startEngines(n int, arm string) error {
	gateway, err := loopback.Address()
	if err != nil {
		return err
	}
	f.url = "http://" + gateway
	f.admin, err = loopback.Address()
	if err != nil {
		return err
	}

	text := fmt.Sprintf("apiVersion: %s\nkind: %s\ngateway: {listen: %q, affinityFilter: %q}\n"+
		"models:\n- name: sim\n  path: \"builtin:sim\"\n  workers:\n", config.APIVersion, config.Kind, gateway, arm)
	for i := range n {
		address, err := loopback.Address()
		if err != nil {
			return err
		}
		events := fmt.Sprintf("ipc://%s/events-%d", f.parts.Dir, i)
		replay := fmt.Sprintf("ipc://%s/replay-%d", f.parts.Dir, i)
		_, err = f.parts.Run("sim", "--listen-address", address, "--log-level", "warn", "--kv-events", events, "--kv-replay", replay)
		if err != nil {
			return err
		}
		text += fmt.Sprintf("  - {name: w%d, address: %q, engine: sim, kvEvents: %q, kvReplay: %q}\n", i, address, events, replay)
	}
	return os.WriteFile(f.config(), []byte(text), 0o600)
}

func (f *fleet) startRouter() (err error) {
	f.router, err = f.parts.RunRouter(f.config(), f.admin)
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

// startTime bounds the time until the fleet serves, most of which Envoy needs to compile the module.
const startTime = time.Minute

// awaitDecision sends requests until one is served by a decision.
func (f *fleet) awaitDecision(ctx context.Context) error {
	return process.Await(ctx, startTime, func(ctx context.Context) error {
		if !f.sendRequest(ctx) {
			return errors.New("the gateway does not serve requests by decisions")
		}
		return nil
	})
}

// sendRequest sends a request, and reports whether a router decided it.
func (f *fleet) sendRequest(ctx context.Context) bool {
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
