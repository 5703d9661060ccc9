package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/stator-project/stator/test/loopback"
)

// The shape of the requests. Each token of the simulated engines lasts as long as tokenScale.
const (
	tokenScale   = 8
	promptTokens = 250
	answerTokens = 25
)

// gateway is a running `stator up`.
type gateway struct {
	cmd        *exec.Cmd
	log        *bytes.Buffer
	dir        string
	url, admin string
	client     *http.Client
}

// start starts the gateway and waits until it serves.
func start(ctx context.Context, o options) (*gateway, error) {
	listen, err := loopback.Address()
	if err != nil {
		return nil, err
	}
	admin, err := loopback.Address()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "demoplanner-")
	if err != nil {
		return nil, err
	}

	g := &gateway{dir: dir, log: &bytes.Buffer{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512}}}
	g.url, g.admin = "http://"+listen, "http://"+admin
	file := filepath.Join(dir, "stator.yaml")
	text := fmt.Sprintf(`apiVersion: stator.dev/v1alpha1
kind: Stator
planner: {algorithm: sla, connector: local, interval: 1s, ttft: %v, itl: 250ms, downAfter: 10s, drainTimeout: 20s}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 1, min: 1, max: %d, startUp: %v, args: {tokenScale: %d, startup: %v}}]
`, o.ttft, o.workers, o.startUp, tokenScale, o.startUp)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}

	args := []string{"up", "--config", file, "--listen-address", listen, "--admin-address", admin, "--log-level", "warn"}
	if o.envoy != "" {
		args = append(args, "--envoy", o.envoy)
	}
	g.cmd = exec.CommandContext(context.WithoutCancel(ctx), o.stator, args...)
	g.cmd.Stdout, g.cmd.Stderr = g.log, g.log
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is ours to pass on
	if err := g.cmd.Start(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("start %s: %w", o.stator, err)
	}

	if err := g.await(ctx); err != nil {
		g.stop()
		return nil, fmt.Errorf("%w\n%s", err, g.log)
	}
	return g, nil
}

// await returns when the gateway is ready.
func (g *gateway) await(ctx context.Context) error {
	for range 600 {
		if resp, err := g.client.Get(g.admin + "/readyz"); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.New("the gateway is not ready after a minute")
}

// stop ends the gateway and all that it has started.
func (g *gateway) stop() {
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	_ = g.cmd.Wait()
	_ = os.RemoveAll(g.dir)
}

// planned is the part of /debug/plan that is shown.
type planned struct {
	Replicas int     `json:"replicas"`
	Ready    int     `json:"ready"`
	Rate     float64 `json:"requests_per_second"`
	Expected float64 `json:"expected_requests_per_second"`
	Reason   string  `json:"reason"`
}

// plan returns the present plan of the only pool.
func (g *gateway) plan(ctx context.Context) (planned, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.admin+"/debug/plan?format=json", nil)
	if err != nil {
		return planned{}, err
	}
	req.Header.Set("accept", "application/json")
	resp, err := g.client.Do(req)
	if err != nil {
		return planned{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	var page struct {
		Pools []planned `json:"pools"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&page); err != nil {
		return planned{}, fmt.Errorf("read /debug/plan: %w", err)
	}
	if len(page.Pools) != 1 {
		return planned{}, fmt.Errorf("/debug/plan has %d pools", len(page.Pools))
	}
	return page.Pools[0], nil
}
