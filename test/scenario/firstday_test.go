//go:build linux

package scenario

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	// oneSlow has a slow engine on node-b, and repaired the engine that replaces it. fewer has it no more.
	fewer = `
- name: sim
  path: "builtin:sim"
  launch:
  - {engine: sim, count: 2, node: node-a}
  - {engine: sim, count: 1, node: node-b}
`
	oneSlow  = fewer + `  - {engine: sim, count: 1, node: node-b, args: {engineSpeedup: 0.1}}` + "\n"
	repaired = fewer + `  - {engine: sim, count: 1, node: node-b, args: {engineSpeedup: 1}}` + "\n"
	// more has one engine more on node-a, and a second model.
	more = `
- name: sim
  path: "builtin:sim"
  launch:
  - {engine: sim, count: 2, node: node-a}
  - {engine: sim, count: 1, node: node-b}
  - {engine: sim, count: 1, node: node-b, args: {engineSpeedup: 1}}
  - {engine: sim, count: 1, node: node-a}
- name: second
  path: "builtin:sim"
  launch: [{engine: sim, count: 1, node: node-a}]
`
)

// TestFirstDay plays docs/first-day.md under load. Its commands are those of the page.
func TestFirstDay(t *testing.T) {
	t.Parallel()
	c := startCluster(t, oneSlow, true)
	c.awaitExact()
	eventually(t, "requests are served", func() error { return c.completeAnswer("sim", true, 0, 1) })
	l := c.streams(8)
	l.more(t, 20)

	prometheus := c.startPrometheus()
	eventually(t, "the metrics name the slow worker", func() error {
		if slow, err := c.slowest(prometheus); err != nil || slow != "node-b.sim-3" {
			return fmt.Errorf("it is %q, %w", slow, err)
		}
		return nil
	})

	c.operator("drain gpu-2.llama-3")
	c.configure(fewer)
	c.awaitStates("node-a.sim-0 ready", "node-a.sim-1 ready", "node-b.sim-2 ready")
	c.configure(repaired)
	c.awaitStates("node-a.sim-0 ready", "node-a.sim-1 ready", "node-b.sim-2 ready", "node-b.sim-3 draining")
	c.operator("drain gpu-2.llama-3 --undo")
	c.awaitStates("node-a.sim-0 ready", "node-a.sim-1 ready", "node-b.sim-2 ready", "node-b.sim-3 ready")
	l.more(t, 20)

	for i, r := range c.routers {
		c.routerOutput[i].stop()
		c.routerOutput[i] = c.startRouter(i)
		eventually(t, "the new router is ready", func() error {
			_, err := r.read("/readyz")
			return err
		})
		l.more(t, 20)
	}

	c.configure(more)
	c.awaitStates("node-a.second-0 ready", "node-a.sim-0 ready", "node-a.sim-1 ready", "node-a.sim-4 ready", "node-b.sim-2 ready",
		"node-b.sim-3 ready")
	eventually(t, "the second model answers", func() error { return c.completeAnswer("second", true, 0, 5) })
	if out := c.operator("validate stator.yaml --running 127.0.0.1:8081"); !strings.Contains(out, "in force") {
		t.Errorf("stator validate wrote:\n%s", out)
	}

	before := c.serials()
	c.ca.Issue("bus", c.center.address)
	for _, name := range []string{"stator-xds", "stator-extproc", "edge"} {
		c.ca.Issue(name)
	}
	eventually(t, "all servers have their new certificates", func() error {
		for at, serial := range c.serials() {
			if serial == before[at] {
				return fmt.Errorf("%s has the old one", at)
			}
		}
		return nil
	})
	l.more(t, 20)

	c.operator("drain gpu-2")
	l.more(t, 20)
	if out := c.operator("drain --status"); !strings.Contains(out, "node-b") {
		t.Errorf("stator drain --status wrote:\n%s", out)
	}
	c.operator("drain gpu-2 --undo")
	l.stop() // answers that a lost machine is giving break off
	c.loseNode("node-b")
	c.assertNothingLost(l)
}

// streams sends streams from so many clients until stop. An answer counts if it is complete.
func (g *gateway) streams(clients int) *load {
	return g.loadOf(clients, func(client, i int) error { return g.completeAnswer("sim", true, client+i*clients, 10) })
}

// configure replaces the models in the configuration files of all members.
func (c *cluster) configure(models string) {
	c.t.Helper()
	for _, path := range c.files {
		rewrite(c.t, path, func(text string) string {
			head, _, _ := strings.Cut(text, "\nmodels:")
			return head + "\nmodels:" + models
		})
	}
}

// awaitStates waits until every router has these workers in these states, and no others.
func (c *cluster) awaitStates(want ...string) {
	c.t.Helper()
	for _, r := range c.routers {
		eventually(c.t, fmt.Sprintf("the workers are %q", want), func() error {
			var got []string
			for _, w := range r.fleet() {
				got = append(got, w.Worker+" "+w.State)
			}
			if strings.Join(got, ", ") != strings.Join(want, ", ") {
				return fmt.Errorf("they are %q", got)
			}
			return nil
		})
	}
}

