//go:build linux

package scenario

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/test/testkit"
)

// The lengths of TestHosts. `make test-hosts` plays many cuts.
var (
	cuts    = flag.Int("hosts.cuts", 1, "`times` that a host is cut off")
	cutTime = flag.Duration("hosts.cut", 30*time.Second, "`time` for which a host is cut off")
)

// The ports of a cluster's hosts. Every host is alone on its address.
const (
	busPort      = 4222
	xdsPort      = 9003
	gatewayPort  = 8080
	extprocPorts = 9010
	routersThere = 2
)

// cluster is a fleet on several hosts: one for the bus, two routers and the control plane, one for each agent with two
// engines, and one for Envoy.
type cluster struct {
	*gateway
	network      *network
	center       *host
	ca           *testkit.Authority
	files        map[string]string // the configuration files of users
	agents       map[string]*host
	agentOutput  map[string]*command
	routers      []*gateway
	startRouter  func(i int) *command
	routerOutput []*command
	dir          string // of the sockets of admin ports
}

// hostModels is a model with two engines on each of two nodes.
const hostModels = `
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 2, node: node-a}, {engine: sim, count: 2, node: node-b}]
`

// adminSockets ends the names of admin ports that are Unix sockets. All network namespaces share them.
const adminSockets = ".socket"

// clusterUsers are the users of the cluster's bus, with the role that each part has.
const clusterUsers = `
- {user: router, password: router-password, role: router}
- {user: control, password: control-password, role: control}
- {user: node-a, password: node-a-password, role: agent, node: node-a}
- {user: node-b, password: node-b-password, role: agent, node: node-b}
`

// Ports for metrics, which only some tests open.
const (
	routerMetrics = 9110 // of the first router
	agentMetrics  = 9120
)

