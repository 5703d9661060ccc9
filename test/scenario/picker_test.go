package scenario

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/stator-project/stator/test/kubeapi"
)

// Gateways of Kubernetes configure Envoy as they like, and the router is their endpoint picker. These tests have static Envoys with the
// configurations that gateways write, and an API server with an InferencePool whose pods are simulated engines.

// shape is the configuration of an Envoy as some gateway writes it. Each text is a part of YAML.
type shape struct {
	filter string // of ext_proc: its modes, its failure mode, and the metadata that it passes on
	pool   string // the type of the cluster of workers, and its load balancing
	picker string // the transport socket of the cluster of routers
	log    bool   // there is an access log to routers
	flags  []string
}

// Parts of shapes.
const (
	duplex = "processing_mode: {request_body_mode: FULL_DUPLEX_STREAMED, request_trailer_mode: SEND, response_header_mode: SEND, " +
		"response_body_mode: FULL_DUPLEX_STREAMED, response_trailer_mode: SEND}\n              message_timeout: 1000s"
	buffered = "processing_mode: {request_body_mode: BUFFERED, response_header_mode: SKIP}\n              message_timeout: 10s\n" +
		"              failure_mode_allow: true"
	lbMetadata = "\n              metadata_options: {receiving_namespaces: {untyped: [envoy.lb]}, forwarding_namespaces: {untyped: [envoy.lb]}}"

	byMetadata = "metadata: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint}]}"
	byHeader   = "header: x-gateway-destination-endpoint"
	reports    = "\n            selected_host_key: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint-served}]}"

	originalDst = `type: ORIGINAL_DST
    lb_policy: CLUSTER_PROVIDED
    original_dst_lb_config: {use_http_header: true, http_header_name: x-gateway-destination-endpoint}`
	anyCertificate = `transport_socket:
      name: envoy.transport_sockets.tls
      typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, common_tls_context: {}}`
)

// overrideHost is a cluster whose load balancer takes the worker from a source; more has further settings of it.
func overrideHost(source, more string) string {
	return `load_assignment: {cluster_name: pool, endpoints: [{lb_endpoints: [ENGINES]}]}
    load_balancing_policy:
      policies:
      - typed_extension_config:
          name: envoy.load_balancing_policies.override_host
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
            override_host_sources: [{` + source + `}]` + more + `
            fallback_policy:
              policies:
              - typed_extension_config:
                  name: envoy.load_balancing_policies.round_robin
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin}`
}

// shapes are the configurations of gateways.
var shapes = map[string]shape{
	"istiod's pool": {filter: duplex + lbMetadata, pool: overrideHost(byMetadata, reports)},
	"istiod's pool with an access log": {
		filter: duplex + lbMetadata, pool: overrideHost(byMetadata, reports), log: true,
	},
	"a pool of original destinations, over TLS": {
		filter: duplex, pool: originalDst, picker: anyCertificate, flags: []string{"--tls-self-signed", "--tls-client-ca", "none"},
	},
	"Envoy Gateway's policies": {
		filter: buffered + "\n              metadata_options: {receiving_namespaces: {untyped: [envoy.lb, stator]}}",
		pool:   overrideHost(byHeader, ""), log: true,
	},
	"an EnvoyFilter": {filter: buffered + lbMetadata, pool: overrideHost(byMetadata, reports), log: true},
	"an Envoy that does not report who served": {
		filter: duplex + lbMetadata, pool: overrideHost(byMetadata, ""), log: true,
	},
}

// envoyInCluster is an Envoy without its parts.
const envoyInCluster = `
node: {id: router~10.0.0.1~gw-1.istio-system~istio-system.svc.cluster.local, cluster: gw}
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: LISTEN}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: gw
          ACCESSLOG
          route_config:
            virtual_hosts:
            - {name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: pool, timeout: 0s}}]}
          http_filters:
          - name: envoy.filters.http.ext_proc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: {envoy_grpc: {cluster_name: picker}}
              FILTER
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: pool
    POOL
  - name: picker
    load_assignment: {cluster_name: picker, endpoints: [{lb_endpoints: [PICKER]}]}
    TLS
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
`

