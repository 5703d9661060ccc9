package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

// envoyWithoutLog is the configuration of an Envoy that its operator wrote, with Stator's filter and without an access log.
// Requests below /plain/ are not for Stator. Other filters may come before Stator's.
const envoyWithoutLog = `
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: LISTEN}}
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
              - match: {prefix: /plain/}
                route: {cluster: engines, prefix_rewrite: /, timeout: 0s}
                typed_per_filter_config:
                  stator: {"@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute, disabled: true}
              - match: {prefix: /}
                route: {cluster: engines, timeout: 0s}
                typed_per_filter_config: {OVERRIDES}
          http_filters:
          - name: stator
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: {envoy_grpc: {cluster_name: stator}}
              message_timeout: 10s
              processing_mode: {MODE}
              metadata_options: {receiving_namespaces: {untyped: [envoy.lb, stator]}}
              EXTRA
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: engines
    load_assignment: {cluster_name: engines, endpoints: [{lb_endpoints: [ENGINES]}]}
    load_balancing_policy:
      policies:
      - typed_extension_config:
          name: envoy.load_balancing_policies.override_host
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
            override_host_sources: [{metadata: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint}]}}]
            fallback_policy:
              policies:
              - typed_extension_config:
                  name: envoy.load_balancing_policies.round_robin
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin}
  CLUSTERS
`

// foreignFilter is another service's ext_proc filter, followed by Stator's.
const foreignFilter = `- name: foreign
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: {envoy_grpc: {cluster_name: foreign}}
              message_timeout: 10s
              processing_mode: {request_body_mode: BUFFERED, response_body_mode: STREAMED}
          - name: stator
            typed_config`

// serviceCluster returns the cluster of a gRPC service.
func serviceCluster(name, address string) string {
	return fmt.Sprintf(`
  - name: %s
    load_assignment: {cluster_name: %[1]s, endpoints: [{lb_endpoints: [%s]}]}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}`, name, endpoint(address))
}

// startWithoutLog starts two engines, a router, and an Envoy without an access log. mode is the filter's processing mode;
// replace has further changes of the configuration, as pairs of old and new text.
func startWithoutLog(t *testing.T, mode string, replace ...string) *inMode {
	t.Helper()
	return startStatic(t, func(port, endpoints, routerAt string) string {
		text := strings.NewReplacer(replace...).Replace(envoyWithoutLog)
		return strings.NewReplacer("LISTEN", port, "MODE", mode, "EXTRA", "", "OVERRIDES", "", "ENGINES", endpoints,
			"CLUSTERS", serviceCluster("stator", routerAt)).Replace(text)
	})
}

// converse has conversations, one after the other, whose later turns must find their cache. The booking of a turn must have
// ended before the next one: while the router counts it as load, another worker may be the better choice.
func (o *inMode) converse(talks, turns int) {
	o.t.Helper()
	for i := range talks {
		list := []message{{"user", strings.Repeat(fmt.Sprintf("Everything about subject %d, please. ", i), 20)}}
		for turn := range turns {
			r := o.chat(list, 8)
			if turn > 0 && r.usage.Details.CachedTokens == 0 {
				o.t.Errorf("turn %d of talk %d found no cache", turn, i)
			}
			list = append(list, message{"assistant", r.text}, message{"user", "And what else is there?"})
			o.awaitIdle()
		}
	}
}

// leave sends streaming requests whose clients leave: before the decision, before the response, and in the middle of it. A quarter must be
// picked before.
func (o *inMode) leave(requests int) {
	o.t.Helper()
	o.untilPicked(requests/4, 150*time.Millisecond, func(longest time.Duration) { o.leaveWithin(requests, longest) })
}

// leaveWithin sends requests whose clients leave, the last ones after the longest time.
func (o *inMode) leaveWithin(requests int, longest time.Duration) {
	var all sync.WaitGroup
	room := make(chan struct{}, 20)
	for i := range requests {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			ctx, cancel := context.WithTimeout(o.t.Context(), time.Duration(i%50)*longest/50)
			defer cancel()
			_, _ = o.send(ctx, http.MethodPost, "/v1/completions",
				fmt.Appendf(nil, `{"model":"sim","prompt":"leave, %d","max_tokens":200,"stream":true}`, i))
		})
	}
	all.Wait()
}

// endsBy waits until as many bookings have ended by these sources as were picked.
func (o *inMode) endsBy(sources ...string) {
	o.t.Helper()
	eventually(o.t, "all bookings have ended", func() error {
		sum := 0.0
		for _, source := range sources {
			sum += o.metric("stator_accesslog_ends_total", `source="`+source+`"`)
		}
		if picked := o.metric("stator_extproc_requests_total", `outcome="picked"`); sum != picked {
			return fmt.Errorf("%g of %g", sum, picked)
		}
		return nil
	})
}

