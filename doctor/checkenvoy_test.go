package doctor

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/config"
)

// object is a JSON object.
type object = map[string]any

// pages has the pages of an Envoy's admin port. The samples in testdata/envoy come from Envoy 1.40 in
// TestDoctorReadsAnEnvoy and TestDoctorReadsGateways of test/scenario, which describe the steps and write them. The bootstrap is left out.
type pages struct {
	Info     any      `json:"server_info"`
	Dump     any      `json:"config_dump"`
	Clusters any      `json:"clusters"`
	Stats    []string `json:"stats"`
}

func readSample(t testing.TB, name string) *pages {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "envoy", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	p := &pages{}
	if err := json.Unmarshal(raw, p); err != nil {
		t.Fatal(err)
	}
	return p
}

// wantByDefault returns the settings of routers without any configuration.
func wantByDefault() wanted {
	return wanted{maxBody: 32 << 20, decision: 5 * time.Second, idle: 10 * time.Minute}
}

// seen returns the observation of an Envoy with these pages.
func (p *pages) seen(want wanted) *envoySeen {
	e := &envoySeen{address: "e:9901", want: want}
	e.readPages(node{p.Info}, node{p.Dump}, node{p.Clusters}, []byte(strings.Join(p.Stats, "\n")))
	return e
}

// TestEnvoySamples examines what real Envoys showed. Verbs: "examine SAMPLE" prints the findings of testdata/envoy/SAMPLE.json.
func TestEnvoySamples(t *testing.T) {
	datadriven.RunTest(t, "testdata/envoy.txt", func(t *testing.T, d *datadriven.TestData) string {
		var b strings.Builder
		diagnoseEnvoy(readSample(t, d.CmdArgs[0].Key).seen(wantByDefault())).Print(&b)
		return b.String()
	})
}

// parts are the places of the complete sample that tests change.
type parts struct {
	*pages
	want                      wanted
	listener, manager, filter object
	filters                   []any
	host, route, action       object
	routers, pool, policy     object
	routersSeen, poolSeen     object
}

func in(value any, keys ...any) any {
	for _, key := range keys {
		switch k := key.(type) {
		case string:
			value = value.(object)[k]
		case int:
			value = value.([]any)[k]
		}
	}
	return value
}

// completeParts returns the sample of the complete snippet, which has no fault.
func completeParts(t *testing.T) *parts {
	t.Helper()
	p := &parts{pages: readSample(t, "complete"), want: wantByDefault()}
	for _, section := range in(p.Dump, "configs").([]any) {
		if l, ok := section.(object)["static_listeners"]; ok {
			p.listener = in(l, 0, "listener").(object)
		}
		if list, ok := section.(object)["static_clusters"]; ok {
			for _, c := range list.([]any) {
				switch cluster := in(c, "cluster").(object); cluster["name"] {
				case "pool/sim":
					p.pool = cluster
				case "stator-extproc":
					p.routers = cluster
				}
			}
		}
	}

	p.manager = in(p.listener, "filter_chains", 0, "filters", 0, "typed_config").(object)
	p.filters = p.manager["http_filters"].([]any)
	p.filter = in(p.filters, 0, "typed_config").(object)
	p.host = in(p.manager, "route_config", "virtual_hosts", 0).(object)
	p.route = in(p.host, "routes", 0).(object)
	p.action = p.route["route"].(object)
	p.policy = in(p.pool, "load_balancing_policy", "policies", 0, "typed_extension_config", "typed_config").(object)
	p.want.models = []string{"sim"}
	p.want.workers = map[string][]workerAddress{}
	for _, c := range in(p.Clusters, "cluster_statuses").([]any) {
		switch status := c.(object); status["name"] {
		case "pool/sim":
			p.poolSeen = status
			for i, h := range status["host_statuses"].([]any) {
				at := netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%.0f", in(h, "address", "socket_address", "port_value")))
				p.want.workers["sim"] = append(p.want.workers["sim"], workerAddress{string(rune('a' + i)), at})
			}
		case "stator-extproc":
			p.routersSeen = status
		}
	}
	return p
}

// parsed returns JSON as a value.
func parsed(text string) any {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		panic(err)
	}
	return v
}

func (p *parts) stat(name string, value int) {
	p.Stats = append(p.Stats, fmt.Sprintf("http.front.ext_proc.stator.%s: %d", name, value))
}

