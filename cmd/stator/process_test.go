package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/test/testkit"
)

// startedCommand is a command that runs in this process until stop is called or the test ends.
type startedCommand struct {
	log  *testkit.Log
	stop func() error // asks the command to stop, and returns its result
}

// startCommand runs a command line and waits until its log has a text.
func startCommand(t *testing.T, until string, args ...string) *startedCommand {
	t.Helper()

	log := &testkit.Log{}
	log.PrintOnFailure(t)
	ctx, cancel := context.WithCancel(t.Context())
	env := environment{in: strings.NewReader(""), out: log, err: log, hard: context.Background()}
	result := make(chan error, 1)
	go func() { result <- Main(ctx, env, args) }()

	stopped := false
	c := &startedCommand{log: log}
	c.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-result
	}
	t.Cleanup(func() { _ = c.stop() })

	testkit.Eventually(t, "the log of "+args[0]+" has "+until, func() bool { return log.Contains(until) })
	return c
}

// match returns the part of the log that the group of a pattern matches.
func (c *startedCommand) match(t *testing.T, pattern string) string {
	t.Helper()

	found := regexp.MustCompile(pattern).FindStringSubmatch(c.log.String())
	if found == nil {
		t.Fatalf("no %s in the log", pattern)
	}
	return found[1]
}

