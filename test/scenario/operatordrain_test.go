package scenario

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// nodesOfThree is a model with three engines on each of two nodes.
const nodesOfThree = `
models:
- name: sim
  path: "builtin:sim"
  launch:
  - {engine: sim, node: a, count: 3}
  - {engine: sim, node: b, count: 3}
`

// TestOperatorDrains: a node is drained under load, of streams and of whole answers, and gets no requests until the drain is undone. A
// router that starts meanwhile has the drain from the control plane. Then the agent of the node is stopped and replaced. Nothing fails.
func TestOperatorDrains(t *testing.T) {
	t.Parallel()
	p := startPartsFor(t, partsSettings{models: nodesOfThree, agent: []string{"--node", "a"}})
	start(t, "agent", "--config", p.file, "--node", "b", "--admin-address", "127.0.0.1:0")
	p.awaitNodes(map[string]int{"a": 3, "b": 3})
	l := p.load(6)
	l.more(t, 60)

	p.drain("a")
	before := p.answersOf("a.")
	l.more(t, 60)
	if n := p.answersOf("a.") - before; n != 0 {
		t.Errorf("%g answers of a node that is drained", n)
	}
	if text, err := p.read("/debug/drains"); err != nil || !strings.Contains(text, "a.sim-0") {
		t.Errorf("%v: %s", err, text)
	}

	p.extproc.stop()
	p.startExtProc()
	p.await()
	eventually(t, "the new router has the drain", func() error {
		text, err := p.read("/debug/drains")
		if err == nil && !strings.Contains(text, "a.sim-0") {
			err = fmt.Errorf("%s", text)
		}
		return err
	})
	l.more(t, 60)
	if n := p.answersOf("a."); n != 0 {
		t.Errorf("%g answers of a node that is drained", n)
	}

	p.drain("a", "--undo")
	p.awaitNodes(map[string]int{"a": 3, "b": 3})
	eventually(t, "the node answers again", func() error {
		if p.answersOf("a.") == 0 {
			return errNotYet
		}
		return nil
	})

	p.agent.stop()
	p.awaitNodes(map[string]int{"b": 3})
	p.agent = start(t, "agent", "--config", p.file, "--node", "a", "--admin-address", "127.0.0.1:0")
	p.awaitNodes(map[string]int{"a": 3, "b": 3})
	l.more(t, 60)
	l.stop()
	if n := l.failed.Load(); n > 0 {
		t.Errorf("%d of %d requests failed: %v", n, n+l.ok.Load(), l.lastError.Load())
	}
	p.assertNothingBooked()
}

// drain runs the command.
func (g *gateway) drain(args ...string) {
	g.t.Helper()
	out, err := exec.Command(binary, append([]string{"drain", "--admin-address", g.admin}, args...)...).CombinedOutput()
	if err != nil {
		g.t.Fatalf("stator drain %s: %v\n%s", args, err, out)
	}
	if len(args) == 1 && !strings.Contains(string(out), "is drained: no request is left at 3 workers") {
		g.t.Errorf("stator drain %s wrote:\n%s", args, out)
	}
}

// answersOf returns how many answers the router has counted of the workers whose names begin so.
func (g *gateway) answersOf(prefix string) float64 {
	g.t.Helper()
	return g.metric("stator_request_answers_total", `worker="`+prefix)
}
