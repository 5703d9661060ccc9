package scenario

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// envoyInMode is the configuration of an Envoy that its operator wrote, with Stator's filter in this mode. Requests have
// trailers only by HTTP/2, so the trailers' mode matters to Envoy's check of the configuration alone.
// Response headers are sent too, as by default.
const envoyInMode = `
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: %[1]s}}
    per_connection_buffer_limit_bytes: 33554432
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: edge
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {prefix: /}
                route: {cluster: engines, timeout: 0s, retry_policy: {retry_on: "5xx,reset", num_retries: 1}}
          access_log:
          - name: envoy.access_loggers.http_grpc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
              common_config: {log_name: stator, transport_api_version: V3, buffer_size_bytes: 0, grpc_service: {envoy_grpc: {cluster_name: stator}}}
          http_filters:
          - name: envoy.filters.http.ext_proc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: {envoy_grpc: {cluster_name: stator}}
              message_timeout: 10s
              processing_mode: {request_body_mode: %[2]s, request_trailer_mode: %[3]s}
              metadata_options: {receiving_namespaces: {untyped: [envoy.lb, stator]}}
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: engines
    load_assignment: {cluster_name: engines, endpoints: [{lb_endpoints: [%[4]s]}]}
    load_balancing_policy:
      policies:
      - typed_extension_config:
          name: envoy.load_balancing_policies.override_host
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
            override_host_sources: [{metadata: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint}]}}]
            selected_host_key: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint-served}]}
            fallback_policy:
              policies:
              - typed_extension_config:
                  name: envoy.load_balancing_policies.round_robin
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin}
  - name: stator
    load_assignment: {cluster_name: stator, endpoints: [{lb_endpoints: [%[5]s]}]}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
`

// endpoint is an entry of lb_endpoints.
func endpoint(address string) string {
	host, port, _ := strings.Cut(address, ":")
	return fmt.Sprintf("{endpoint: {address: {socket_address: {address: %s, port_value: %s}}}}", host, port)
}

// inMode is an Envoy whose configuration its operator wrote, in front of simulated engines.
type inMode struct {
	*gateway
	router *command
}

// startInMode starts two engines, a router, and an operator's Envoy with its filter in this mode.
func startInMode(t *testing.T, mode string) *inMode {
	t.Helper()
	trailers := "SKIP"
	if mode == "FULL_DUPLEX_STREAMED" {
		trailers = "SEND" // Envoy refuses this mode without it
	}
	return startStatic(t, func(port, endpoints, routerAt string) string {
		return fmt.Sprintf(envoyInMode, port, mode, trailers, endpoints, endpoint(routerAt))
	})
}

// startStatic starts two engines, a router, and an Envoy with the static configuration that configure returns for the port of the
// listener, the endpoints of the engines, and the address of the router.
func startStatic(t *testing.T, configure func(port, endpoints, routerAt string) string) *inMode {
	t.Helper()
	return startStaticFleet(t, configure, 2, "/live", nil)
}

// startStaticFleet is startStatic with so many engines, a path that shows that Envoy answers, and further flags of the engines and the
// router.
func startStaticFleet(t *testing.T, configure func(port, endpoints, routerAt string) string, engines int, live string,
	engineFlags []string, flags ...string) *inMode {
	t.Helper()
	var workers, endpoints []string
	for i := range engines {
		at, events := freeAddress(t), "ipc://"+filepath.Join(t.TempDir(), "e")
		start(t, append([]string{"sim", "--listen-address", at, "--kv-events", events, "--log-level", "warn"}, engineFlags...)...)
		workers = append(workers, fmt.Sprintf(`{name: sim-%d, address: "%s", kvEvents: %q}`, i, at, events))
		endpoints = append(endpoints, endpoint(at))
	}
	routerAt, listen := freeAddress(t), freeAddress(t)
	o := &inMode{gateway: &gateway{t: t, url: "http://" + listen, admin: freeAddress(t)}}
	file := configFile(t, fmt.Sprintf("models: [{name: sim, path: \"builtin:sim\", workers: [%s]}]\n", strings.Join(workers, ", ")))
	o.router = start(t, append([]string{"extproc", "--config", file, "--listen-address", routerAt, "--admin-address", o.admin}, flags...)...)

	_, port, _ := strings.Cut(listen, ":")
	config := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(config, []byte(configure(port, strings.Join(endpoints, ", "), routerAt)), 0o600); err != nil {
		t.Fatal(err)
	}
	startCommand(t, exec.Command(envoyPath(t), "--config-path", config, "--use-dynamic-base-id", "--concurrency", "2", "--log-level", "warn"))
	eventually(t, "the router knows all engines, and Envoy answers", func() error {
		if _, err := get("http://" + o.admin + "/readyz"); err != nil {
			return err
		}
		for _, r := range o.fleet() {
			if r.State != "ready" {
				return fmt.Errorf("%s is %s", r.Worker, r.State)
			}
		}
		_, err := get(o.url + live)
		return err
	})
	return o
}