// ends waits until all bookings have ended by these sources, demands that none was ended by engines' reports, and that
// none is left.
func (o *inMode) ends(sources ...string) {
	o.t.Helper()
	o.endsBy(sources...)
	o.assertNothingBooked()
	if n := o.metric("stator_route_bookings_ended_total", `reason="reconciled"`); n != 0 {
		o.t.Errorf("%g bookings were ended by engines' reports", n)
	}
	if n := strings.Count(o.router.out.String(), "sends no access log here"); n != 1 {
		o.t.Errorf("%d lines about the missing access log; want one", n)
	}
	if n := o.metric("stator_accesslog_followed_streams"); n != 0 {
		o.t.Errorf("%g streams are still followed", n)
	}
}

// TestFeedbackWithoutAccessLog: an Envoy without an access log. Bookings end with their requests, whatever response phases
// its filter sends, and also if clients leave.
func TestFeedbackWithoutAccessLog(t *testing.T) {
	t.Parallel()
	const attribute = "response_attributes: [upstream.address]"
	for name, tt := range map[string]struct {
		mode, extra string
		outcome     string // of the conversations
		source      string // of their ends
	}{
		"SEND":              {"request_body_mode: BUFFERED", attribute, "as_picked", "response"},
		"SEND, unconfirmed": {"request_body_mode: BUFFERED", "", "unconfirmed", "response"},
		"SKIP":              {"request_body_mode: BUFFERED, response_header_mode: SKIP", "", "unconfirmed", "stream_end"},
		"STREAMED":          {"request_body_mode: BUFFERED, response_body_mode: STREAMED", attribute, "as_picked", "response"},
		"STREAMED, overridden": {"request_body_mode: BUFFERED, response_body_mode: STREAMED",
			attribute + "\n              allow_mode_override: true", "as_picked", "response"},
		"FULL_DUPLEX_STREAMED": {"request_body_mode: FULL_DUPLEX_STREAMED, request_trailer_mode: SEND, " +
			"response_body_mode: FULL_DUPLEX_STREAMED, response_trailer_mode: SEND", attribute, "as_picked", "response"},
	} {
		t.Run(name, func(t *testing.T) {
			o := startWithoutLog(t, tt.mode, "EXTRA", tt.extra)
			const talks, turns = 3, 4
			o.converse(talks, turns)
			eventually(t, "the conversations are reported", func() error {
				if n := o.served(tt.outcome); n != talks*turns {
					return fmt.Errorf("%d of %d", n, talks*turns)
				}
				return nil
			})
			o.ends(tt.source)

			o.leave(200)
			if !strings.HasPrefix(tt.mode, "request_body_mode: FULL_DUPLEX_STREAMED") {
				o.ends("response", "stream_end")
				return
			}
			// Where Envoy closes its half of a stream and resets it at once, the router may see the reset alone, which in this mode is
			// no end of the request. The engines' reports end these bookings.
			o.endsBy("response", "stream_end", "engines")
			o.assertNothingBooked()
			if n := o.metric("stator_route_bookings_ended_total", `reason="reconciled"`); n > 10 {
				t.Errorf("%g of 200 bookings were ended by engines' reports", n)
			}
		})
	}
}

// accessLog is the access log of an Envoy that its operator wrote.
const accessLog = `access_log:
          - name: envoy.access_loggers.http_grpc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
              common_config: {log_name: stator, transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: stator}}}
          route_config:`

// TestAccessLogIsTrustedMore: the same Envoy with an access log, which it sends each second. The log ends all bookings, those
// of the first requests included, and further streams end with their decisions.
func TestAccessLogIsTrustedMore(t *testing.T) {
	t.Parallel()
	o := startWithoutLog(t, "request_body_mode: BUFFERED", "route_config:", accessLog)
	o.converse(2, 3)
	o.endsBy("access_log")
	resp, err := o.stream(t.Context(), 300)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()

	var envoys []struct {
		Source    string
		AccessLog bool `json:"access_log"`
		Followed  int  `json:"followed_streams"`
	}
	o.page("/debug/envoys", &envoys)
	if len(envoys) != 1 || envoys[0].Source != "access_log" || !envoys[0].AccessLog || envoys[0].Followed != 0 {
		t.Errorf("%+v", envoys)
	}
	if strings.Contains(o.router.out.String(), "sends no access log here") {
		t.Error("the router's log has a line about a missing access log")
	}
}

// TestFeedbackOfEngines: in mode FULL_DUPLEX_STREAMED without response phases Envoy ends its streams after the decision. The
// engines' reports end the bookings.
func TestFeedbackOfEngines(t *testing.T) {
	t.Parallel()
	o := startWithoutLog(t, "request_body_mode: FULL_DUPLEX_STREAMED, request_trailer_mode: SEND, response_header_mode: SKIP")
	o.converse(2, 3)
	o.endsBy("engines")
	o.assertNothingBooked()
	if n := o.metric("stator_route_bookings_ended_total", `reason="reconciled"`); n != 6 {
		t.Errorf("%g bookings were ended by engines' reports", n)
	}
}

