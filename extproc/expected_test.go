package extproc

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// TestExpected: workers of agents are counted by model, role and node, or against the plan if that decides.
func TestExpected(t *testing.T) {
	const launches = `
models:
- name: m
  path: "builtin:sim"
  workers: [{name: listed, address: "10.0.0.9:1"}]
  launch:
  - {engine: sim, node: a, count: 2MAX}
  - {engine: sim, node: a, count: 1}
  - {engine: sim, node: b, count: 2}
`
	f := &fleet.Snapshot{Workers: []*fleet.Worker{
		{Name: "a.m-0", Model: "m", State: fleet.Ready}, {Name: "a.m-1", Model: "m", State: fleet.Draining},
		{Name: "a.m-2", Model: "m", State: fleet.Down}, {Name: "listed", Model: "m", State: fleet.Ready},
	}}
	listed := func(name string) bool { return name == "listed" }
	made := plan.Plan{Pools: []plan.Pool{{Model: "m", Replicas: 4}}}
	for planner, want := range map[string]string{
		"": "node a: 2 of 3 workers of model m are there; node b: 0 of 2 workers of model m are there",
		"planner: {connector: local, algorithm: sla, ttft: 1s}":                 "the plan: 2 of 4 workers of model m are there",
		"planner: {connector: local, algorithm: sla, ttft: 1s, advisory: true}": "node a: 2 of 3 workers of model m are there; node b: 0 of 2 workers of model m are there",
	} {
		most := ", max: 4"
		if !strings.Contains(planner, "sla") {
			most = ""
		}
		cfg, err := config.Parse([]byte("apiVersion: stator.dev/v1alpha1\nkind: Stator\n" + planner + strings.Replace(launches, "MAX", most, 1)))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range newExpectations(cfg).compare(made, f, listed) {
			got = append(got, e.String())
		}
		if text := strings.Join(got, "; "); text != want {
			t.Errorf("%s: %s, want %s", planner, text, want)
		}
	}
}
