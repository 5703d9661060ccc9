package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/stator-project/stator/envoy"
)

// samplesVariable names a folder to which the test writes what each Envoy's admin port showed. The samples in
// doctor/testdata/envoy were made so: STATOR_TEST_SAMPLES=$PWD/doctor/testdata/envoy go test ./test/scenario -run TestDoctorReads
const samplesVariable = "STATOR_TEST_SAMPLES"

// filterStep is an ext_proc filter with its defaults, at the place where a first attempt puts it.
const filterStep = `
http_filters:
- name: ext_proc
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
    grpc_service: {envoy_grpc: {cluster_name: brain}}
`

const logStep = `
access_log:
- name: envoy.access_loggers.http_grpc
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
    common_config: {log_name: stator, transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: brain}}}
`

const http2Step = `
envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
  "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
  explicit_http_config: {http2_protocol_options: {}}
`

const overrideStep = `
policies:
- typed_extension_config:
    name: envoy.load_balancing_policies.override_host
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
      override_host_sources: [{metadata: {key: envoy.lb, path: [{key: KEY}]}}]
      selected_host_key: {key: envoy.lb, path: [{key: KEY-served}]}
      fallback_policy: {policies: [{typed_extension_config: {name: envoy.load_balancing_policies.round_robin,
        typed_config: {"@type": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin}}}]}
`

const retryStep = `{retry_on: "connect-failure,reset", num_retries: 1, retry_host_predicate: [{name: envoy.retry_host_predicates.previous_hosts,
  typed_config: {"@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate}}]}`

// attempt is an ordinary Envoy to which its operator adds Stator step by step. Its parts are in config.
type attempt struct {
	config                          yamlMap
	manager, filter, engines, brain yamlMap
	host                            yamlMap
}

// newAttempt returns the ordinary Envoy with a route and a cluster of engines.
func newAttempt(t *testing.T, listen, website, extproc string, engines []string) *attempt {
	t.Helper()
	a := &attempt{config: parseYAML(t, ordinary(listen, website))}
	static := a.config["static_resources"].(yamlMap)
	listener := static["listeners"].([]any)[0].(yamlMap)
	a.manager = listener["filter_chains"].([]any)[0].(yamlMap)["filters"].([]any)[0].(yamlMap)["typed_config"].(yamlMap)
	a.host = a.manager["route_config"].(yamlMap)["virtual_hosts"].([]any)[0].(yamlMap)
	a.host["routes"] = append([]any{parseYAML(t, `{match: {prefix: /v1/}, route: {cluster: engines}}`)}, a.host["routes"].([]any)...)
	a.engines, a.brain = clusterOf("engines", engines...), clusterOf("brain", extproc)
	static["clusters"] = append(static["clusters"].([]any), a.engines, a.brain)
	return a
}