// startCluster runs a cluster with these models until the test ends. TestOnlyEnvoysWithCertificatesConnect has one with TLS.
func startCluster(t *testing.T, models string, scraped bool) *cluster {
	n := newNetwork(t)
	c := &cluster{network: n, agents: map[string]*host{}, agentOutput: map[string]*command{}, files: map[string]string{}, dir: t.TempDir()}
	dir := c.dir
	metrics := func(h *host, port int) []string {
		if !scraped {
			return nil
		}
		return []string{"--metrics-address", h.at(port)}
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DialContext: func(ctx context.Context, kind, address string) (net.Conn, error) {
		if name, isSocket := strings.CutSuffix(address, adminSockets+":80"); isSocket {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, name))
		}
		return n.dial(ctx, kind, address)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	reach := &http.Client{Timeout: patience, Transport: transport}

	center, edge := n.host("center"), n.host("edge")
	c.center = center
	users := filepath.Join(dir, "users.yaml")
	if err := os.WriteFile(users, []byte(clusterUsers), 0o600); err != nil {
		t.Fatal(err)
	}
	ca := testkit.NewAuthority(t)
	c.ca = ca
	cert, key := ca.Issue("bus", center.address)
	center.start(binary, "bus", "--listen-address", center.at(busPort), "--users", users, "--tls-cert", cert, "--tls-key", key,
		"--lease-ttl", "3s")

	// file returns the configuration of a member. All members have the same but for their login.
	file := func(user string) string {
		password := filepath.Join(dir, user)
		if err := os.WriteFile(password, []byte(user+"-password\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c.files[user] = configFile(t, fmt.Sprintf(`
gateway: {listen: "%s", decisionTimeout: 2s}
bus: {url: "tls://%s", caFile: %s, user: %s, passwordFile: %s, leaseTTL: 3s}
models:%s`, edge.at(gatewayPort), center.at(busPort), ca.CA(), user, password, models))
		return c.files[user]
	}

	cert, key = ca.Issue("stator-xds")
	xds := []string{"xds", "--config", file("control"), "--listen-address", center.at(xdsPort), "--admin-address", "127.0.0.1:0",
		"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca.CA(), "--extproc-secrets", dir}
	routerCert, routerKey := ca.Issue("stator-extproc")
	file("router")
	c.startRouter = func(i int) *command {
		args := append(metrics(center, routerMetrics+i), "--tls-cert", routerCert, "--tls-key", routerKey, "--tls-client-ca", ca.CA(),
			"--admin-address", "unix://"+filepath.Join(dir, fmt.Sprint("router-", i)))
		args = append([]string{"extproc", "--config", c.files["router"], "--listen-address", center.at(extprocPorts + i)}, args...)
		return center.start(binary, args...)
	}
	for i := range routersThere {
		c.routerOutput = append(c.routerOutput, c.startRouter(i))
		c.routers = append(c.routers, &gateway{t: t, admin: fmt.Sprint("router-", i) + adminSockets, pages: reach})
		xds = append(xds, "--extproc-address", center.at(extprocPorts+i))
	}
	center.start(binary, xds...)
	for _, name := range []string{"node-a", "node-b"} {
		h := n.host(name)
		c.agents[name] = h
		agent := append([]string{"agent", "--node", name, "--config", file(name), "--admin-address", "127.0.0.1:0"}, metrics(h, agentMetrics)...)
		if h.namespace == "" { // the route from one loopback address to another has a third
			agent = append(agent, "--advertise-address", h.address)
		}
		c.agentOutput[name] = h.start(binary, agent...)
	}

	cert, key = ca.Issue("edge")
	boot, err := exec.Command(binary, "envoy", "bootstrap", "--admin-address", "127.0.0.1:0", "--xds-address", center.at(xdsPort),
		"--secrets", dir, "--ca", ca.CA(), "--cert", cert, "--key", key).Output()
	if err != nil {
		t.Fatal(err)
	}
	edge.startEnvoy(boot)
	c.gateway = &gateway{t: t, url: "http://" + edge.at(gatewayPort), admin: c.routers[0].admin, http: reach, pages: reach}
	return c
}

// awaitExact waits until all caches are exact at every router, and returns how long that took.
func (c *cluster) awaitExact() time.Duration {
	c.t.Helper()
	began := time.Now()
	for _, r := range c.routers {
		eventually(c.t, "all caches are exact at a router", func() error {
			if n := r.metric("stator_feed_ranks", `state="exact"`); n != 4 {
				return fmt.Errorf("%g ranks are exact", n)
			}
			return nil
		})
	}
	return time.Since(began)
}

// workers returns the names and addresses of the fleet at a router.
func (c *cluster) workers(r *gateway) []string {
	var names []string
	for _, w := range r.fleet() {
		names = append(names, w.Worker+" "+w.Address)
	}
	return names
}

// TestHosts runs a cluster on several hosts. Engines have addresses that other hosts reach: every request is served by
// the worker that was picked. A host that is cut off loses its workers, whose requests go to the other host; when it is
// back, the same engines are back in the same epochs, every cache is exact again, and no worker has had two owners.
func TestHosts(t *testing.T) {
	t.Parallel()
	c := startCluster(t, hostModels, false)
	c.awaitExact()
	eventually(t, "requests are served", func() error {
		_, err := c.tryChat(t.Context(), []message{{"user", "hello"}}, 1)
		return err
	})
	before := c.workers(c.routers[0])
	if len(before) != 4 || !strings.HasPrefix(before[0], "node-a.sim-0 "+c.agents["node-a"].address) {
		t.Fatalf("the fleet is %q", before)
	}
	c.playAsPicked(100)

	var took []time.Duration
	for range *cuts {
		took = append(took, c.cut("node-b"))
		for _, r := range c.routers {
			if after := c.workers(r); !slices.Equal(after, before) {
				t.Errorf("the fleet was %q and is %q", before, after)
			}
		}
	}
	c.playAsPicked(100)
	slices.Sort(took)
	t.Logf("all caches were exact again after p50 %s, p95 %s, max %s of %d cuts", percentile(took, 50), percentile(took, 95), percentile(took, 100),
		len(took))
	for name, agent := range c.agentOutput {
		if log := agent.out.String(); strings.Contains(log, "two agents claim") || strings.Contains(log, "starting it again") {
			t.Errorf("the agent of %s lost a worker or an engine", name)
		}
	}
}

// percentile returns a percentile of sorted durations.
func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[max(0, (len(sorted)*p+99)/100-1)].Round(time.Millisecond)
}

// playAsPicked sends requests one after the other. Each must be served by the worker that was picked for it.
func (c *cluster) playAsPicked(requests int) {
	c.t.Helper()
	count := func() (picked, other float64) {
		for _, r := range c.routers {
			picked += r.metric("stator_accesslog_requests_total", `outcome="as_picked"`)
			other += r.metric("stator_accesslog_requests_total") - r.metric("stator_accesslog_requests_total", `outcome="as_picked"`)
		}
		return picked, other
	}
	// Entries of earlier requests may still arrive.
	settles(c.t, "the number of reports", func() ([2]float64, error) {
		picked, other := count()
		return [2]float64{picked, other}, nil
	})
	pickedBefore, otherBefore := count()
	for i := range requests {
		if _, err := c.tryChat(c.t.Context(), []message{{"user", fmt.Sprintf("question %d", i)}}, 1); err != nil {
			c.t.Fatal(err)
		}
	}
	eventually(c.t, "every request was served as picked", func() error {
		picked, other := count()
		if picked-pickedBefore != float64(requests) || other != otherBefore {
			return fmt.Errorf("%g were served as picked, %g not", picked-pickedBefore, other-otherBefore)
		}
		return nil
	})
}

// cut cuts a host off, plays requests to the others, and heals the network. It returns how long it took from then until
// all caches were exact.
func (c *cluster) cut(name string) time.Duration {
	c.t.Helper()
	h := c.agents[name]
	cutAt := time.Now()
	h.cutOff()
	for _, r := range c.routers {
		eventually(c.t, "the workers of the host have left", func() error {
			for _, w := range r.fleet() {
				if strings.HasPrefix(w.Worker, name+".") {
					return fmt.Errorf("%s is there", w.Worker)
				}
			}
			return nil
		})
	}
	for i := range 50 {
		if _, err := c.tryChat(c.t.Context(), []message{{"user", fmt.Sprintf("question %d", i)}}, 1); err != nil {
			c.t.Errorf("while %s is cut off: %v", name, err)
		}
	}

	time.Sleep(*cutTime - time.Since(cutAt))
	h.heal()
	return c.awaitExact()
}