// TestBodyModes sends conversations through an operator's own Envoy in every mode in which its filter can send bodies. All are
// answered. Where the filter sends whole bodies, prompts are read: later turns find their cache, and each request is served as
// picked. Where it does not, the router's log names the setting to change.
func TestBodyModes(t *testing.T) {
	t.Parallel()
	for mode, reads := range map[string]bool{
		"BUFFERED": true, "FULL_DUPLEX_STREAMED": true, "BUFFERED_PARTIAL": true, "STREAMED": false, "NONE": false,
	} {
		t.Run(mode, func(t *testing.T) {
			o := startInMode(t, mode)
			const talks, turns = 3, 4
			for i := range talks {
				list := []message{{"user", strings.Repeat(fmt.Sprintf("Everything about topic %d, please. ", i), 20)}}
				for turn := range turns {
					r := o.chat(list, 8)
					if reads && turn > 0 && r.usage.Details.CachedTokens == 0 {
						t.Errorf("turn %d of talk %d found no cache", turn, i)
					}
					list = append(list, message{"assistant", r.text}, message{"user", "And what else is there?"})
					o.awaitIdle() // otherwise load would count, too
				}
			}

			notices := strings.Count(o.router.out.String(), "request_body_mode of the filter")
			switch {
			case reads:
				o.assertServed(talks * turns)
				if notices != 0 {
					t.Errorf("%d lines about the mode", notices)
				}
			case notices != 1:
				t.Errorf("%d lines about the mode; want one", notices)
			case o.metric("stator_extproc_unread_total", fmt.Sprintf("mode=%q", mode)) != talks*turns:
				t.Error("the requests are not counted")
			}
			o.assertNothingBooked()
		})
	}
}

// TestFullDuplexBodies: in mode FULL_DUPLEX_STREAMED a body of 16 MiB reaches a worker as it was, one above the limit and a
// broken one are refused, and clients that leave at any moment leave no booking.
func TestFullDuplexBodies(t *testing.T) {
	t.Parallel()
	o := startInMode(t, "FULL_DUPLEX_STREAMED")
	send := func(body []byte) int {
		r, err := o.send(t.Context(), http.MethodPost, "/v1/completions", body)
		if err != nil {
			t.Fatal(err)
		}
		return r.status
	}
	large := fmt.Appendf(nil, `{"model":"sim","prompt":"hello","max_tokens":1%s}`, bytes.Repeat([]byte(" "), 16<<20))
	if got := send(large); got != http.StatusOK {
		t.Errorf("16 MiB: %d", got)
	}
	if got := send(append(large, bytes.Repeat([]byte(" "), 20<<20)...)); got != http.StatusRequestEntityTooLarge {
		t.Errorf("36 MiB: %d", got)
	}
	if got := send([]byte("{")); got != http.StatusBadRequest {
		t.Errorf("broken: %d", got)
	}

	const cancelled = 2_000
	o.untilPicked(cancelled/10, 4*time.Millisecond, func(longest time.Duration) {
		for i := range cancelled {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%40)*longest/40)
			_, _ = o.send(ctx, http.MethodPost, "/v1/completions", fmt.Appendf(nil, `{"model":"sim","prompt":"leave, %d","max_tokens":50}`, i))
			cancel()
		}
	})
	o.assertNothingBooked()
	// On a busy machine, engines may report an end before Envoy does.
	if n := o.metric("stator_route_bookings_ended_total", `reason="reconciled"`); n > cancelled/100 {
		t.Errorf("%g bookings ended by engines' reports, not by their access-log entries", n)
	}
}

// TestOriginalDestination: the pool of another gateway is of type ORIGINAL_DST and takes one address, from the header of the pick. All
// requests are served as picked, although each decision names a second worker for a retry.
func TestOriginalDestination(t *testing.T) {
	t.Parallel()
	_, policy, _ := strings.Cut(envoyWithoutLog, "  - name: engines\n")
	policy, _, _ = strings.Cut(policy, "  CLUSTERS")
	o := startWithoutLog(t, "request_body_mode: BUFFERED", policy, `    type: ORIGINAL_DST
    lb_policy: CLUSTER_PROVIDED
    original_dst_lb_config: {use_http_header: true, http_header_name: x-gateway-destination-endpoint}
`, "EXTRA", "response_attributes: [upstream.address]")
	o.converse(3, 4)
	o.assertServed(12)
}