func parseYAML(t *testing.T, text string) yamlMap {
	t.Helper()
	var m yamlMap
	if err := yaml.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// clusterOf returns a cluster with these endpoints.
func clusterOf(name string, addresses ...string) yamlMap {
	var list []any
	for _, at := range addresses {
		colon := strings.LastIndex(at, ":")
		port, _ := strconv.Atoi(at[colon+1:])
		list = append(list, yamlMap{"endpoint": yamlMap{"address": yamlMap{"socket_address": yamlMap{"address": at[:colon], "port_value": port}}}})
	}
	return yamlMap{"name": name, "type": "STATIC", "load_assignment": yamlMap{"cluster_name": name, "endpoints": []any{yamlMap{"lb_endpoints": list}}}}
}

// addFilter puts the naive filter before the router filter.
func (a *attempt) addFilter(t *testing.T) {
	t.Helper()
	added := parseYAML(t, filterStep)["http_filters"].([]any)[0].(yamlMap)
	a.filter = added["typed_config"].(yamlMap)
	a.manager["http_filters"] = append([]any{added}, a.manager["http_filters"].([]any)...)
}

func (a *attempt) route() yamlMap { return a.host["routes"].([]any)[0].(yamlMap)["route"].(yamlMap) }

// TestDoctorReadsAnEnvoy adds Stator to an ordinary Envoy as a person without the documents does it. At each step the doctor
// names what is missing, and nothing that has been corrected. With the parts of `stator envoy snippet` nothing is missing.
func TestDoctorReadsAnEnvoy(t *testing.T) {
	t.Parallel()
	engines := simEngines(t, 2)
	extprocAt, admin := freeAddress(t), freeAddress(t)
	file := configFile(t, simFleet(engines...))
	extproc := start(t, "extproc", "--config", file, "--listen-address", extprocAt, "--admin-address", admin)
	eventually(t, "the router is ready", func() error { _, err := get("http://" + admin + "/readyz"); return err })
	website := startBackend(t, func(_ *backend, w http.ResponseWriter, _ string) { _, _ = fmt.Fprint(w, "the website") })
	listen := freeAddress(t)
	a := newAttempt(t, listen, website.address, extprocAt, engines)

	// What the first attempt lacks, until the snippet is used.
	always := []string{"envoy-body-limit", "envoy-decision-time", "envoy-filter-routes", "envoy-headers", "envoy-pool-limits",
		"envoy-retry", "envoy-route-timeout", "envoy-router-cluster"}
	with := func(more ...string) []string { return append(slices.Clone(always), more...) }
	steps := []struct {
		name   string
		change func()
		want   []string // checks with a fault
	}{
		{"ordinary", func() {}, []string{"envoy-filter"}},
		{"filter", func() { a.addFilter(t) },
			with("envoy-filter-mode", "envoy-failure-mode", "envoy-namespaces", "envoy-access-log", "envoy-pool-policy", "envoy-counters")},
		{"buffered", func() {
			a.brain["typed_extension_protocol_options"] = parseYAML(t, http2Step)
			a.filter["processing_mode"] = parseYAML(t, `{request_body_mode: BUFFERED, response_header_mode: SKIP}`)
		}, with("envoy-failure-mode", "envoy-namespaces", "envoy-access-log", "envoy-pool-policy")},
		{"other-key", func() {
			a.engines["load_balancing_policy"] = parseYAML(t, strings.ReplaceAll(overrideStep, "KEY", "picked"))
		}, with("envoy-failure-mode", "envoy-namespaces", "envoy-access-log", "envoy-pool-policy")},
		{"right-key", func() {
			a.engines["load_balancing_policy"] = parseYAML(t, strings.ReplaceAll(overrideStep, "KEY", "x-gateway-destination-endpoint"))
		}, with("envoy-failure-mode", "envoy-namespaces", "envoy-access-log")},
		{"access-log", func() {
			a.manager["access_log"] = append(a.manager["access_log"].([]any), parseYAML(t, logStep)["access_log"].([]any)...)
		}, with("envoy-failure-mode", "envoy-namespaces", "envoy-access-log")},
		{"namespaces", func() {
			a.filter["metadata_options"] = parseYAML(t, `{receiving_namespaces: {untyped: [envoy.lb, stator]}}`)
			a.filter["failure_mode_allow"] = true
		}, with("envoy-access-log")},
		{"full-duplex", func() {
			a.filter["processing_mode"] = parseYAML(t, `{request_body_mode: FULL_DUPLEX_STREAMED, request_trailer_mode: SEND, response_header_mode: SKIP}`)
			a.route()["retry_policy"] = parseYAML(t, retryStep)
		}, slices.DeleteFunc(with("envoy-access-log"),
			func(s string) bool { return s == "envoy-body-limit" || s == "envoy-decision-time" })},
	}
	for _, step := range steps {
		step.change()
		text, err := yaml.Marshal(a.config)
		if err != nil {
			t.Fatal(err)
		}
		examineEnvoy(t, step.name, text, listen, nil, step.want)
	}

	complete := []byte(withSnippet(t, ordinary(listen, website.address), "--config", file, "--extproc-address", extprocAt,
		"--envoy", fmt.Sprintf("1.%d", envoyMinor(t))))
	compare := []string{"--config", file, "--admin-address", admin, "--wait", "100ms"}
	examineEnvoy(t, "complete", complete, listen, compare, []string{})

	extproc.kill()
	examineEnvoy(t, "no-router", complete, listen, nil, []string{"envoy-counters", "envoy-endpoints"})
}

// TestDoctorReadsTheGateway examines the Envoy of `stator up`, which gets its listeners and routes from the control plane:
// two models, and a listener for trusted clients. It has no fault.
func TestDoctorReadsTheGateway(t *testing.T) {
	t.Parallel()
	doctorReadsTheGateway(t)
}

// doctorReadsTheGateway is TestDoctorReadsTheGateway with the Envoy of the environment.
func doctorReadsTheGateway(t *testing.T) {
	t.Helper()
	folder, err := os.MkdirTemp("", "s-") //nolint:usetesting // the path of a socket must be short, and that of a subtest is not
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	file := configFile(t, fmt.Sprintf("gateway: {trustedListen: %q}\nmodels:\n", freeAddress(t))+
		`- {name: a, path: "builtin:sim", launch: [{engine: sim, count: 2}]}
- {name: b/c, path: "builtin:sim", launch: [{engine: sim, count: 1}]}
`)
	g := upIn(t, folder, "--config", file)
	sockets, err := filepath.Glob(filepath.Join(folder, "stator-*", "gateway-0", "admin.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("admin sockets of Envoy: %q, %v", sockets, err)
	}
	found, err := faultsOf([]string{"doctor", "--envoy-admin", "unix://" + sockets[0], "--config", file, "--admin-address", g.admin, "--wait", "100ms", "--json"})
	if err != nil || len(found) > 0 {
		t.Errorf("found %q, %v", found, err)
	}
}

// examineEnvoy starts an Envoy, sends it some chats, and compares the checks that find a fault in it with want.
func examineEnvoy(t *testing.T, name string, config []byte, listen string, flags, want []string) {
	t.Helper()
	process, err := envoy.Start(envoy.Config{Path: envoyPath(t), Bootstrap: config, Dir: t.TempDir(), Concurrency: 1,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer process.Stop(context.Background())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := process.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	admin, err := process.AdminAddress()
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t, url: "http://" + listen}
	const counters = "envoy-counters"
	want = slices.Clone(want)
	for range 3 {
		r, err := g.tryChat(t.Context(), []message{{"user", "Is there a router?"}}, 1)
		t.Logf("%s: a chat: status %d, decision %q, %v", name, r.status, r.decision, err)
		if r.status == http.StatusGatewayTimeout && !slices.Contains(want, counters) {
			want = append(want, counters) // the machine was too slow for Envoy's message_timeout, which the doctor finds as well
		}
	}
	if folder := os.Getenv(samplesVariable); folder != "" {
		saveSample(t, filepath.Join(folder, name+".json"), "http://"+admin)
	}

	args := append([]string{"doctor", "--envoy-admin", "http://" + admin, "--json"}, flags...)
	eventually(t, name+": the doctor finds what is expected", func() error {
		found, err := faultsOf(args)
		slices.Sort(want)
		if err == nil && !slices.Equal(found, want) {
			err = fmt.Errorf("it found %q, want %q", found, want)
		}
		return err
	})
}

// faultsOf runs the doctor, and returns the checks with a finding that is no note. Its exit status must fit.
func faultsOf(args []string) ([]string, error) {
	cmd := exec.Command(binary, args...)
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.Output()
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		return nil, err
	}
	var d struct {
		Findings []struct {
			Check string
			Note  bool
		}
	}
	if err := json.Unmarshal(out, &d); err != nil {
		return nil, fmt.Errorf("doctor printed %s%s: %w", out, &log, err)
	}

	found := []string{}
	for _, f := range d.Findings {
		if !f.Note && !slices.Contains(found, f.Check) {
			found = append(found, f.Check)
		}
	}
	slices.Sort(found)
	if code := cmd.ProcessState.ExitCode(); code != min(len(found), 1) {
		return found, fmt.Errorf("exit status %d with %d faults: %s", code, len(found), &log)
	}
	return found, nil
}

// saveSample writes the pages of an admin port that the doctor reads. The bootstrap, which has all of the others again, and
// the command line are left out.
func saveSample(t *testing.T, file, admin string) {
	t.Helper()
	page := func(path string, v any) {
		text, err := get(admin + path)
		if err == nil {
			err = json.Unmarshal([]byte(text), v)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var info struct {
		Version string `json:"version"`
	}
	var dump struct {
		Configs []yamlMap `json:"configs"`
	}
	var hosts any
	page("/server_info", &info)
	page("/config_dump", &dump)
	page("/clusters?format=json", &hosts)
	stats, err := get(admin + "/stats?filter=ext_proc%7Cgrpc_access_log%7Cupstream_rq_total%24%7Cupdate_rejected%24")
	if err != nil {
		t.Fatal(err)
	}

	dump.Configs = slices.DeleteFunc(dump.Configs, func(section yamlMap) bool {
		return strings.HasSuffix(section["@type"].(string), "BootstrapConfigDump")
	})
	text, err := json.MarshalIndent(yamlMap{"server_info": info, "config_dump": dump, "clusters": hosts, "stats": strings.Split(strings.TrimSpace(stats), "\n")}, "", " ")
	if err == nil {
		err = os.WriteFile(file, append(text, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
