package scenario

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

// The configurations that gateways write, with the names by which the doctor knows them. Fields that it does not look at are left out. Envoy
// gets them as one static file, because neither control plane runs here; see the table in docs/mesh.md.

// gatewayEnvoy is an Envoy without its parts: LISTENER, MANAGER, ROUTE, FILTERS and CLUSTERS.
const gatewayEnvoy = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: NAME
    address: {socket_address: {address: 127.0.0.1, port_value: LISTEN}}
    LISTENER
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: NAME
          MANAGER
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - ROUTE
          http_filters:
          FILTERS
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  CLUSTERS
`

const (
	poolOfIstiod    = "outbound|54321||qwen-ip-0a1b2c3d.llm.svc.cluster.local"
	routersOfIstiod = "outbound|9002||stator.llm.svc.cluster.local"
	filterOfGateway = "envoy.filters.http.ext_proc/envoyextensionpolicy/llm/stator/extproc/0"

	unbounded = "circuit_breakers: {thresholds: [{max_connections: 4294967295, max_pending_requests: 4294967295, max_requests: 4294967295, " +
		"max_retries: 4294967295}]}"
	overHTTP2 = `typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}`
)

// logTo returns an access log to a cluster.
func logTo(cluster string) string {
	return `access_log:
          - name: envoy.access_loggers.http_grpc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
              common_config: {log_name: stator, transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: "` + cluster + `"}}}`
}

// clusterAt returns a cluster with one address, or none.
func clusterAt(name, addresses, more string) string {
	return fmt.Sprintf("- name: %q\n    load_assignment: {cluster_name: %q, endpoints: [{lb_endpoints: [%s]}]}\n    %s\n  ", name, name, addresses, more)
}

// istiodEnvoy returns the Envoy of a gateway of Istio with an InferencePool.
func istiodEnvoy(log string) *strings.Replacer {
	return strings.NewReplacer("NAME", "0.0.0.0_80", "LISTENER", "", "MANAGER", log, "ROUTE", `name: llm.qwen.0
                match: {prefix: /}
                route:
                  cluster: "`+poolOfIstiod+`"
                  timeout: 0s
                  retry_policy:
                    retry_on: connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes
                    num_retries: 2
                    retry_host_predicate:
                    - name: envoy.retry_host_predicates.previous_hosts
                      typed_config:
                        "@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate
                    host_selection_retry_max_attempts: 5
                typed_per_filter_config:
                  envoy.filters.http.ext_proc:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute
                    overrides:
                      grpc_service: {envoy_grpc: {cluster_name: "`+routersOfIstiod+`"}}
                      `+duplex[:strings.Index(duplex, "\n")]+`
                      metadata_options: {receiving_namespaces: {untyped: [envoy.lb]}, forwarding_namespaces: {untyped: [envoy.lb]}}
                      failure_mode_allow: false`, "FILTERS", `- name: envoy.filters.http.ext_proc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: {envoy_grpc: {cluster_name: dummy}, timeout: 10s}
              processing_mode: {request_header_mode: SKIP, response_header_mode: SKIP}
              failure_mode_allow: true
              message_timeout: 1000s
              metadata_options: {receiving_namespaces: {untyped: [envoy.lb]}, forwarding_namespaces: {untyped: [envoy.lb]}}`,
		"CLUSTERS", clusterAt("dummy", "", "")+clusterAt(routersOfIstiod, "ROUTERS", unbounded+"\n    "+overHTTP2)+
			"- name: \""+poolOfIstiod+"\"\n    "+unbounded+"\n    "+
			strings.ReplaceAll(overrideHost(byMetadata, reports), "cluster_name: pool", `cluster_name: "`+poolOfIstiod+`"`))
}

// envoyGatewayEnvoy returns the Envoy of Envoy Gateway with the policies that `stator envoy snippet --for envoy-gateway` prints.
func envoyGatewayEnvoy(log string) *strings.Replacer {
	return strings.NewReplacer("NAME", "infra/eg/http", "LISTENER", "per_connection_buffer_limit_bytes: 33554432", "MANAGER", log+`
          early_header_mutation_extensions:
          - name: envoy.http.early_header_mutation.header_mutation
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
              mutations: [{remove: x-gateway-destination-endpoint}, {remove: x-data-parallel-rank}, {remove_on_match: {key_matcher: {prefix: x-stator-}}}]`,
		"ROUTE", `name: httproute/llm/qwen/rule/0/match/0/*
                match: {prefix: /}
                route: {cluster: httproute/llm/qwen/rule/0, timeout: 0s, idle_timeout: 600s}
                typed_per_filter_config:
                  `+filterOfGateway+`:
                    "@type": type.googleapis.com/envoy.config.route.v3.FilterConfig
                    config: {}`, "FILTERS", "- name: "+filterOfGateway+`
            disabled: true
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: {envoy_grpc: {cluster_name: envoyextensionpolicy/llm/stator/extproc/0}}
              failure_mode_allow: true
              message_timeout: 5s
              processing_mode: {request_body_mode: BUFFERED, response_header_mode: SKIP}
              metadata_options: {receiving_namespaces: {untyped: [envoy.lb, stator]}, forwarding_namespaces: {untyped: [envoy.lb]}}`,
		"CLUSTERS", clusterAt("envoyextensionpolicy/llm/stator/extproc/0", "ROUTERS", unbounded+"\n    "+overHTTP2)+
			clusterAt("accesslog_als_0_0", "ROUTERS", overHTTP2)+"- name: httproute/llm/qwen/rule/0\n    "+unbounded+"\n    "+
			strings.ReplaceAll(overrideHost(byHeader, ""), "cluster_name: pool", "cluster_name: httproute/llm/qwen/rule/0"))
}

// TestDoctorReadsGateways examines Envoys that istiod and Envoy Gateway have configured, with and without an access log. With one there is no
// fault that their users could not correct.
func TestDoctorReadsGateways(t *testing.T) {
	t.Parallel()
	engines := simEngines(t, 2)
	extprocAt, admin := freeAddress(t), freeAddress(t)
	start(t, "extproc", "--config", configFile(t, simFleet(engines...)), "--listen-address", extprocAt, "--admin-address", admin)
	eventually(t, "the router is ready", func() error { _, err := get("http://" + admin + "/readyz"); return err })
	var endpoints []string
	for _, at := range engines {
		endpoints = append(endpoints, endpoint(at))
	}

	for _, c := range []struct {
		name  string
		parts *strings.Replacer
		want  []string
	}{
		{"istiod-pool", istiodEnvoy(""), []string{"envoy-access-log"}},
		{"istiod-pool-log", istiodEnvoy(logTo(routersOfIstiod)), []string{}},
		{"envoy-gateway", envoyGatewayEnvoy(""), []string{"envoy-access-log"}},
		{"envoy-gateway-log", envoyGatewayEnvoy(logTo("accesslog_als_0_0")), []string{}},
	} {
		listen := freeAddress(t)
		_, port, err := net.SplitHostPort(listen)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer("LISTEN", port, "ENGINES", strings.Join(endpoints, ", "), "ROUTERS", endpoint(extprocAt)).
			Replace(c.parts.Replace(gatewayEnvoy))
		examineEnvoy(t, c.name, []byte(text), listen, nil, c.want)
	}
}