const accessLogToPicker = `access_log:
          - name: envoy.access_loggers.http_grpc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
              common_config:
                log_name: any
                transport_api_version: V3
                grpc_service: {envoy_grpc: {cluster_name: picker}}`

// picker is a router that finds its workers in a cluster, behind an Envoy of some shape.
type picker struct {
	*gateway
	api    *kubeapi.Server
	router *command
	envoy  *command
	port   int // of the engines
	net    int // the third number of the addresses of pods

	config, routerAt string
	endpoints        string   // of the engines, for Envoy
	flags            []string // of the router
}

// networks has the last network that a test has taken, so that tests beside each other have pods of their own.
var networks atomic.Int32

var inPool = map[string]string{"app": "vllm"}

// startPicker starts pods with engines, a router and an Envoy.
func startPicker(t *testing.T, s shape, pods int) *picker {
	t.Helper()
	listen, routerAt := freeAddress(t), freeAddress(t)
	_, port, err := net.SplitHostPort(freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	p := &picker{gateway: &gateway{t: t, url: "http://" + listen, admin: freeAddress(t)}, api: kubeapi.New(t), net: int(networks.Add(1))}
	_, _ = fmt.Sscan(port, &p.port)
	p.api.PutPool("llm", "sim", inPool, p.port)
	var endpoints []string
	for i := range pods {
		endpoints = append(endpoints, endpoint(p.startPod(i)))
	}

	p.config = configFile(t, `models: [{name: sim, path: "builtin:sim"}]`+"\n")
	p.flags = append([]string{"extproc", "--config", p.config, "--kubernetes-api", p.api.URL,
		"--inference-pool", "llm/sim", "--listen-address", routerAt, "--admin-address", p.admin}, s.flags...)
	p.router = start(t, p.flags...)
	p.routerAt, p.endpoints = routerAt, strings.Join(endpoints, ", ")
	p.envoy = p.startEnvoy(s, listen)
	p.awaitWorkers(pods)
	return p
}

// startEnvoy starts an Envoy that listens there, and whose pickers are the first router and others.
func (p *picker) startEnvoy(s shape, listen string, others ...string) *command {
	p.t.Helper()
	log := ""
	if s.log {
		log = accessLogToPicker
	}
	routers := endpoint(p.routerAt)
	for _, at := range others {
		routers += ", " + endpoint(at)
	}
	_, port, _ := strings.Cut(listen, ":")
	text := strings.NewReplacer("FILTER", s.filter, "POOL", s.pool, "TLS", s.picker, "ACCESSLOG", log).Replace(envoyInCluster)
	text = strings.NewReplacer("LISTEN", port, "ENGINES", p.endpoints, "PICKER", routers).Replace(text)
	config := filepath.Join(p.t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return startCommand(p.t, exec.Command(envoyPath(p.t), "--config-path", config, "--use-dynamic-base-id", "--concurrency", "2",
		"--log-level", "warn"))
}

// startEnvoyFor replaces the Envoy by one with a second picker.
func (p *picker) startEnvoyFor(s shape, second string) {
	p.t.Helper()
	p.envoy.stop()
	p.startEnvoy(s, strings.TrimPrefix(p.url, "http://"), second)
	eventually(p.t, "the Envoy answers", func() error {
		_, err := get(p.url + "/live")
		return err
	})
}

// startPod starts the engine of a pod, adds the pod, and returns the address of the engine.
func (p *picker) startPod(i int) string {
	at := fmt.Sprintf("127.77.%d.%d", p.net, i+1)
	address := net.JoinHostPort(at, fmt.Sprint(p.port))
	start(p.t, "sim", "--listen-address", address, "--kv-events", "ipc://"+filepath.Join(p.t.TempDir(), "e"), "--log-level", "warn")
	eventually(p.t, "the engine answers", func() error {
		_, err := get("http://" + address + "/health")
		return err
	})
	p.api.PutPod(p.pod(i))
	return address
}

// pod returns a ready pod.
func (p *picker) pod(i int) kubeapi.Pod {
	name := fmt.Sprintf("vllm-%d", i)
	return kubeapi.Pod{
		Namespace: "llm", Name: name, UID: name, IP: fmt.Sprintf("127.77.%d.%d", p.net, i+1), Labels: maps.Clone(inPool), Ready: true,
	}
}

// awaitWorkers waits until the router has so many ready workers, and no others, and until Envoy is there.
func (p *picker) awaitWorkers(n int) {
	p.t.Helper()
	eventually(p.t, "the router knows its workers", func() error {
		if _, err := get("http://" + p.admin + "/readyz"); err != nil {
			return err
		}
		ready := 0
		for _, r := range p.fleet() {
			if r.State == "ready" {
				ready++
			}
		}
		if ready != n || len(p.fleet()) != n {
			return fmt.Errorf("%d of %d workers: %+v", ready, n, p.fleet())
		}
		_, err := get(p.url + "/live")
		return err
	})
}

// TestPickerForGateways: behind the Envoy of every gateway, all answers are whole, come from the worker that was picked, and leave no
// booking behind. Later turns of a conversation find their cache.
func TestPickerForGateways(t *testing.T) {
	t.Parallel()
	for name, s := range shapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startPicker(t, s, 3)
			const clients, turns = 25, 4
			var all sync.WaitGroup
			var found atomic.Int64 // later turns that found their cache
			for i := range clients {
				all.Go(func() {
					list := []message{{"user", strings.Repeat(fmt.Sprintf("Everything about subject %d, please. ", i), 20)}}
					for turn := range turns {
						r := p.chat(list, 8)
						if turn > 0 && r.usage.Details.CachedTokens > 0 {
							found.Add(1)
						}
						list = append(list, message{"assistant", r.text}, message{"user", "And what else is there?"})
					}
				})
				all.Go(func() {
					for range turns {
						resp, err := p.stream(t.Context(), 40)
						if err != nil {
							t.Error(err)
							return
						}
						if n, err := countTokens(resp); err != nil || n != 40 {
							t.Errorf("%d of 40 tokens came: %v", n, err)
						}
					}
				})
			}
			all.Wait()

			const requests = 2 * clients * turns
			p.assertNothingBooked()
			if n := p.metric("stator_extproc_requests_total", `outcome="picked"`); n != requests {
				t.Errorf("%g of %d requests were picked", n, requests)
			}
			if n := found.Load(); n < clients*(turns-1)/2 {
				t.Errorf("%d of %d later turns found their cache", n, clients*(turns-1))
			}
			if !s.log {
				return
			}
			eventually(t, "all requests are reported as picked", func() error {
				if n := p.served("as_picked"); n != requests {
					return fmt.Errorf("%d of %d; %d misdirected, %d unpicked", n, requests, p.served("misdirected"), p.served("unpicked"))
				}
				return nil
			})
		})
	}
}

