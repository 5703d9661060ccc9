package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// logger writes lines of level and text only.
func logger() (*slog.Logger, *testkit.Log) {
	var o testkit.Log
	return slog.New(slog.NewTextHandler(&o, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})), &o
}

func program(t *testing.T, dir, path string) string {
	t.Helper()
	full := filepath.Join(dir, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return full
}

// Without an Envoy binary, the error is one sentence with what to do.
func TestFindAffinityModule(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if _, err := FindAffinityModule(); !errors.Is(err, ErrNoModule) || !strings.Contains(err.Error(), "make build-wasm") {
		t.Errorf("none: %v", err)
	}
	want := program(t, dir, "bin/affinity.wasm")
	if got, err := FindAffinityModule(); got != want {
		t.Errorf("in bin of the working directory: %q, %v", got, err)
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("PATH", filepath.Join(dir, "path"))
	_, err := Find("")
	if !errors.Is(err, ErrNotFound) || err.Error() != "no Envoy found: run `make build`, which installs one into .venv, or name yours with --envoy PATH" {
		t.Errorf("none at all: %v", err)
	}
	inPath := program(t, dir, "path/envoy")
	if got, err := Find(""); got != inPath {
		t.Errorf("in PATH: %q, %v", got, err)
	}
	inVenv := program(t, dir, ".venv/lib/python3.11/site-packages/envoy/_bin/envoy")
	if got, err := Find(""); got != inVenv {
		t.Errorf("in the virtual environment, which goes before PATH: %q, %v", got, err)
	}
	named := program(t, dir, "elsewhere/my-envoy")
	if got, err := Find(named); got != named {
		t.Errorf("named: %q, %v", got, err)
	}
	if got, err := Find("envoy"); got != inPath {
		t.Errorf("named as in PATH: %q, %v", got, err)
	}
	if _, err := Find("/no/such/envoy"); !errors.Is(err, ErrNotFound) ||
		err.Error() != "no Envoy found at /no/such/envoy: no such file or directory; leave --envoy away to use the one that `make build` installs" {
		t.Errorf("named but not there: %v", err)
	}
	if err := os.Chmod(named, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(named); !errors.Is(err, ErrNotFound) {
		t.Errorf("not executable: %v", err)
	}
}

// Envoy's lines become structured ones; what it calls a warning but is none is not shown.
func TestRelay(t *testing.T) {
	log, out := logger()
	var p Process
	var access strings.Builder
	cfg := &Config{Log: log, Out: &access}
	for _, line := range []string{
		`{"a line": "of the access log"}`,
		"warning\tconfig\tgRPC config stream closed: 14, connection refused",
		"error\tmain\terror initializing configuration",
		"critical\tbacktrace\tCaught Segmentation fault",
		"warning\tmain\tThere is no configured limit to the number of allowed active downstream connections. Configure a limit",
		"warning\tmain\tcaught ENVOY_SIGTERM",
		"warning\tmain\ttabs\tare\tkept",
		"a line of its own, as of a sanitizer",
		"half\ta line",
		"",
	} {
		p.relay(cfg, line)
	}
	if access.String() != "{\"a line\": \"of the access log\"}\n" {
		t.Errorf("the access log is %q", access.String())
	}
	p.stopping.Store(true)
	p.relay(cfg, "error\tconfig\tstream closed: it complains of its own end")
	want := `level=WARN msg="envoy log" logger=config line="gRPC config stream closed: 14, connection refused"
level=ERROR msg="envoy log" logger=main line="error initializing configuration"
level=ERROR msg="envoy log" logger=backtrace line="Caught Segmentation fault"
level=WARN msg="envoy log" logger=main line="There is no configured limit to the number of allowed active downstream connections. Configure a limit"
level=DEBUG msg="envoy log" logger=main line="caught ENVOY_SIGTERM"
level=WARN msg="envoy log" logger=main line="tabs\tare\tkept"
level=WARN msg="envoy log" logger="" line="a line of its own, as of a sanitizer"
level=WARN msg="envoy log" logger="" line="half\ta line"
level=WARN msg="envoy log" logger="" line=""
level=DEBUG msg="envoy log" logger=config line="stream closed: it complains of its own end"
`
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// installed is the Envoy that `make test` installs; STATOR_TEST_ENVOY names another.
func installed(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("STATOR_TEST_ENVOY"); path != "" {
		return path
	}
	found, err := filepath.Glob(filepath.Join("..", wheel))
	if err != nil || len(found) == 0 {
		t.Fatal("there is no Envoy: run `make test`, which installs one")
	}
	return found[0]
}

// bounded is the part of a bootstrap without which Envoy warns.
const bounded = `overload_manager: {resource_monitors: [{
  name: envoy.resource_monitors.global_downstream_max_connections,
  typed_config: {
    "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig,
    max_active_downstream_connections: 100}}]}
`

// startEnvoy runs an Envoy whose bootstrap has these static resources. Its admin server is a socket.
func startEnvoy(t *testing.T, dir, resources string) (*Process, *testkit.Log) {
	t.Helper()
	log, out := logger()
	p, err := Start(Config{
		Path: installed(t), Dir: dir, Concurrency: 1, Log: log,
		Bootstrap: []byte("admin: {address: {pipe: {path: " + filepath.Join(dir, "admin.sock") + "}}}\n" + bounded + resources),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		p.Stop(ctx)
		if t.Failed() {
			t.Logf("envoy wrote:\n%s", out)
		}
	})
	return p, out
}

// within bounds a wait for Envoy.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// proxy is a gateway for one upstream.
func proxy(t *testing.T, upstream string) (resources, address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	_ = ln.Close()
	_, upPort, _ := net.SplitHostPort(upstream)
	return fmt.Sprintf(`
static_resources:
  listeners:
  - name: gateway
    address: {socket_address: {address: 127.0.0.1, port_value: %s}}
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: %s
          route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: "/"}, route: {cluster: up, timeout: 0s}}]}]}
          http_filters:
          - name: router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: up
    load_assignment: {cluster_name: up, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}}]}]}
`, port, envoynames.ConnectionManager, upPort), ln.Addr().String()
}

// An Envoy that is live but has been given nothing to listen on is not ready: its control plane
// is late, and clients could not connect.
func TestNotReadyWithoutListener(t *testing.T) {
	p, _ := startEnvoy(t, t.TempDir(), "")
	testkit.Eventually(t, "envoy is live", func() bool {
		n, err := p.Stat(t.Context(), "server.live")
		return err == nil && n == 1
	})
	err := p.WaitReady(within(t, 300*time.Millisecond))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "wait for envoy: ") {
		t.Errorf("without a listener: %v", err)
	}
}

// The whole life: ready, serving, counted; draining waits for what is in flight and takes
// nothing new; then it stops.
func TestServeDrainStop(t *testing.T) {
	release := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-release
		}
		_, _ = io.WriteString(w, "hello")
	}))
	defer up.Close()
	resources, address := proxy(t, up.Listener.Addr().String())
	p, out := startEnvoy(t, t.TempDir(), resources)
	if err := p.WaitReady(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (string, error) {
		resp, err := client.Get("http://" + address + path)
		if err != nil {
			return "", err
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	if got, err := get("/"); err != nil || got != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	slow := make(chan error, 1)
	go func() {
		got, err := get("/slow")
		if err == nil && got != "hello" {
			err = errors.New(got)
		}
		slow <- err
	}()
	testkit.Eventually(t, "a request is in flight", func() bool {
		n, err := p.InFlight(t.Context())
		return err == nil && n == 1
	})
	p.Drain(within(t, 200*time.Millisecond)) // ends with its context
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		p.Drain(t.Context())
	}()
	testkit.Eventually(t, "nothing new is accepted", func() bool {
		_, err := get("/")
		return err != nil
	})
	select {
	case <-drained:
		t.Error("drained with a request in flight")
	default:
	}
	close(release)
	if err := <-slow; err != nil {
		t.Errorf("the request in flight: %v", err)
	}
	<-drained
	p.Stop(within(t, 10*time.Second))
	if err := p.Run(); err == nil || err.Error() != "envoy has ended" {
		t.Errorf("after Stop: %v", err)
	}
	p.Drain(t.Context()) // of one that has gone returns
	if strings.Contains(out.String(), "level=WARN") || strings.Contains(out.String(), "level=ERROR") {
		t.Errorf("a healthy life is logged as trouble:\n%s", out)
	}
}

// A bootstrap that Envoy refuses ends it, and its reason is in our log as an error.
func TestBadBootstrap(t *testing.T) {
	p, out := startEnvoy(t, t.TempDir(), "static_resources: {listeners: [{name: no-address}]}\n")
	err := p.WaitReady(within(t, 20*time.Second))
	if err == nil || !strings.Contains(err.Error(), "envoy: exit status 1") {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(out.String(), `level=ERROR msg="envoy log" logger=main`) || !strings.Contains(out.String(), "no-address") {
		t.Errorf("its reason is not in the log:\n%s", out)
	}
}

// An Envoy that dies while it is waited for is not waited for any longer.
func TestKilled(t *testing.T) {
	p, _ := startEnvoy(t, t.TempDir(), "")
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitReady(within(t, 20*time.Second)); err == nil || err.Error() != "wait for envoy: envoy: signal: killed" {
		t.Errorf("waiting: %v", err)
	}
	if err := p.Run(); err == nil || err.Error() != "envoy: signal: killed" {
		t.Errorf("running: %v", err)
	}
	if _, err := p.InFlight(t.Context()); err == nil {
		t.Error("a dead Envoy has a number of requests")
	}
}

// The file with the admin address of an earlier Envoy is not used for the next one: another process may
// have the port by then.
func TestStaleAdminAddress(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "LIVE\n") }))
	defer other.Close()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "admin"), []byte(other.Listener.Addr().String()), 0o600); err != nil {
		t.Fatal(err)
	}
	log, _ := logger()
	p, err := Start(Config{Path: "/bin/true", Dir: dir, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WaitReady(within(t, 20*time.Second)); err == nil {
		t.Error("an Envoy that never was is ready")
	}
	if at, err := p.AdminAddress(); err == nil {
		t.Errorf("its admin server is said to be at %s", at)
	}
}

func TestNothingToStart(t *testing.T) {
	log, _ := logger()
	if _, err := Start(Config{Path: "/no/such/envoy", Dir: t.TempDir(), Log: log}); err == nil || !strings.HasPrefix(err.Error(), "start /no/such/envoy: ") {
		t.Errorf("no program: %v", err)
	}
	if _, err := Start(Config{Path: "/bin/true", Dir: "/no/such/folder", Log: log}); err == nil || !strings.HasPrefix(err.Error(), "write bootstrap: ") {
		t.Errorf("no folder: %v", err)
	}
}
