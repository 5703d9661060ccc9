package scenario

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// onTwoNodes is a model with four engines on two nodes, each of which has room for three.
const onTwoNodes = `
planner: {connector: local, interval: 1s, drainTimeout: 20s}
models:
- name: sim
  path: "builtin:sim"
  launch:
  - {engine: sim, node: a, count: 2, min: 1, max: 3}
  - {engine: sim, node: b, count: 2, min: 1, max: 3}
`

// TestPlanAcrossAgents: two agents, each of a node, share the engines of a plan. When a node is lost the other one starts what it has
// room for, and what is missing starts when the node is back. The second planner takes over from the first.
func TestPlanAcrossAgents(t *testing.T) {
	t.Parallel()
	p := startPartsFor(t, partsSettings{models: onTwoNodes, agent: []string{"--node", "a"}})
	p.awaitNodes(map[string]int{"a": 3})
	start(t, "agent", "--config", p.file, "--node", "b", "--admin-address", "127.0.0.1:0")
	secondAdmin := freeAddress(t)
	start(t, "planner", "--config", p.file, "--admin-address", secondAdmin)
	p.awaitEngines(4) // nodes that start together have two each, or three and one

	p.agent.kill()
	p.awaitNodes(map[string]int{"b": 3})
	eventually(t, "the router's page shows the plan", func() error {
		page, err := p.read("/readyz")
		if err == nil && !strings.Contains(page, "the plan: 3 of 4 workers of model sim are there") {
			err = errors.New(page)
		}
		return err
	})
	l := p.load(4)
	l.more(t, 50)
	p.agent = start(t, "agent", "--config", p.file, "--node", "a", "--admin-address", "127.0.0.1:0")
	p.awaitNodes(map[string]int{"a": 1, "b": 3})

	p.planner.kill()
	eventually(t, "the second planner leads", func() error {
		text, err := get("http://" + secondAdmin + "/metrics")
		if err == nil && sample(text, "stator_planner_leading") != 1 {
			err = errNotYet
		}
		return err
	})
	l.more(t, 50)
	p.awaitNodes(map[string]int{"a": 1, "b": 3})
	l.stop()
	if n := l.failed.Load(); n > 0 {
		t.Errorf("%d of %d requests failed: %v", n, n+l.ok.Load(), l.lastError.Load())
	}
	p.assertNothingBooked()
}

// TestAbsentParts: of a fleet with one part of each kind, which should have more, the router's page and the doctor name what is absent. A
// part that is started counts, and so does the loss of one.
func TestAbsentParts(t *testing.T) {
	t.Parallel()
	const numbers = "expected: {routers: 1, controlPlanes: 2, planners: 2, stores: 2}"
	p := startPartsFor(t, partsSettings{models: numbers + `
models: [{name: sim, path: "builtin:sim", kv: {hostBytes: 8388608}, launch: [{engine: sim, count: 1}]}]`})
	await := func(want ...string) {
		t.Helper()
		eventually(t, strings.Join(want, ", "), func() error {
			page, err := p.read("/readyz")
			for _, part := range []string{"routers", "control planes", "planners", "agents with KV stores"} {
				is := strings.Contains(page, part+" are there")
				wanted := slices.ContainsFunc(want, func(text string) bool { return strings.Contains(text, part) })
				if is != wanted {
					err = errNotYet
				}
			}
			for _, text := range want {
				if !strings.Contains(page, text) {
					err = errNotYet
				}
			}
			return err
		})
	}

	await("1 of 2 control planes are there: ", "1 of 2 planners are there: ", "1 of 2 agents with KV stores are there: ")
	awaitDoctor(t, slices.Repeat([]string{"absent the cluster"}, 3), "--config", p.file, "--admin-address", p.extprocAdmin, "--wait", "500ms",
		"--json")
	start(t, "planner", "--config", p.file, "--admin-address", "127.0.0.1:0")
	p.xds.kill()
	await("0 of 2 control planes are there", "1 of 2 agents with KV stores are there: ")
	eventually(t, "both planners are counted", func() error {
		if n := p.metric(`stator_cluster_present_parts{part="planner"}`); n != 2 {
			return fmt.Errorf("%g planners", n)
		}
		return nil
	})
}

// awaitNodes waits until each node has so many workers, all of them ready.
func (p *parts) awaitNodes(want map[string]int) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("the nodes have %v ready workers", want), func() error {
		got := map[string]int{}
		for _, r := range p.fleet() {
			if r.State != "ready" {
				return fmt.Errorf("%s is %s", r.Worker, r.State)
			}
			node, _, _ := strings.Cut(r.Worker, ".")
			got[node]++
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("they have %v", got)
		}
		return nil
	})
}
