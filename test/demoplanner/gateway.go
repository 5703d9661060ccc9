package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/stator-project/stator/test/process"
)

// The shape of the requests. Each token of the simulated engines lasts as long as tokenScale.
const (
	tokenScale   = 8
	promptTokens = 250
	answerTokens = 25
)

// start starts the gateway and waits until it serves.
func start(ctx context.Context, o options) (*process.Gateway, error) {
	configuration := fmt.Sprintf(`apiVersion: stator.dev/v1alpha1
kind: Stator
planner: {algorithm: sla, connector: local, interval: 1s, ttft: %v, itl: 250ms, downAfter: 10s, drainTimeout: 20s}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 1, min: 1, max: %d, startUp: %v, args: {tokenScale: %d, startup: %v}}]
`, o.ttft, o.workers, o.startUp, tokenScale, o.startUp)
	return process.StartGateway(ctx, process.GatewayConfig{
		Stator: o.stator, Envoy: o.envoy, LogLevel: "warn", Configuration: configuration,
	})
}

// planned is the part of /debug/plan that is shown.
type planned struct {
	Replicas int     `json:"replicas"`
	Ready    int     `json:"ready"`
	Rate     float64 `json:"requests_per_second"`
	Expected float64 `json:"expected_requests_per_second"`
	Reason   string  `json:"reason"`
}

// currentPlan returns the present plan of the only pool.
func currentPlan(ctx context.Context, g *process.Gateway) (planned, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.Admin+"/debug/plan?format=json", nil)
	if err != nil {
		return planned{}, err
	}
	resp, err := g.Client.Do(req)
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