// TestPodsComeAndGo scales a pool from three pods to five and to two while clients stream. No answer has a hole, and a pod that is to
// go gets no more requests.
func TestPodsComeAndGo(t *testing.T) {
	t.Parallel()
	// The endpoints of original destinations are those that the router picks, so Envoy needs no others.
	p := startPicker(t, shape{filter: duplex, pool: originalDst}, 3)
	stop := make(chan struct{})
	var all sync.WaitGroup
	var answers atomic.Int64
	for range 12 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				resp, err := p.stream(t.Context(), 60)
				if err != nil {
					t.Error(err)
					return
				}
				if n, err := countTokens(resp); err != nil || n != 60 {
					t.Errorf("%d of 60 tokens came: %v", n, err)
				}
				answers.Add(1)
			}
		})
	}

	p.startPod(3)
	p.startPod(4)
	p.awaitWorkers(5)
	for i := range 3 {
		pod := p.pod(i)
		pod.Terminating = true // its engine goes on, as one does in its grace period
		p.api.PutPod(pod)
	}
	p.awaitWorkers(2)
	before := answers.Load()
	eventually(t, "the others serve", func() error {
		if answers.Load() < before+24 {
			return errors.New("too few answers")
		}
		return nil
	})

	p.api.Break(503) // the API server goes away, which stops nothing
	before = answers.Load()
	eventually(t, "requests are served without an API server", func() error {
		text, err := p.read("/readyz")
		if err != nil || !strings.Contains(text, "degraded: InferencePool llm/sim") || answers.Load() < before+24 {
			return fmt.Errorf("%d answers, %w: %s", answers.Load()-before, err, text)
		}
		return nil
	})
	close(stop)
	all.Wait()
	p.assertNothingBooked()
}

