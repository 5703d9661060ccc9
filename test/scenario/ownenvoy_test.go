package scenario

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stator-project/stator/envoy"
)

// ordinaryEnvoy is the static configuration of an Envoy as people have it before they add Stator: a listener, a
// route and a cluster. Its admin server and listener are at addresses of the test, and so is its website.
const ordinaryEnvoy = `
node: {id: own, cluster: edge}
admin:
  address: {socket_address: {address: 127.0.0.1, port_value: 0}}
static_resources:
  listeners:
  - name: front
    address: {socket_address: {address: 127.0.0.1, port_value: LISTEN}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          access_log:
          - name: envoy.access_loggers.stderr
            typed_config: {"@type": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StderrAccessLog}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {prefix: /}
                route: {cluster: website}
  clusters:
  - name: website
    type: STATIC
    load_assignment:
      cluster_name: website
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: WEBSITE}}}}]}]
`

// yamlMap is a YAML mapping.
type yamlMap = map[string]any

// withSnippet adds the parts of a snippet to a configuration, by `stator envoy snippet --into`.
func withSnippet(t *testing.T, config string, flags ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(binary, append([]string{"envoy", "snippet", "--into", file}, flags...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// ordinary returns the configuration with addresses filled in.
func ordinary(listen, website string) string {
	port := func(address string) string { return address[strings.LastIndex(address, ":")+1:] }
	return strings.NewReplacer("LISTEN", port(listen), "WEBSITE", port(website)).Replace(ordinaryEnvoy)
}

// envoyMinor returns the minor version of the installed Envoy 1.
func envoyMinor(t *testing.T) int {
	t.Helper()
	out, err := exec.Command(envoyPath(t), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`/1\.(\d+)\.`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("no version in %s", out)
	}
	minor, _ := strconv.Atoi(string(m[1]))
	return minor
}

// own is an Envoy with a static configuration to which a snippet was added, with a router and the workers of a file.
type own struct {
	*gateway
	file    string
	website *backend
	extproc *command
	process *envoy.Process

	mu    sync.Mutex
	used  map[string]int // guarded by mu; turns of all conversations, by worker
	talks int            // how many conversations there were
}

// startOwn starts a router for these models, and Envoy. change, if it is not nil, changes Envoy's configuration.
func startOwn(t *testing.T, models string, change func(o *own, config string) string, flags ...string) *own {
	t.Helper()
	listen, extprocAt := freeAddress(t), freeAddress(t)
	o := &own{gateway: &gateway{t: t, url: "http://" + listen, admin: freeAddress(t)}, file: configFile(t, models), used: map[string]int{}}
	o.website = startBackend(t, func(_ *backend, w http.ResponseWriter, _ string) { _, _ = fmt.Fprint(w, "the website") })
	o.extproc = start(t, "extproc", "--config", o.file, "--listen-address", extprocAt, "--admin-address", o.admin)
	eventually(t, "the router is ready", func() error {
		_, err := get("http://" + o.admin + "/readyz")
		return err
	})

	flags = append([]string{"--config", o.file, "--extproc-address", extprocAt, "--envoy", fmt.Sprintf("1.%d", envoyMinor(t))}, flags...)
	config := withSnippet(t, ordinary(listen, o.website.address), flags...)
	if change != nil {
		config = change(o, config)
	}
	o.startEnvoy([]byte(config))
	return o
}

// simEngines starts engines with the names a, b and so on, and returns their addresses.
func simEngines(t *testing.T, n int) (addresses []string) {
	t.Helper()
	for i := range n {
		at := freeAddress(t)
		start(t, "sim", "--name", string(rune('a'+i)), "--listen-address", at, "--log-level", "warn")
		addresses = append(addresses, at)
	}
	return addresses
}

// simFleet lists the engines at these addresses as the workers of a model. Those without an address are left out.
func simFleet(addresses ...string) string {
	text := "models:\n- name: sim\n  path: \"builtin:sim\"\n  workers:\n"
	for i, at := range addresses {
		if at != "" {
			text += fmt.Sprintf("  - {name: %c, address: %q, engine: sim}\n", 'a'+i, at)
		}
	}
	return text
}

func (o *own) startEnvoy(config []byte) {
	o.t.Helper()
	var err error
	o.process, err = envoy.Start(envoy.Config{
		Path: envoyPath(o.t), Bootstrap: config, Dir: o.t.TempDir(), Concurrency: 2, Log: slog.New(slog.NewTextHandler(o.t.Output(), nil)),
	})
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { o.process.Stop(context.Background()) })
	ctx, cancel := context.WithTimeout(o.t.Context(), patience)
	defer cancel()
	if err := o.process.WaitReady(ctx); err != nil {
		o.t.Fatal(err)
	}
	// Envoy asks no router before it has found one healthy, so the website shows that it serves.
	eventually(o.t, "Envoy serves", func() error { _, err := get(o.url + "/"); return err })
	eventually(o.t, "Envoy has found the router healthy", func() error {
		n, err := o.process.Stat(o.t.Context(), "cluster.stator-extproc.membership_healthy")
		if err == nil && n == 0 {
			err = errNotYet
		}
		return err
	})
}

// converse has new conversations of some turns at the same time, and returns how many requests they sent.
func (o *own) converse(talks, turns int) int {
	o.t.Helper()
	var all sync.WaitGroup
	for range talks {
		o.talks++
		c := newTalk(fmt.Sprintf("the lighthouse of number %d", o.talks), 60)
		all.Go(func() {
			for turn := range turns {
				if err := c.turn(o.gateway, turn); err != nil {
					o.t.Errorf("turn %d: %v", turn, err)
					return
				}
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			for worker, n := range c.workers {
				o.used[worker] += n
			}
		})
	}
	all.Wait()
	return talks * turns
}

// TestSnippetInAnOrdinaryEnvoy: an Envoy with a configuration of its own gets the parts that `stator envoy snippet` prints.
// Conversations and a body of 2 MiB are served where the router picked, without a booking that stays. The website of that Envoy
// does not depend on routers, and without them chats are answered too.
func TestSnippetInAnOrdinaryEnvoy(t *testing.T) {
	t.Parallel()
	snippetInAnOrdinaryEnvoy(t)
}

// snippetInAnOrdinaryEnvoy is TestSnippetInAnOrdinaryEnvoy with the Envoy of the environment.
func snippetInAnOrdinaryEnvoy(t *testing.T) {
	t.Helper()
	o := startOwn(t, simFleet(simEngines(t, 2)...), nil)
	sent := o.converse(6, 4)
	filler := strings.Repeat("0123456789abcdef", 2<<16)
	r, err := o.send(t.Context(), http.MethodPost, "/v1/completions", fmt.Appendf(nil, `{"model":"sim","max_tokens":4,"prompt":"The quick","x_filler":%q}`, filler),
		"x-data-parallel-rank", "7", "x-stator-model", "other")
	if err != nil || r.status != http.StatusOK || r.decision == "" {
		t.Fatalf("a long body: status %d, decision %q, %v: %.300s", r.status, r.decision, err, r.body)
	}
	text, err := get(o.url + "/v1/other")
	if err != nil || text != "the website" {
		t.Errorf("the website: %q, %v", text, err)
	}
	o.assertServed(sent + 1)
	if n := o.served("unpicked") + o.served("answered"); n > 0 {
		t.Errorf("%d requests of the website were reported to the router", n)
	}

	o.extproc.kill()
	for range 3 {
		if _, err := o.tryChat(t.Context(), []message{{"user", "is a router there?"}}, 4); err != nil {
			t.Errorf("without a router: %v", err)
		}
	}
	if text, err := get(o.url + "/page"); err != nil || text != "the website" {
		t.Errorf("the website without a router: %q, %v", text, err)
	}
}

// TestSnippetsAreValid: the installed Envoy accepts the snippets for it and for all older versions.
func TestSnippetsAreValid(t *testing.T) {
	t.Parallel()
	snippetsAreValid(t)
}

// snippetsAreValid is TestSnippetsAreValid with the Envoy of the environment.
func snippetsAreValid(t *testing.T) {
	t.Helper()
	for minor := 36; minor <= min(40, envoyMinor(t)); minor++ {
		version := fmt.Sprintf("1.%d", minor)
		for name, flags := range map[string][]string{
			"endpoints":       {"--pool", "one"},
			"eds":             {"--eds-only", "--pool", "one", "--pool", "two/three", "--node-id", "own"},
			"full duplex":     {"--pool", "one", "--mode", "FULL_DUPLEX_STREAMED"},
			"several routers": {"--pool", "one", "--extproc-address", "r1.example:9002,r2.example:9002"},
		} {
			config := withSnippet(t, ordinary("127.0.0.1:10000", "127.0.0.1:10001"), append(flags, "--envoy", version)...)
			file := filepath.Join(t.TempDir(), "envoy.yaml")
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(envoyPath(t), "--mode", "validate", "--config-path", file, "--log-level", "warn").CombinedOutput()
			if err != nil {
				t.Errorf("Envoy %s, %s: %v\n%s", version, name, err, out)
			}
		}
	}
}

// TestSnippetIntoForeignFile: the installed Envoy accepts a file of someone else with the parts. A file that has them already, or that
// has several virtual hosts, is refused and stays as it is.
func TestSnippetIntoForeignFile(t *testing.T) {
	t.Parallel()
	foreign, err := os.ReadFile(filepath.Join("testdata", "foreign.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, foreign, 0o600); err != nil {
		t.Fatal(err)
	}
	into := func(flags ...string) (string, error) {
		out, err := exec.Command(binary, append([]string{"envoy", "snippet", "--into", file}, flags...)...).CombinedOutput()
		return string(out), err
	}

	if out, err := into(); err == nil || !strings.Contains(out, "--virtual-host: old, new") {
		t.Errorf("several virtual hosts: %v, %s", err, out)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != string(foreign) {
		t.Errorf("the file has changed: %v", err)
	}
	version := fmt.Sprintf("1.%d", min(40, envoyMinor(t)))
	if out, err := into("--virtual-host", "new", "--eds-only", "--envoy", version); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command(envoyPath(t), "--mode", "validate", "--config-path", file, "--log-level", "warn").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := into("--virtual-host", "new"); err == nil || !strings.Contains(out, "remove the parts of an earlier snippet") {
		t.Errorf("twice: %v, %s", err, out)
	}
}

// TestSnippetOfSeveralModels: the decision selects the pool of a request's model. Without a decision there is no answer,
// because the body is not read.
func TestSnippetOfSeveralModels(t *testing.T) {
	t.Parallel()
	snippetOfSeveralModels(t)
}

// snippetOfSeveralModels is TestSnippetOfSeveralModels with the Envoy of the environment.
func snippetOfSeveralModels(t *testing.T) {
	t.Helper()
	workers := map[string]*backend{"left": startBackend(t, nil), "right/hand": startBackend(t, nil)}
	text := "models:\n"
	for model, w := range workers {
		text += fmt.Sprintf("- {name: %q, path: \"builtin:sim\", workers: [{name: at-%.4s, address: %q, healthPath: none}]}\n", model, model, w.address)
	}
	o := startOwn(t, text, nil)
	for model, w := range workers {
		for i := range 3 {
			body := fmt.Appendf(nil, `{"model":%q,"messages":[{"role":"user","content":"hello %d"}]}`, model, i)
			r, err := o.send(t.Context(), http.MethodPost, chatPath, body, "x-stator-model", "left")
			if err != nil || r.status != http.StatusOK {
				t.Errorf("%s: status %d, %v: %s", model, r.status, err, r.body)
			}
		}
		if n := len(w.got()); n != 3 {
			t.Errorf("%s got %d requests of 3", model, n)
		}
	}
	o.assertServed(6)

	o.extproc.kill()
	r, err := o.send(t.Context(), http.MethodPost, chatPath, []byte(`{"model":"left","messages":[{"role":"user","content":"hello"}]}`))
	if err != nil || r.status != http.StatusServiceUnavailable {
		t.Errorf("without a router: status %d, %v: %s", r.status, err, r.body)
	}
	if text, err := get(o.url + "/page"); err != nil || text != "the website" {
		t.Errorf("the website without a router: %q, %v", text, err)
	}
}