// perRoute sets the configuration of the filter on the route of the snippet.
func (p *parts) perRoute(text string) {
	p.route["typed_per_filter_config"] = object{"stator.ext_proc": parsed(text)}
}

// addModel adds a second pool, with a route that a decision selects, and has the first route need one.
func (p *parts) addModel() {
	match := func(model string) any {
		return parsed(`{"prefix":"/","headers":[{"name":"x-stator-model","string_match":{"exact":"` + model + `"}}]}`)
	}
	p.route["match"] = match("sim")
	other := parsed(mustJSON(p.route)).(object)
	other["match"], other["name"] = match("other"), "other"
	other["route"].(object)["cluster"] = "pool/other"
	pool := parsed(mustJSON(p.pool)).(object)
	pool["name"] = "pool/other"
	entry := parsed(mustJSON(p.route)).(object)
	entry["match"], entry["name"] = parsed(`{"prefix":"/v1/"}`), "entry"
	p.host["routes"] = append([]any{p.route, other, entry}, p.host["routes"].([]any)[1:]...)
	p.Dump.(object)["configs"] = append(in(p.Dump, "configs").([]any),
		object{"@type": "x/envoy.admin.v3.ClustersConfigDump", "static_clusters": []any{object{"cluster": pool}}})
	status := parsed(mustJSON(p.poolSeen)).(object)
	status["name"] = "pool/other"
	p.Clusters.(object)["cluster_statuses"] = append(in(p.Clusters, "cluster_statuses").([]any), status)
}