// TestTwoPickers: two routers without a bus know each other's requests. The access log of an Envoy arrives at either of them, and all
// bookings end. A router that comes later is found, and one that is killed leaves nothing behind.
func TestTwoPickers(t *testing.T) {
	t.Parallel()
	port := strings.TrimPrefix(freeAddress(t), "127.0.0.1")
	at := func(i int) string { return fmt.Sprintf("127.66.0.%d%s", i, port) }
	s := shapes["istiod's pool with an access log"]
	s.flags = []string{"--peers", at(2), "--peers-address", at(1)}
	p := startPicker(t, s, 3)
	second := &gateway{t: t, url: p.url, admin: freeAddress(t)}
	listen := freeAddress(t)
	startSecond := func() *command {
		c := start(t, "extproc", "--config", p.config, "--kubernetes-api", p.api.URL, "--inference-pool", "llm/sim", "--listen-address", listen,
			"--admin-address", second.admin, "--peers-service", "picker", "--namespace", "llm", "--peers-address", at(2))
		eventually(t, "the second router is ready", func() error {
			_, err := get("http://" + second.admin + "/readyz")
			return err
		})
		return c
	}
	p.api.PutEndpoints("llm", "picker", "picker-a", "127.66.0.1", "127.66.0.2") // itself among them
	other := startSecond()
	p.startEnvoyFor(s, listen)

	converse := func() {
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				for range 4 {
					p.chat([]message{{"user", fmt.Sprintf("Tell me about %d.", i)}}, 8)
				}
			})
		}
		all.Wait()
	}
	decided := func(g *gateway) float64 { return g.metric("stator_extproc_requests_total", `outcome="picked"`) }
	forwarded := func(g *gateway) float64 {
		return g.metric("stator_accesslog_foreign_ends_total", `result="forwarded"`)
	}
	converse()
	if decided(p.gateway) == 0 || decided(second) == 0 || forwarded(p.gateway)+forwarded(second) == 0 {
		t.Fatalf("one router decided %g requests, the other %g; %g ends were passed on: the test shows nothing",
			decided(p.gateway), decided(second), forwarded(p.gateway)+forwarded(second))
	}
	p.assertNothingBooked()
	second.assertNothingBooked()
	for _, g := range []*gateway{p.gateway, second} {
		if n := g.metric("stator_accesslog_foreign_ends_total", `result="no_bus"`); n != 0 {
			t.Errorf("%g ends found no way", n)
		}
		if n := g.metric("stator_route_bookings_ended_total", `reason="reconciled"`); n != 0 {
			t.Errorf("%g bookings were ended by engines' reports", n)
		}
	}

	other.kill()
	startSecond()
	converse()
	p.assertNothingBooked()
	second.assertNothingBooked()
}