// foreign is another service's ext_proc server, which lets everything continue.
type foreign struct {
	extprocv3.UnimplementedExternalProcessorServer
	messages atomic.Int64
}

func (f *foreign) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f.messages.Add(1)
		reply := &extprocv3.ProcessingResponse{}
		switch m.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			reply.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}
		case *extprocv3.ProcessingRequest_RequestBody:
			reply.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{}}
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			reply.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}
		case *extprocv3.ProcessingRequest_ResponseBody:
			reply.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{}}
		}
		if err := stream.Send(reply); err != nil {
			return err
		}
	}
}

// startForeign starts that server and returns its address.
func startForeign(t *testing.T) (f *foreign, address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f = &foreign{}
	srv := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(srv, f)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
	return f, ln.Addr().String()
}

// TestFiltersAndRoutes: another service's ext_proc filter comes before Stator's, a route replaces the modes of the filter, and
// another disables it. Picks are obeyed on the first route, and requests of the second one never reach the router.
func TestFiltersAndRoutes(t *testing.T) {
	t.Parallel()
	f, address := startForeign(t)
	const overrides = `stator: {"@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute, ` +
		`overrides: {processing_mode: {request_body_mode: BUFFERED, response_header_mode: SEND}}}`
	o := startWithoutLog(t, "request_header_mode: SEND, response_header_mode: SKIP",
		"- name: stator\n            typed_config", foreignFilter, "CLUSTERS", serviceCluster("foreign", address)+"\n  CLUSTERS",
		"OVERRIDES", overrides, "EXTRA", "response_attributes: [upstream.address]")
	o.converse(3, 4)
	eventually(t, "the conversations are reported", func() error {
		if n := o.served("as_picked"); n != 12 {
			return fmt.Errorf("%d of 12", n)
		}
		return nil
	})
	if f.messages.Load() < 4*12 {
		t.Errorf("the other filter has sent %d messages", f.messages.Load())
	}

	for i := range 4 {
		r, err := o.send(t.Context(), http.MethodPost, "/plain/v1/completions", fmt.Appendf(nil, `{"model":"sim","prompt":"plain %d","max_tokens":2}`, i))
		if err != nil || r.status != http.StatusOK {
			t.Errorf("the disabled route: %d, %v: %s", r.status, err, r.body)
		}
	}
	if n := o.metric("stator_extproc_requests_total", `outcome="picked"`); n != 12 {
		t.Errorf("%g requests were picked", n)
	}
	o.leave(100)
	o.ends("response", "stream_end")
}

// TestStoppedRouterCutsNothing: a router that stops ends the streams that it follows, so that responses go on in an Envoy
// without failure_mode_allow.
func TestStoppedRouterCutsNothing(t *testing.T) {
	t.Parallel()
	o := startWithoutLog(t, "request_body_mode: BUFFERED")
	resp, err := o.stream(t.Context(), 300)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	first := make([]byte, 16)
	if _, err := io.ReadFull(resp.Body, first); err != nil {
		t.Fatal(err)
	}
	if n := o.metric("stator_accesslog_followed_streams"); n != 1 {
		t.Fatalf("%g streams are followed", n)
	}
	o.router.stop()
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(rest), "[DONE]") {
		t.Errorf("the response was cut off: %v after %d bytes", err, len(rest))
	}
}

// TestStoppedRouterLosesNoToken: responses pass through a router in the mode in which Envoy keeps no copy of them. A router that stops goes
// on with them to their ends, so every answer has all its tokens.
func TestStoppedRouterLosesNoToken(t *testing.T) {
	t.Parallel()
	const answers, tokens = 40, 300
	o := startWithoutLog(t, "request_body_mode: FULL_DUPLEX_STREAMED, request_trailer_mode: SEND, "+
		"response_body_mode: FULL_DUPLEX_STREAMED, response_trailer_mode: SEND")
	var begun, all sync.WaitGroup
	begun.Add(answers)
	for range answers {
		all.Go(func() {
			resp, err := o.stream(t.Context(), tokens)
			begun.Done()
			if err != nil {
				t.Error(err)
				return
			}
			if n, err := countTokens(resp); err != nil || n != tokens {
				t.Errorf("%d of %d tokens came: %v", n, tokens, err)
			}
		})
	}
	begun.Wait()
	if n := o.metric("stator_accesslog_followed_streams"); n == 0 {
		t.Fatal("no stream is followed: the test shows nothing")
	}
	o.router.stop()
	all.Wait()
}

// countTokens reads a stream of an answer to its end, and returns the number of tokens that came. It is an error if the answer is cut off.
func countTokens(resp *http.Response) (n int, err error) {
	ended := false
	err = chunks(resp, func(data string) bool {
		ended = data == "[DONE]"
		if strings.Contains(data, `"content":"`) && !strings.Contains(data, `"content":""`) {
			n++
		}
		return !ended
	})
	if err == nil && !ended {
		err = errors.New("it was cut off")
	}
	return n, err
}