func mustJSON(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// section adds a section to the dump.
func (p *parts) section(text string) {
	p.Dump.(object)["configs"] = append(in(p.Dump, "configs").([]any), parsed(text))
}

const jwt = `{"name":"envoy.filters.http.jwt_authn","typed_config":{"@type":"x/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"}}`

// envoyFaults are changes of a complete configuration. Each has the one check that finds it, with texts of its finding; a check
// that begins with "note " finds no fault, and an empty one finds nothing.
var envoyFaults = []struct {
	check  string
	change func(p *parts)
	want   string
}{
	{"", func(*parts) {}, ""},
	{"envoy-version", func(p *parts) { p.Info = object{"version": "abc/1.35.3/Clean/RELEASE/BoringSSL"} }, "Envoy: its version is 1.35.3, and 1.36 is the oldest"},
	{"", func(p *parts) { p.Info = object{"version": "abc/1.37.0-dev/Clean/RELEASE/BoringSSL"} }, ""},
	{"note envoy-version", func(p *parts) { p.Info = object{"version": "abc/1.99.0/Clean"} }, "1.99.0, and this program knows 1.36 to 1.40"},
	{"note envoy-version", func(p *parts) { p.Info = object{"version": "of mine"} }, "its version cannot be read"},
	{"envoy-rejected", func(p *parts) {
		p.section(`{"@type":"x/envoy.admin.v3.ListenersConfigDump","dynamic_listeners":[{"name":"l\n2","error_state":{"details":"unknown field"}}]}`)
	}, "listener l 2: Envoy has refused its newest version: unknown field"},
	{"note envoy-rejected", func(p *parts) { p.Stats = append(p.Stats, "cluster_manager.cds.update_rejected: 2") },
		"it has refused 2 updates since it started (cluster_manager.cds.update_rejected)"},
	{"envoy-rejected", func(p *parts) { // it is no cluster yet
		p.section(`{"@type":"x/y.ClustersConfigDump","dynamic_warming_clusters":[{"error_state":{"failed_configuration":{"name":"pool/new"}}}]}`)
	}, "cluster pool/new: Envoy has refused its newest version"},
	{"envoy-filter", func(p *parts) { p.manager["http_filters"] = p.filters[1:] }, "no HTTP connection manager has an ext_proc filter"},
	{"envoy-filter", func(p *parts) { p.Dump = object{} }, "no listener has an HTTP connection manager"},
	{"envoy-filter", func(p *parts) {
		second := parsed(mustJSON(p.listener)).(object)
		second["name"] = "l"
		manager := in(second, "filter_chains", 0, "filters", 0, "typed_config").(object)
		delete(manager, "route_config")
		manager["rds"] = object{"route_config_name": "r"}
		p.section(`{"@type":"x/y.ListenersConfigDump","static_listeners":[{"listener":` + mustJSON(second) + `}]}`)
	}, "listener l: its route configuration r is not there"},
	{"note envoy-filter", func(p *parts) { p.manager["scoped_routes"] = object{} }, "it has scoped routes"},
	{"note envoy-filter", func(p *parts) { p.host["matcher"] = object{} }, "it has a virtual host with a matcher"},
	{"note envoy-filter", func(p *parts) {
		p.manager["http_filters"] = append([]any{parsed(`{"name":"theirs","typed_config":{"@type":"x/y.v3.ExternalProcessor"}}`)}, p.filters...)
	}, "of 2 ext_proc filters, those with most names of Stator are examined: stator.ext_proc of listener front"},
	{"envoy-filter-place", func(p *parts) { p.manager["http_filters"] = []any{p.filters[1], p.filters[0]} }, "it comes after the router filter"},
	{"envoy-filter-place", func(p *parts) { p.manager["http_filters"] = []any{p.filters[0], parsed(jwt), p.filters[1]} }, "jwt_authn comes after it"},
	{"", func(p *parts) { p.manager["http_filters"] = []any{parsed(jwt), p.filters[0], p.filters[1]} }, ""},
	{"envoy-filter-routes", func(p *parts) { delete(p.route, "typed_per_filter_config") }, "no route to workers enables it"},
	{"envoy-filter-routes", func(p *parts) {
		more := parsed(mustJSON(p.route)).(object)
		more["name"], more["typed_per_filter_config"] = "more", object{"stator.ext_proc": parsed(`{"@type":"x/y.FilterConfig","disabled":true}`)}
		p.host["routes"] = append(p.host["routes"].([]any), more)
	}, "route more of listener front: it leads to workers (cluster pool/sim), and filter stator.ext_proc is disabled"},
	{"envoy-filter-routes", func(p *parts) { delete(p.filters[0].(object), "disabled") }, "route / of listener front: filter stator.ext_proc is enabled on it, and it leads to no workers (cluster website)"},
	{"envoy-filter-mode", func(p *parts) { p.filter["observability_mode"] = true }, "observability_mode is on"},
	{"envoy-filter-mode", func(p *parts) { p.filter["disable_immediate_response"] = true }, "disable_immediate_response is on"},
	{"envoy-filter-mode", func(p *parts) { in(p.filter, "processing_mode").(object)["request_header_mode"] = "SKIP" }, "request_header_mode is SKIP"},
	{"envoy-filter-mode", func(p *parts) { in(p.filter, "processing_mode").(object)["request_body_mode"] = "STREAMED" }, "request_body_mode is STREAMED"},
	{"envoy-filter-mode", func(p *parts) { delete(in(p.filter, "processing_mode").(object), "request_body_mode") }, "request_body_mode is NONE"},
	{"envoy-filter-mode", func(p *parts) { in(p.filter, "processing_mode").(object)["request_body_mode"] = "BUFFERED_PARTIAL" }, "BUFFERED_PARTIAL\n  why: prompts that are longer"},
	{"envoy-filter-mode", func(p *parts) {
		p.perRoute(`{"@type":"x/y.ExtProcPerRoute","overrides":{"processing_mode":{"response_header_mode":"SKIP"}}}`)
	}, "request_body_mode is NONE"},
	{"note envoy-filter-mode", func(p *parts) { delete(in(p.filter, "processing_mode").(object), "response_header_mode") }, "response headers are meant for routers"},
	{"envoy-failure-mode", func(p *parts) { delete(p.filter, "failure_mode_allow") }, "every request fails with 500"},
	{"", func(p *parts) {
		delete(p.filter, "failure_mode_allow")
		p.perRoute(`{"@type":"x/y.FilterConfig","config":{"@type":"x/y.ExtProcPerRoute","overrides":{"failure_mode_allow":true}}}`)
	}, ""},
	{"envoy-failure-mode", func(p *parts) { p.addModel() }, "route entry of listener front: requests of all models enter by it, and it leads to the workers of one (cluster pool/sim)"},
	{"envoy-failure-mode", func(p *parts) {
		p.addModel()
		routes := p.host["routes"].([]any)
		in(routes, 2, "route").(object)["cluster"] = "stator-undecided"
		p.filter["route_cache_action"] = "RETAIN"
	}, "Envoy does not choose the route again"},
	{"envoy-decision-time", func(p *parts) { p.filter["message_timeout"] = "0.500s" }, "message_timeout is 500ms, and the time for a decision (gateway.decisionTimeout) is 5s"},
	{"envoy-decision-time", func(p *parts) { delete(p.filter, "message_timeout") }, "message_timeout is 200ms"},
	{"envoy-decision-time", func(p *parts) { p.want.queueWait = time.Minute; p.filter["max_message_timeout"] = "10s" }, "max_message_timeout is 10s, and requests may wait for 1m0s"},
	{"envoy-decision-time", func(p *parts) { p.want.queueWait = time.Minute; delete(p.filter, "max_message_timeout") }, "max_message_timeout is not set"},
	{"note envoy-decision-time", func(p *parts) { delete(p.filter, "max_message_timeout") }, "max_message_timeout is not set"},
	{"envoy-decision-time", func(p *parts) { in(p.filter, "grpc_service").(object)["timeout"] = "1s" }, "grpc_service.timeout is 1s"},
	{"envoy-namespaces", func(p *parts) { delete(p.filter, "metadata_options") }, "lacks stator"},
	{"envoy-namespaces", func(p *parts) {
		p.filter["metadata_options"] = parsed(`{"receiving_namespaces":{"untyped":["stator"]}}`)
	}, "lacks envoy.lb\n  why: Envoy drops the picks"},
	{"envoy-access-log", func(p *parts) { delete(p.manager, "access_log") }, "listener front: it has no gRPC access log to routers\n"},
	{"envoy-access-log", func(p *parts) {
		in(p.manager, "access_log", 0, "typed_config", "common_config", "grpc_service", "envoy_grpc").(object)["cluster_name"] = "theirs"
	}, "its gRPC access logs go to cluster theirs"},
	{"envoy-access-log", func(p *parts) {
		in(p.manager, "access_log", 0).(object)["filter"] = parsed(`{"status_code_filter":{}}`)
	}, "names neither the metadata of routers nor a cluster"},
	{"note envoy-access-log", func(p *parts) { delete(in(p.manager, "access_log", 0).(object), "filter") }, "has no filter"},
	{"envoy-access-log", func(p *parts) {
		delete(in(p.manager, "access_log", 0, "typed_config", "common_config").(object), "buffer_size_bytes")
	}, "gathers entries"},
	{"envoy-headers", func(p *parts) { delete(p.manager, "early_header_mutation_extensions") }, "15 headers of clients early: x-gateway-destination-endpoint, "},
	{"envoy-headers", func(p *parts) {
		in(p.manager, "early_header_mutation_extensions", 0, "typed_config").(object)["mutations"] =
			parsed(`[{"remove":"X-Data-Parallel-Rank"},{"remove_on_match":{"key_matcher":{"prefix":"X-STATOR-","ignore_case":true}}}]`)
	}, "1 header of clients early: x-gateway-destination-endpoint\n"},
	{"envoy-headers", func(p *parts) {
		p.filter["forward_rules"] = parsed(`{"allowed_headers":{"patterns":[{"exact":":method"},{"exact":"content-type"}]}}`)
	}, "forward_rules leave out :path, content-encoding"},
	{"note envoy-headers", func(p *parts) { delete(p.filter, "forward_rules") }, "routers get credentials"},
	{"", func(p *parts) {
		p.filter["forward_rules"] = parsed(`{"disallowed_headers":{"patterns":[{"exact":"authorization"}]}}`)
	}, ""},
	{"envoy-body-limit", func(p *parts) { delete(p.route, "request_body_buffer_limit") }, "bodies may have 1048576 bytes (per_connection_buffer_limit_bytes of the listener), and 33554432 by"},
	{"envoy-body-limit", func(p *parts) { p.route["request_body_buffer_limit"] = "65536" }, "65536 bytes (request_body_buffer_limit of the route)"},
	{"", func(p *parts) {
		delete(p.route, "request_body_buffer_limit")
		p.host["request_body_buffer_limit"] = "33554432"
	}, ""},
	{"", func(p *parts) {
		delete(p.route, "request_body_buffer_limit")
		p.listener["per_connection_buffer_limit_bytes"] = 33554432.0
	}, ""},
	{"", func(p *parts) { // a listener for trusted clients
		in(p.filter, "grpc_service").(object)["initial_metadata"] = parsed(`[{"key":"x-stator-trusted","value":"true"}]`)
		mutations := in(p.manager, "early_header_mutation_extensions", 0, "typed_config").(object)
		mutations["mutations"] = parsed(`[{"remove_on_match":{"key_matcher":{"prefix":"x-gateway-destination-"}}},{"remove":"x-data-parallel-rank"},` +
			`{"remove":"x-stator-model"},{"remove":"x-stator-decision"},{"remove":"x-stator-affinity"}]`)
	}, ""},
	{"", func(p *parts) { // routes from a control plane
		routes := p.manager["route_config"].(object)
		routes["name"] = "r"
		delete(p.manager, "route_config")
		p.manager["rds"] = object{"route_config_name": "r"}
		p.section(`{"@type":"x/y.RoutesConfigDump","dynamic_route_configs":[{"route_config":` + mustJSON(routes) + `}]}`)
	}, ""},
	{"", func(p *parts) { // a filter from a control plane
		typed := mustJSON(p.filter)
		p.filters[0] = parsed(`{"name":"stator.ext_proc","disabled":true,"config_discovery":{}}`)
		p.section(`{"@type":"x/y.EcdsConfigDump","ecds_filters":[{"ecds_filter":{"name":"stator.ext_proc","typed_config":` + typed + `}}]}`)
	}, ""},
	{"envoy-filter-mode", func(p *parts) { // a type that the control plane did not know
		p.filter["observability_mode"] = true
		p.filters[0].(object)["typed_config"] = object{"@type": "x/xds.type.v3.TypedStruct", "type_url": p.filter["@type"], "value": p.filter}
	}, "observability_mode is on"},
	{"note envoy-decompressor", func(*parts) {}, "no decompressor comes before filter stator.ext_proc"},
	{"envoy-route-timeout", func(p *parts) { delete(p.action, "timeout") }, "route sim of listener front: its timeout is 15s, the default of Envoy"},
	{"envoy-route-timeout", func(p *parts) { p.action["timeout"] = "120s" }, "its timeout is 2m0s\n"},
	{"envoy-route-timeout", func(p *parts) { delete(p.action, "idle_timeout") }, "without data for 5m0s is ended, and gateway.idleTimeout is 10m0s"},
	{"", func(p *parts) { p.action["idle_timeout"] = "0s" }, ""},
	{"envoy-route-timeout", func(p *parts) {
		p.manager["common_http_protocol_options"] = object{"max_stream_duration": "60s"}
	}, "max_stream_duration is 1m0s"},
	{"envoy-retry", func(p *parts) { delete(p.action, "retry_policy") }, "it has no retry_policy"},
	{"envoy-retry", func(p *parts) { delete(in(p.action, "retry_policy").(object), "retry_host_predicate") }, "does not exclude hosts that failed before"},
	{"envoy-retry", func(p *parts) { in(p.action, "retry_policy").(object)["per_try_timeout"] = "9s" }, "per_try_timeout is 9s"},
	{"note envoy-retry", func(p *parts) { in(p.action, "retry_policy").(object)["num_retries"] = 5.0 }, "it retries up to 5 times"},
	{"", func(p *parts) {
		p.host["retry_policy"] = p.action["retry_policy"]
		delete(p.action, "retry_policy")
	}, ""},
	{"envoy-retry", func(p *parts) {
		p.filter["processing_mode"] = parsed(`{"request_body_mode":"FULL_DUPLEX_STREAMED","request_trailer_mode":"SEND","response_header_mode":"SKIP"}`)
		delete(p.filter, "forward_rules")
	}, "it retries, and the filter's mode is FULL_DUPLEX_STREAMED"},
	{"envoy-headers", func(p *parts) {
		p.filter["processing_mode"] = parsed(`{"request_body_mode":"FULL_DUPLEX_STREAMED","request_trailer_mode":"SEND","response_header_mode":"SKIP"}`)
		delete(p.action, "retry_policy")
	}, "forward_rules leave out x-request-id"},
	{"envoy-router-cluster", func(p *parts) { in(p.filter, "grpc_service", "envoy_grpc").(object)["cluster_name"] = "absent" }, "cluster absent: the filter names it"},
	{"envoy-router-cluster", func(p *parts) { delete(p.routers, "typed_extension_protocol_options") }, "cluster stator-extproc: it has no http2_protocol_options"},
	{"envoy-router-cluster", func(p *parts) { delete(p.routers, "circuit_breakers") }, "bound it to 1024 requests (max_requests)"},
	{"envoy-pool-policy", func(p *parts) { delete(p.pool, "load_balancing_policy") }, "cluster pool/sim: workers are reached by it, and it has no override_host policy"},
	{"envoy-pool-policy", func(p *parts) {
		p.policy["override_host_sources"] = parsed(`[{"metadata":{"key":"envoy.lb","path":[{"key":"theirs"}]}}]`)
	}, "does not read the pick"},
	{"", func(p *parts) {
		p.policy["override_host_sources"] = parsed(`[{"header":"X-Gateway-Destination-Endpoint"}]`)
	}, ""},
	{"envoy-pool-policy", func(p *parts) { delete(p.policy, "fallback_policy") }, "no fallback_policy"},
	{"envoy-pool-limits", func(p *parts) { delete(p.pool, "circuit_breakers") }, "bound it to 1024 requests"},
	{"note envoy-pool-limits", func(p *parts) { delete(p.pool, "common_lb_config") }, "healthy_panic_threshold is not 0"},
	{"note envoy-pool-limits", func(p *parts) { delete(p.pool, "typed_extension_protocol_options") }, "idle connections"},
	{"envoy-endpoints", func(p *parts) {
		for _, h := range p.poolSeen["host_statuses"].([]any) {
			h.(object)["health_status"] = parsed(`{"eds_health_status":"HEALTHY","failed_outlier_check":true}`)
		}
	}, "cluster pool/sim: none of its endpoints is healthy (there are 2)"},
	{"envoy-endpoints", func(p *parts) { p.routersSeen["host_statuses"] = nil }, "cluster stator-extproc: it has no endpoint\n  why: no router is asked"},
	{"envoy-endpoints", func(p *parts) {
		p.want.workers["sim"] = append(p.want.workers["sim"], workerAddress{"z", netip.MustParseAddrPort("10.0.0.9:80")})
	}, "it lacks 1 worker of model sim: z (10.0.0.9:80)"},
	{"envoy-endpoints", func(p *parts) { p.want.workers["sim"] = p.want.workers["sim"][:1] }, "it has 1 endpoint that Stator does not: 127.0.0.1:"},
	{"envoy-models", func(p *parts) { p.want.models = append(p.want.models, "m2") }, "model m2: no cluster is named pool/m2"},
	{"envoy-counters", func(p *parts) { p.stat("streams_failed", 2) }, "2 streams to routers failed since Envoy started, of 3 streams"},
	{"note envoy-counters", func(p *parts) { p.stat("streams_started", 1000); p.stat("message_timeouts", 10) }, "10 decisions took longer than message_timeout"},
	{"envoy-counters", func(p *parts) { p.stat("rejected_header_mutations", 3) }, "3 headers of routers were rejected"},
	{"envoy-counters", func(p *parts) { p.stat("override_message_timeout_ignored", 1) }, "a router asked for more time"},
	{"envoy-counters", func(p *parts) { p.stat("streams_started", 0) }, "it opened no stream since Envoy started, and workers got 3 requests"},
	{"envoy-counters", func(p *parts) { p.Stats = append(p.Stats, "access_logs.grpc_access_log.logs_dropped: 7") }, "7 entries of gRPC access logs were dropped"},
}

// TestEachFaultOfAnEnvoy changes one thing in a complete configuration: its check finds it, and no other finds a fault.
func TestEachFaultOfAnEnvoy(t *testing.T) {
	covered := map[string]bool{"envoy-admin": true} // by TestAskEnvoy
	for _, tt := range envoyFaults {
		check, isNote := strings.CutPrefix(tt.check, "note ")
		covered[check] = true
		t.Run(check, func(t *testing.T) {
			p := completeParts(t)
			tt.change(p)
			d := diagnoseEnvoy(p.seen(p.want))
			var faults []string
			found := false
			for _, f := range d.Findings {
				text := fmt.Sprintf("%s: %s\n  why: %s\n  do: %s", f.Subject, f.What, f.Why, f.Remedy)
				found = found || f.Check == check && f.Note == isNote && strings.Contains(text, tt.want)
				if !f.Note && !slices.Contains(faults, f.Check) {
					faults = append(faults, f.Check)
				}
			}

			var wanted []string
			if check != "" && !isNote {
				wanted = []string{check}
			}
			if !slices.Equal(faults, wanted) || check != "" && !found {
				t.Errorf("faults %q, want %q with %q in\n%s", faults, wanted, tt.want, mustJSON(d.Findings))
			}
		})
	}
	for _, c := range envoyChecks {
		if !covered[c.name] {
			t.Errorf("no test has a fault for %s", c.name)
		}
	}
}

// TestWantedOfAFleet: the settings that an Envoy is compared with come from the configuration and the fleet of the router. Names
// of hosts are no picks, so they are left out.
func TestWantedOfAFleet(t *testing.T) {
	cfg, err := config.Parse([]byte(`{apiVersion: stator.dev/v1alpha1, kind: Stator, gateway: {maxBodyBytes: 1048576, decisionTimeout: 2s, idleTimeout: 90s},
		models: [{name: m, path: "builtin:sim", router: {busy: {kvUsage: 0.9}, queue: {maxWait: 30s}}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	w := wantedOf(cfg)
	w.compareFleet(&observation{models: []modelSeen{{name: "m"}}, workers: []workerSeen{
		{name: "a", model: "m", address: "[::ffff:10.0.0.1]:80"}, {name: "b", model: "m", address: "b.example:80"},
	}})
	want := wanted{maxBody: 1 << 20, decision: 2 * time.Second, idle: 90 * time.Second, queueWait: 30 * time.Second, models: []string{"m"},
		workers: map[string][]workerAddress{"m": {{"a", netip.MustParseAddrPort("10.0.0.1:80")}}}}
	if !reflect.DeepEqual(w, want) {
		t.Errorf("%+v, want %+v", w, want)
	}
}

// TestOldEnvoy: on Envoy 1.36 the listener's bound of bodies counts, which the snippet for 1.40 does not set.
func TestOldEnvoy(t *testing.T) {
	p := completeParts(t)
	p.Info = object{"version": "abc/1.36.4/Clean/RELEASE/BoringSSL"}
	var text strings.Builder
	diagnoseEnvoy(p.seen(p.want)).Print(&text)
	const want = "bodies may have 1048576 bytes (per_connection_buffer_limit_bytes of the listener, which Envoy 1.36 applies too)"
	if !strings.Contains(text.String(), want) {
		t.Errorf("%q is not in\n%s", want, &text)
	}

	p.listener["per_connection_buffer_limit_bytes"] = 33554432.0
	if d := diagnoseEnvoy(p.seen(p.want)); d.Faults() != 0 {
		t.Errorf("with the bound of the listener: %s", mustJSON(d))
	}

	delete(p.listener, "per_connection_buffer_limit_bytes")
	for text, faults := range map[string]int{
		`{"name":"b","typed_config":{"@type":"x/y.Buffer","max_request_bytes":33554432}}`:                 0,
		`{"name":"b","typed_config":{"@type":"x/y.Buffer","max_request_bytes":33554432},"disabled":true}`: 1,
		`{"name":"b","typed_config":{"@type":"x/y.Buffer","max_request_bytes":1048576}}`:                  1,
	} {
		p.manager["http_filters"] = append([]any{parsed(text)}, p.filters...)
		if d := diagnoseEnvoy(p.seen(p.want)); d.Faults() != faults {
			t.Errorf("with %s: %s", text, mustJSON(d))
		}
	}
}

// TestDocs compares the tables of docs/your-own-envoy.md and docs/mesh.md with the lists of checks. Run it with -rewrite to write them.
func TestDocs(t *testing.T) {
	var ofEnvoys, ofClusters strings.Builder
	for _, c := range envoyChecks {
		fmt.Fprintf(&ofEnvoys, "| `%s` | %s |\n", c.name, c.finds)
	}
	for _, c := range clusterChecks {
		fmt.Fprintf(&ofClusters, "| `%s` | %s |\n", c.name, c.finds)
	}
	compareTable(t, "../docs/your-own-envoy.md", ofEnvoys.String())
	compareTable(t, "../docs/mesh.md", ofClusters.String())
}

// compareTable compares the rows of the table of checks in a document.
func compareTable(t *testing.T, file, rows string) {
	t.Helper()
	const begin, end = "<!-- doctor:begin -->\n", "<!-- doctor:end -->"
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, hasBegin := strings.Cut(string(raw), begin)
	_, tail, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		t.Fatalf("%s has no section between %q and %q", file, begin, end)
	}
	updated := head + begin + "| Check | Finds |\n|---|---|\n" + rows + end + tail
	if flag.Lookup("rewrite").Value.String() == "true" {
		err = os.WriteFile(file, []byte(updated), 0o644)
	} else if updated != string(raw) {
		err = errors.New("it is out of date: run `make golden` and read the diff")
	}
	if err != nil {
		t.Errorf("the checks in %s: %v", file, err)
	}
}

// TestAskEnvoy asks admin ports that answer well, badly and not at all.
func TestAskEnvoy(t *testing.T) {
	sample := readSample(t, "complete")
	answers := map[string]string{
		"/server_info": mustJSON(sample.Info), "/config_dump": mustJSON(sample.Dump), "/clusters": mustJSON(sample.Clusters),
		"/stats": strings.Join(sample.Stats, "\n"),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, isThere := answers[r.URL.Path]
		if !isThere {
			w.WriteHeader(http.StatusForbidden)
		}
		_, _ = w.Write([]byte(text))
	}))
	defer server.Close()
	examine := func() (d Diagnosis) {
		client, err := adminclient.New(adminclient.Config{Address: server.URL + "/"}, time.Minute) // an answer of 64 MiB is read
		if err != nil {
			t.Fatal(err)
		}
		return diagnoseEnvoy(askEnvoy(t.Context(), &EnvoyPort{Address: server.URL, Admin: client}, wantByDefault()))
	}

	if d := examine(); d.Faults() != 0 || d.Checks != len(envoyChecks) {
		t.Errorf("a complete Envoy: %s", mustJSON(d))
	}
	for page, change := range map[string]string{
		"/config_dump of its admin port cannot be read: status 403": "/config_dump",
		"/clusters of its admin port cannot be read: status 403":    "/clusters",
		"/stats of its admin port cannot be read: status 403":       "/stats",
		"does not answer as one of Envoy: status 403":               "/server_info",
	} {
		text := answers[change]
		delete(answers, change)
		d := examine()
		if d.Faults() != 1 || d.Findings[0].Check != "envoy-admin" || !strings.Contains(d.Findings[0].What, page) {
			t.Errorf("without %s: %s", change, mustJSON(d))
		}
		answers[change] = text
	}

	for want, text := range map[string]string{
		"no version": `{"hello": 1}`, "invalid character": `<html>`, "more than 4194304 values": "[" + strings.Repeat("[],", maxValues/2) + "[]]",
		"more than 64 MiB": strings.Repeat(" ", maxEnvoyAnswer+1),
	} {
		answers["/server_info"] = text
		if d := examine(); len(d.Findings) != 1 || !strings.Contains(d.Findings[0].What, want) {
			t.Errorf("want %q: %s", want, mustJSON(d))
		}
	}
	server.Close()
	if d := examine(); len(d.Findings) != 1 || !strings.Contains(d.Findings[0].What, "connection refused") {
		t.Errorf("no port: %s", mustJSON(d))
	}
}

// FuzzEnvoy reads any configuration. Findings have all their parts, each a line, and are the same again.
func FuzzEnvoy(f *testing.F) {
	files, err := filepath.Glob("testdata/envoy/*.json")
	if err != nil || len(files) == 0 {
		f.Fatal("there are no samples", err)
	}
	for _, file := range files {
		p := readSample(f, strings.TrimSuffix(filepath.Base(file), ".json"))
		f.Add(mustJSON(p.Info), mustJSON(p.Dump), mustJSON(p.Clusters), strings.Join(p.Stats, "\n"))
	}

	f.Fuzz(func(t *testing.T, info, dump, hosts, stats string) {
		var all [3]node
		for i, text := range []string{info, dump, hosts} {
			all[i], _ = parseNode([]byte(text))
		}
		examine := func() string {
			e := &envoySeen{address: "e:9901", want: wantByDefault()}
			e.want.models = []string{"sim"}
			e.want.workers = map[string][]workerAddress{"sim": {{"a", netip.MustParseAddrPort("127.0.0.1:8000")}}}
			e.readPages(all[0], all[1], all[2], []byte(stats))
			d := diagnoseEnvoy(e)
			for _, f := range d.Findings {
				for _, part := range []string{f.Check, f.Subject, f.What, f.Why, f.Remedy} {
					if part == "" || strings.ContainsAny(part, "\n\r\x1b") {
						t.Fatalf("a part of a finding is empty, or no line: %+v", f)
					}
				}
			}
			return mustJSON(d)
		}
		if first, again := examine(), examine(); first != again {
			t.Fatalf("two results:\n%s\n%s", first, again)
		}
	})
}