// TestNewPickerKnowsCaches: a router that starts late finds what engines have cached before, at its first decision for each prompt. Its
// engines have no replay socket, so it has the caches from the other router. One start is in idle times, the other is in traffic.
func TestNewPickerKnowsCaches(t *testing.T) {
	t.Parallel()
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprintf("traffic %t", busy), func(t *testing.T) {
			t.Parallel()
			port := strings.TrimPrefix(freeAddress(t), "127.0.0.1")
			network := networks.Add(1)
			at := func(i int) string { return fmt.Sprintf("127.66.%d.%d%s", network, i, port) }
			s := shapes["istiod's pool with an access log"]
			s.flags = []string{"--peers", at(2), "--peers-address", at(1)}
			p := startPicker(t, s, 4)
			const subjects = 24
			ask := func(g *gateway, subject int) reply {
				return g.chat([]message{{"user", strings.Repeat(fmt.Sprintf("Everything about subject %d, please. ", subject), 20)}}, 4)
			}
			for subject := range subjects {
				ask(p.gateway, subject)
			}

			var over atomic.Bool
			var traffic sync.WaitGroup
			stop := func() {
				over.Store(true)
				traffic.Wait()
			}
			defer stop()
			for client := range 4 {
				traffic.Go(func() {
					for turn := 0; busy && !over.Load(); turn++ {
						text := strings.Repeat(fmt.Sprintf("Turn %d of client %d. ", turn, client), 20)
						_, _ = p.tryChat(t.Context(), []message{{"user", text}}, 4)
					}
				})
			}
			listen, envoyAt := freeAddress(t), freeAddress(t)
			second := &gateway{t: t, url: "http://" + envoyAt, admin: freeAddress(t)}
			start(t, "extproc", "--config", p.config, "--kubernetes-api", p.api.URL, "--inference-pool", "llm/sim", "--listen-address", listen,
				"--admin-address", second.admin, "--peers", at(1), "--peers-address", at(2))
			eventually(t, "the second router is ready", func() error {
				_, err := get("http://" + second.admin + "/readyz")
				return err
			})
			p.routerAt = listen
			p.startEnvoy(s, envoyAt)
			eventually(t, "the Envoy answers", func() error {
				_, err := get(second.url + "/live")
				return err
			})

			stop() // otherwise load would count, too
			second.assertNothingBooked()
			eventually(t, "the engines report that they are idle", func() error {
				for _, r := range second.fleet() {
					if r.Running+r.Waiting != 0 {
						return fmt.Errorf("%+v", r)
					}
				}
				return nil
			})
			for subject := range subjects {
				if r := ask(second, subject); r.usage.Details.CachedTokens == 0 {
					t.Errorf("subject %d was computed again", subject)
				}
			}
			if n := second.metric("stator_extproc_requests_total", `outcome="picked"`); n != subjects {
				t.Errorf("the second router has picked for %g of %d requests", n, subjects)
			}
			if n := second.metric("stator_feed_unrecovered_gaps_total"); n != 0 {
				t.Errorf("%g gaps", n)
			}
		})
	}
}

// The lengths of the tests below. `make soak-picker` plays many ends of routers under long answers.
var (
	pickerEnds   = flag.Int("picker.ends", 1, "`times` that a router stops, and that one is killed, while clients stream")
	pickerTokens = flag.Int("picker.tokens", 300, "length of an answer in `tokens`")
)

// endRouters ends a router again and again while clients stream, early, in the middle or late in their answers, and demands that all
// answers are whole. ready is called before the streams begin, and end ends the router.
func (p *picker) endRouters(streams int, ready, end func()) {
	p.t.Helper()
	var cut atomic.Int64
	for trial := range *pickerEnds {
		ready()
		var all sync.WaitGroup
		until := p.generated() + float64(streams**pickerTokens*(1+trial%3)/4)
		for range streams {
			all.Go(func() {
				resp, err := p.stream(p.t.Context(), *pickerTokens)
				n := 0
				if err == nil {
					n, err = countTokens(resp)
				}
				if err != nil || n != *pickerTokens {
					cut.Add(1)
					p.t.Errorf("%d of %d tokens came: %v", n, *pickerTokens, err)
				}
			})
		}
		eventually(p.t, "the engines answer", func() error {
			if n := p.generated(); n < until {
				return fmt.Errorf("%g of %g tokens", n, until)
			}
			return nil
		})
		end()
		all.Wait()
		p.router = start(p.t, p.flags...)
		p.awaitWorkers(3)
	}
	p.t.Logf("%d of %d answers had holes or were cut, in %d ends of routers", cut.Load(), streams**pickerEnds, *pickerEnds)
}