// operator runs a command of docs/first-day.md, which has other names, and returns its output.
func (c *cluster) operator(command string) string {
	c.t.Helper()
	page, err := os.ReadFile("../../docs/first-day.md")
	if err != nil {
		c.t.Fatal(err)
	}
	if !strings.Contains(string(page), "\nstator "+command+"\n") {
		c.t.Errorf("docs/first-day.md lacks the command: stator %s", command)
	}

	admin := "unix://" + filepath.Join(c.dir, "router-0")
	command = strings.NewReplacer("gpu-2", "node-b", "llama", "sim", "127.0.0.1:8081", admin, "stator.yaml", c.files["router"]).Replace(command)
	args := strings.Fields(command)
	if args[0] == "drain" || args[0] == "doctor" {
		args = append(args, "--admin-address", admin)
	}
	out, err := exec.Command(binary, args...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && (args[0] != "doctor" || !errors.As(err, &exit)) { // the doctor's findings are an exit status, too
		c.t.Fatalf("stator %s: %v\n%s", command, err, out)
	}
	return string(out)
}

// startPrometheus runs a Prometheus that reads the routers and the agents, and returns the address of its API; empty if this machine has
// no Prometheus.
func (c *cluster) startPrometheus() string {
	c.t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		c.t.Log("this machine has no Prometheus, so the test reads the metrics of the routers itself")
		return ""
	}
	rules, err := filepath.Abs("../../examples/prometheus/alerts.yaml")
	if err != nil {
		c.t.Fatal(err)
	}
	dir := c.t.TempDir()
	config := filepath.Join(dir, "prometheus.yaml")
	text := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
- job_name: stator
  static_configs: [{targets: ["%s", "%s", "%s", "%s"]}]
`, rules, c.center.at(routerMetrics), c.center.at(routerMetrics+1), c.agents["node-a"].at(agentMetrics), c.agents["node-b"].at(agentMetrics))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	at := c.center.at(9090)
	c.center.start(program, "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", at,
		"--log.level", "error")
	return "http://" + at
}

// slowest returns the worker with the longest mean time to the first token.
func (c *cluster) slowest(prometheus string) (string, error) {
	if prometheus == "" {
		return c.slowestByHand(), nil
	}
	page, err := os.ReadFile("../../docs/first-day.md")
	if err != nil {
		return "", err
	}
	_, rest, _ := strings.Cut(string(page), "```promql\n")
	query, _, _ := strings.Cut(rest, "\n```")
	text, err := getBy(c.pages, prometheus+"/api/v1/query?query="+url.QueryEscape(query))
	if err != nil {
		return "", err
	}
	var answer struct {
		Data struct {
			Result []struct{ Metric map[string]string }
		}
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return "", err
	}
	if len(answer.Data.Result) == 0 {
		return "", errNotYet
	}
	return answer.Data.Result[0].Metric["worker"], nil
}

// slowestByHand is slowest without a Prometheus.
func (c *cluster) slowestByHand() (slow string) {
	longest := 0.0
	for _, w := range c.fleet() {
		var sum, count float64
		for _, r := range c.routers {
			label := fmt.Sprintf("worker=%q", w.Worker)
			sum += r.metric("stator_request_first_token_seconds_sum", label)
			count += r.metric("stator_request_first_token_seconds_count", label)
		}
		if count > 0 && sum/count > longest {
			slow = w.Worker
			longest = sum / count
		}
	}
	return slow
}

// serials returns the serial numbers of the certificates of the routers and the control plane, by address.
func (c *cluster) serials() map[string]string {
	c.t.Helper()
	out := map[string]string{}
	for _, port := range []int{extprocPorts, extprocPorts + 1, xdsPort} {
		at := c.center.at(port)
		conn, err := c.network.dial(c.t.Context(), "tcp", at)
		if err != nil {
			c.t.Fatal(err)
		}
		secured := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the certificate is what the test looks at
		if err := secured.HandshakeContext(c.t.Context()); err != nil {
			c.t.Fatal(err)
		}
		out[at] = secured.ConnectionState().PeerCertificates[0].SerialNumber.String()
		_ = conn.Close()
	}
	return out
}

// loseNode cuts a machine off. When its leases have expired the others serve, and the doctor misses its workers; then it is back.
func (c *cluster) loseNode(name string) {
	c.t.Helper()
	h := c.agents[name]
	h.cutOff()
	c.awaitStates("node-a.second-0 ready", "node-a.sim-0 ready", "node-a.sim-1 ready", "node-a.sim-4 ready")
	l := c.streams(8)
	l.more(c.t, 40)
	if out := c.operator("doctor --config stator.yaml"); !strings.Contains(out, "model sim on node node-b: 0 of 2") {
		c.t.Errorf("stator doctor wrote:\n%s", out)
	}

	h.heal()
	c.awaitStates("node-a.second-0 ready", "node-a.sim-0 ready", "node-a.sim-1 ready", "node-a.sim-4 ready", "node-b.sim-2 ready",
		"node-b.sim-3 ready")
	l.more(c.t, 20)
	c.assertNothingLost(l)
}

// assertNothingLost stops a load whose requests must all have complete answers.
func (c *cluster) assertNothingLost(l *load) {
	c.t.Helper()
	l.stop()
	c.t.Logf("%d answers were complete, %d were not", l.ok.Load(), l.failed.Load())
	if n := l.failed.Load(); n > 0 {
		c.t.Errorf("%d of %d requests failed: %v", n, n+l.ok.Load(), l.lastError.Load())
	}
}