// page returns a page of the command's admin port.
func (c *startedCommand) page(t *testing.T, path string) string {
	t.Helper()

	resp, err := http.Get("http://" + c.match(t, `admin=(\S+)`) + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// writeFile writes a file in a new folder and returns its path.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// remoteFleet is a configuration whose only worker has no engine.
const remoteFleet = `
apiVersion: stator.dev/v1alpha1
kind: Stator
gateway: {listen: "127.0.0.1:0"}
models:
- name: sim
  path: builtin:sim
  workers: [{name: a, address: "127.0.0.1:1"}]
`

// TestPartsOfAClusterServeAndStop starts each part as a process of a cluster does: with a file, an admin port
// and the bus of `stator bus`. Each serves its metrics, and ends without an error when it is asked to stop.
func TestPartsOfAClusterServeAndStop(t *testing.T) {
	file := writeFile(t, "fleet.yaml", remoteFleet+`  launch: [{engine: exec, node: n1, command: [sleep, "1000"]}]
`)
	sockets := t.TempDir()
	bus := startCommand(t, "serving", "bus", "--listen-address", "127.0.0.1:0")
	url := bus.match(t, `url=(\S+)`)

	for name, args := range map[string][]string{
		"planner": nil,
		"agent":   {"--node", "n1"},
		"xds":     {"--listen-address", "unix://" + filepath.Join(sockets, "xds")},
		"extproc": {"--listen-address", "unix://" + filepath.Join(sockets, "extproc")},
	} {
		t.Run(name, func(t *testing.T) {
			common := []string{name, "--config", file, "--bus", url, "--admin-address", "127.0.0.1:0"}
			part := startCommand(t, "part="+name, append(common, args...)...)
			if page := part.page(t, "/metrics"); !strings.Contains(page, "stator_build_info{") {
				t.Errorf("metrics without those of the program:\n%s", page)
			}
			if err := part.stop(); err != nil || !part.log.Contains("msg=stopped part="+name) {
				t.Errorf("%v", err)
			}
		})
	}

	if err := bus.stop(); err != nil || !bus.log.Contains("msg=stopped part=bus") {
		t.Errorf("%v", err)
	}
}

// TestPartsOfALockedCluster starts each part with a user of its role, on a bus that has users. A part without a login waits,
// and logs why. The passwords are in no log.
func TestPartsOfALockedCluster(t *testing.T) {
	users := writeFile(t, "users.yaml", `
- {user: n1, password: password-of-agent, role: agent, node: n1}
- {user: extproc, password: password-of-extproc, role: router}
- {user: xds, password: password-of-xds, role: control}
- {user: planner, password: password-of-planner, role: planner}
`)
	bus := startCommand(t, "serving", "bus", "--listen-address", "127.0.0.1:0", "--users", users)
	url := bus.match(t, `url=(\S+)`)
	fleet := remoteFleet + "  launch: [{engine: exec, node: n1, command: [sleep, \"1000\"]}]\n"
	common := []string{"--bus", url, "--admin-address", "127.0.0.1:0", "--config"}

	for name, args := range map[string][]string{
		"planner": {"planner"},
		"agent":   {"agent", "--node", "n1"},
		"xds":     {"xds", "--listen-address", "unix://" + filepath.Join(t.TempDir(), "xds")},
		"extproc": {"extproc", "--listen-address", "unix://" + filepath.Join(t.TempDir(), "extproc")},
	} {
		user := name
		if name == "agent" {
			user = "n1"
		}
		password := writeFile(t, "password", "password-of-"+name+"\n")
		file := writeFile(t, "fleet.yaml", fleet+"bus: {user: "+user+", passwordFile: "+password+"}\n")
		part := startCommand(t, "part="+name, append(append(args, common...), file)...)
		if page := part.page(t, "/metrics"); !strings.Contains(page, `stator_bus_connected{connection="control"} 1`) {
			t.Errorf("%s: metrics without the bus:\n%s", name, page)
		}
		if name == "agent" {
			testkit.Eventually(t, "the engine starts", func() bool {
				return strings.Contains(part.page(t, "/metrics"), "stator_agent_engine_starts_total")
			})
		}
		if part.log.Contains("the bus refuses") || part.log.Contains("password-of-") {
			t.Errorf("%s logs\n%s", name, part.log.String())
		}
	}

	stranger := startCommand(t, "waiting for the bus", append([]string{"planner"}, append(common, writeFile(t, "fleet.yaml", fleet))...)...)
	if !stranger.log.Contains("check bus.user and bus.passwordFile") {
		t.Error(stranger.log.String())
	}
}

// TestRouterAndControlPlaneNeedNoBus starts both with the workers of the file alone: the control plane has the
// configured worker, and the router serves on a socket.
func TestRouterAndControlPlaneNeedNoBus(t *testing.T) {
	file := writeFile(t, "fleet.yaml", remoteFleet)
	sockets := t.TempDir()

	control := startCommand(t, "part=xds", "xds", "--config", file, "--admin-address", "127.0.0.1:0",
		"--listen-address", "unix://"+filepath.Join(sockets, "xds"))
	if page := control.page(t, "/debug/fleet"); !strings.Contains(page, "127.0.0.1:1") {
		t.Errorf("no configured worker in\n%s", page)
	}

	socket := filepath.Join(sockets, "extproc")
	router := startCommand(t, "part=extproc", "extproc", "--config", file, "--admin-address", "127.0.0.1:0",
		"--listen-address", "unix://"+socket, "--decision-log", filepath.Join(sockets, "decisions.jsonl"))
	testkit.Eventually(t, "the router serves on its socket", func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})

	for name, c := range map[string]*startedCommand{"control plane": control, "router": router} {
		if err := c.stop(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPartsRefuseWhatTheyCannotUse checks errors that are found before a part serves: taken or malformed
// addresses, a wrong flag of the log, and an Envoy that is not there.
func TestPartsRefuseWhatTheyCannotUse(t *testing.T) {
	file := writeFile(t, "fleet.yaml", remoteFleet)
	taken := startCommand(t, "serving", "bus", "--listen-address", "127.0.0.1:0")
	address := strings.TrimPrefix(taken.match(t, `url=(\S+)`), "nats://")

	for _, c := range []struct {
		line, want string
	}{
		{"bus --listen-address " + address, "is taken by another program"},
		{"bus --listen-address :0", "would listen on 0.0.0.0 without a lock"},
		{"bus --listen-address 127.0.0.1:0 --users " + file, "must be a list of"},
		{"bus --listen-address 127.0.0.1:0 --tls-cert " + file, "--tls-cert and --tls-key need each other"},
		{"xds --config " + file + " --admin-address " + address, "choose another address with --admin-address"},
		{"xds --config " + file + " --admin-address 127.0.0.1:0 --listen-address " + address, "choose another address with --listen-address"},
		{"extproc --config " + file + " --admin-address 127.0.0.1:0 --listen-address " + address, "choose another address with --listen-address"},
		{"extproc --config " + file + " --admin-address 127.0.0.1:0 --log-level loud", `--log-level is "loud"`},
		{"sim --listen-address nowhere", "start engine sim: listen for HTTP: "},
		{"up --envoy absent", "absent"},
		{"extproc --config " + file + " --admin-address 127.0.0.1:0 --listen-address :0", "--listen-address :0 is beyond loopback"},
		{"xds --config " + file + " --admin-address 127.0.0.1:0 --listen-address :0", "--listen-address :0 is beyond loopback"},
		{"planner --config " + file + " --admin-address :0", "--admin-address :0 is beyond loopback"},
		{"planner --config " + file + " --admin-token-file absent", "--admin-token-file: read token"},
		{"xds --config " + file + " --tls-client-ca " + file, "--tls-client-ca needs --tls-cert"},
		{"explain --admin-token-file absent", "--admin-token-file: read token"},
	} {
		var out bytes.Buffer
		err := Main(t.Context(), environment{out: &out, err: &out, hard: t.Context()}, strings.Fields(c.line))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("stator %s: %v, want %q", c.line, err, c.want)
		}
	}
}

// TestAdminPortWithToken serves the admin port beyond loopback: with TLS and a token. Health checks need no token, and
// `stator explain` gets its answer with the token and the CA.
func TestAdminPortWithToken(t *testing.T) {
	ca := testkit.NewAuthority(t)
	cert, key := ca.Issue("localhost", "127.0.0.1")
	token := writeFile(t, "token", "0123456789abcdef\n")
	c := startCommand(t, "part=extproc", "extproc", "--config", writeFile(t, "fleet.yaml", remoteFleet), "--admin-address", "0.0.0.0:0",
		"--admin-token-file", token, "--tls-cert", cert, "--tls-key", key,
		"--listen-address", "unix://"+filepath.Join(t.TempDir(), "extproc"))
	address := strings.Replace(c.match(t, `admin=(\S+)`), "[::]", "127.0.0.1", 1)
	if !strings.HasPrefix(address, "https://") {
		t.Errorf("the log has the address %s", address)
	}

	for want, args := range map[string][]string{
		"certificate signed by unknown authority": nil,
		"needs the token of --admin-token-file":   {"--admin-ca", ca.CA()},
		"there are no decisions yet":              {"--admin-ca", ca.CA(), "--admin-token-file", token},
	} {
		var out bytes.Buffer
		err := Main(t.Context(), environment{out: &out, err: &out, hard: t.Context()}, append([]string{"explain", "--admin-address", address}, args...))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("explain %q: %v, want %q", args, err, want)
		}
	}

	open, err := adminclient.New(adminclient.Config{Address: address, CAFile: ca.CA()}, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{"/healthz": 200, "/metrics": 401} {
		resp, err := open.HTTP().Get(open.URL(path))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s without a token: %d, want %d", path, resp.StatusCode, want)
		}
	}
}

// TestSimulatedEngineServesAndStops starts `stator sim` with event sockets and reads its models under both names.
func TestSimulatedEngineServesAndStops(t *testing.T) {
	engine := startCommand(t, "address=", "sim", "--listen-address", "127.0.0.1:0", "--model", "big", "--alias", "small",
		"--kv-events", "tcp://127.0.0.1:0", "--kv-replay", "tcp://127.0.0.1:0", "--engine-speedup", "100")
	url := "http://" + engine.match(t, `address=(\S+)`) + "/v1/models"

	var body []byte
	testkit.Eventually(t, "the engine answers", func() bool {
		resp, err := http.Get(url)
		if err != nil {
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		body, err = io.ReadAll(resp.Body)
		return err == nil && resp.StatusCode == http.StatusOK
	})
	if text := string(body); !strings.Contains(text, `"id":"big"`) || !strings.Contains(text, `"id":"small"`) {
		t.Errorf("models: %s", text)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := engine.stop(); err != nil {
		t.Error(err)
	}
}

// TestPartWaitsForItsBus: a part whose bus is not there logs that it waits for the bus, and answers on its admin port. The password of
// the bus is in neither.
func TestPartWaitsForItsBus(t *testing.T) {
	c := startCommand(t, "waiting for the bus", "planner", "--config", writeFile(t, "fleet.yaml", remoteFleet),
		"--bus", "nats://me:secret@127.0.0.1:1", "--admin-address", "127.0.0.1:0")
	if page := c.page(t, "/readyz"); !strings.Contains(page, "waiting for the bus at nats://127.0.0.1:1") {
		t.Errorf("/readyz shows %q", page)
	}
	if page := c.page(t, "/healthz"); !strings.Contains(page, "ok") {
		t.Errorf("/healthz shows %q", page)
	}
	if c.log.Contains("secret") {
		t.Error("the password is in the log")
	}
}

// TestAgentWithoutLaunches: an agent that would start nothing is an error that names the nodes there are.
func TestAgentWithoutLaunches(t *testing.T) {
	bus := startCommand(t, "serving", "bus", "--listen-address", "127.0.0.1:0")
	file := writeFile(t, "fleet.yaml", `apiVersion: stator.dev/v1alpha1
kind: Stator
models:
- name: m
  path: "builtin:sim"
  launch: [{engine: sim, node: east}, {engine: sim, node: west}, {engine: sim, node: east}]
`)
	var out bytes.Buffer
	env := environment{in: strings.NewReader(""), out: &out, err: &out, hard: context.Background()}
	err := Main(t.Context(), env, []string{"agent", "--config", file, "--node", "esat", "--bus", bus.match(t, `url=(\S+)`),
		"--admin-address", "127.0.0.1:0"})
	if err == nil || !strings.Contains(err.Error(), `no launch of the configuration is for node "esat"`) ||
		!strings.Contains(err.Error(), `the file has "east", "west"`) {
		t.Errorf("got %v", err)
	}
}