// generated returns the tokens that the engines of three pods have emitted.
func (p *picker) generated() (tokens float64) {
	p.t.Helper()
	for i := range 3 {
		text, err := get(fmt.Sprintf("http://%s:%d/metrics", p.pod(i).IP, p.port))
		if err != nil {
			p.t.Fatal(err)
		}
		tokens += sample(text, "vllm:generation_tokens_total")
	}
	return tokens
}

// TestStoppedPickerCutsNothing: behind istiod's pool without an access log, all bytes of answers pass the router. So a router that stops
// goes on until they have ended.
func TestStoppedPickerCutsNothing(t *testing.T) {
	t.Parallel()
	p := startPicker(t, shapes["istiod's pool"], 3)
	const streams = 40
	p.endRouters(streams, func() {}, func() {
		if n := p.metric("stator_accesslog_followed_streams"); n < streams/2 {
			t.Errorf("%g of %d streams pass the router: the test shows little", n, streams)
		}
		p.router.stop()
	})
}

// TestKilledPickerCutsNothing: behind istiod's pool with an access log, no byte of an answer passes the router. So an answer stays whole
// when the router is killed.
func TestKilledPickerCutsNothing(t *testing.T) {
	t.Parallel()
	p := startPicker(t, shapes["istiod's pool with an access log"], 3)
	ready := func() {
		for range 20 { // until the router knows that this Envoy has an access log
			p.chat([]message{{"user", "Hello."}}, 4)
		}
		eventually(t, "the access log is known", func() error {
			if n := p.served("as_picked"); n < 20 { // requests of the router before it may be among them
				return fmt.Errorf("%d of 20 requests", n)
			}
			return nil
		})
	}
	p.endRouters(40, ready, func() {
		if n := p.metric("stator_accesslog_followed_streams"); n != 0 {
			t.Errorf("%g streams pass the router", n)
		}
		p.router.kill()
	})
}

// TestHealthWhileTheClusterIsAway: a router that cannot read the API server lives, and is not ready, so that a kubelet does not restart it.
// It becomes ready when the API server is back.
func TestHealthWhileTheClusterIsAway(t *testing.T) {
	t.Parallel()
	p := &picker{gateway: &gateway{t: t, admin: freeAddress(t)}, api: kubeapi.New(t), net: int(networks.Add(1))}
	_, port, _ := strings.Cut(freeAddress(t), ":")
	_, _ = fmt.Sscan(port, &p.port)
	p.api.PutPool("llm", "sim", inPool, p.port)
	p.startPod(0)
	p.api.Break(403)
	healthAt := freeAddress(t)
	p.router = start(t, "extproc", "--config", configFile(t, `models: [{name: sim, path: "builtin:sim"}]`+"\n"), "--kubernetes-api", p.api.URL,
		"--inference-pool", "llm/sim", "--listen-address", freeAddress(t), "--admin-address", p.admin, "--health-address", healthAt)

	conn, err := grpc.NewClient(healthAt, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	status := func(service string) string {
		answer, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
		if err != nil {
			return err.Error()
		}
		return answer.GetStatus().String()
	}
	eventually(t, "the router lives and is not ready", func() error {
		if live, ready := status("liveness"), status("inference-extension"); live != "SERVING" || ready != "NOT_SERVING" {
			return fmt.Errorf("liveness %s, inference-extension %s", live, ready)
		}
		return nil
	})
	eventually(t, "the reason is shown", func() error {
		text, err := p.read("/readyz")
		if err == nil || !strings.Contains(err.Error()+text, "403") {
			return fmt.Errorf("%q, %w", text, err)
		}
		return nil
	})

	p.api.Break(0)
	eventually(t, "the router is ready", func() error {
		if ready := status("inference-extension"); ready != "SERVING" {
			return errors.New(ready)
		}
		return nil
	})
}
