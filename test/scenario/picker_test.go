package scenario

import (
	"cmp"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stator-project/stator/test/kubeapi"
)

// Gateways of Kubernetes configure Envoy as they like, and the router is their endpoint picker. These tests have static Envoys with the
// configurations that gateways write, and an API server with an InferencePool whose pods are simulated engines.

// shape is the configuration of an Envoy as some gateway writes it. Each text is a part of YAML.
type shape struct {
	before string // a filter before that of ext_proc
	filter string // of ext_proc: its modes, its failure mode, and the metadata that it passes on
	pool   string // the type of the cluster of workers, and its load balancing
	picker string // the transport socket of the cluster of routers
	log    bool   // there is an access log to routers
	flags  []string
	envoy  string // the program; empty for the one of all tests
}

// oldestVariable names the oldest Envoy that is supported, which does not report who served. Without it, the Envoy of all tests runs with
// the configuration for the oldest.
const oldestVariable = "STATOR_TEST_OLDEST_ENVOY"

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
		filter: duplex + lbMetadata, pool: overrideHost(byMetadata, ""), log: true, envoy: os.Getenv(oldestVariable),
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
            - name: all
              domains: ["*"]
              routes: [{match: {prefix: /}, route: {cluster: pool, timeout: 0s}}]
              response_headers_to_add:
              - header: {key: x-test-picked, value: "%REQ(x-gateway-destination-endpoint)%"}
              - header: {key: x-test-served, value: "%UPSTREAM_REMOTE_ADDRESS%"}
          http_filters:
          BEFORE
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

// isServedAsPicked reports whether the engine that served is the one that the router picked, by Envoy's own account. Only the access log
// tells it to the router.
func isServedAsPicked(header http.Header) bool {
	picked, served := header.Get("x-test-picked"), header.Get("x-test-served")
	return picked != "" && picked == served
}

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

	engines map[int]*command // of the pods

	config, routerAt string
	endpoints        string   // of the engines, for Envoy
	flags            []string // of the router
}

// networks has the last network that a test has taken, so that tests beside each other have pods of their own.
var networks atomic.Int32

var inPool = map[string]string{"app": "vllm"}

// newPicker returns an API server with a pool that has no pods.
func newPicker(t *testing.T) *picker {
	t.Helper()
	p := &picker{
		gateway: &gateway{t: t, admin: freeAddress(t)}, api: kubeapi.New(t), net: int(networks.Add(1)), engines: map[int]*command{},
	}
	_, port, _ := strings.Cut(freeAddress(t), ":")
	_, _ = fmt.Sscan(port, &p.port)
	p.api.PutPool("llm", "sim", inPool, p.port)
	return p
}

// startPicker starts pods with engines, a router and an Envoy.
func startPicker(t *testing.T, s shape, pods int) *picker {
	t.Helper()
	p := newPicker(t)
	var endpoints []string
	for i := range pods {
		endpoints = append(endpoints, endpoint(p.startPod(i)))
	}
	p.endpoints = strings.Join(endpoints, ", ")
	p.serve(s, pods)
	return p
}

// serve starts a router and an Envoy, and waits for so many workers.
func (p *picker) serve(s shape, workers int) {
	p.t.Helper()
	listen := freeAddress(p.t)
	p.url, p.routerAt = "http://"+listen, freeAddress(p.t)
	p.config = configFile(p.t, `models: [{name: sim, path: "builtin:sim"}]`+"\n")
	p.flags = append([]string{"extproc", "--config", p.config, "--kubernetes-api", p.api.URL,
		"--inference-pool", "llm/sim", "--listen-address", p.routerAt, "--admin-address", p.admin}, s.flags...)
	p.router = start(p.t, p.flags...)
	p.envoy = p.startEnvoy(s, listen)
	p.awaitWorkers(workers)
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
	parts := []string{"BEFORE", s.before, "FILTER", s.filter, "POOL", s.pool, "TLS", s.picker, "ACCESSLOG", log}
	text := strings.NewReplacer(parts...).Replace(envoyInCluster)
	text = strings.NewReplacer("LISTEN", port, "ENGINES", p.endpoints, "PICKER", routers).Replace(text)
	config := filepath.Join(p.t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return startCommand(p.t, exec.Command(cmp.Or(s.envoy, envoyPath(p.t)), "--config-path", config, "--use-dynamic-base-id",
		"--concurrency", "2", "--log-level", "warn"))
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

// engineAt returns the address of a pod's engine.
func (p *picker) engineAt(i int) string { return fmt.Sprintf("%s:%d", p.pod(i).IP, p.port) }

// startPod starts the engine of a pod, adds the pod, and returns the address of the engine.
func (p *picker) startPod(i int) string {
	address := p.engineAt(i)
	p.engines[i] = p.startEngine(address)
	p.api.PutPod(p.pod(i))
	return address
}

func (p *picker) startEngine(address string) *command {
	p.t.Helper()
	engine := start(p.t, "sim", "--listen-address", address, "--kv-events", "ipc://"+filepath.Join(p.t.TempDir(), "e"), "--log-level", "warn")
	eventually(p.t, "the engine answers", func() error {
		_, err := get("http://" + address + "/health")
		return err
	})
	return engine
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
			if s.envoy != "" {
				t.Logf("Envoy %s", versionAt(t, s.envoy))
			}
			const clients, turns = 25, 4
			var all sync.WaitGroup
			var found atomic.Int64  // later turns that found their cache
			var served atomic.Int64 // requests that the worker that was picked has served
			count := func(header http.Header) {
				if isServedAsPicked(header) {
					served.Add(1)
				}
			}
			for i := range clients {
				all.Go(func() {
					list := []message{{"user", strings.Repeat(fmt.Sprintf("Everything about subject %d, please. ", i), 20)}}
					for turn := range turns {
						r := p.chat(list, 8)
						count(r.header)
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
						count(resp.Header)
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
			if n := served.Load(); n != requests {
				t.Errorf("%d of %d requests were served by the worker that was picked", n, requests)
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

// crowd is clients that stream one answer after the other.
type crowd struct {
	stop       chan struct{}
	all        sync.WaitGroup
	whole, cut atomic.Int64 // answers
}

// startCrowd starts so many clients. They go on until end is called.
func (p *picker) startCrowd(clients int) *crowd {
	c := &crowd{stop: make(chan struct{})}
	for range clients {
		c.all.Go(func() {
			for {
				select {
				case <-c.stop:
					return
				default:
					c.stream(p, 60)
				}
			}
		})
	}
	return c
}

// stream reads one answer, and counts it.
func (c *crowd) stream(p *picker, tokens int) {
	resp, err := p.stream(p.t.Context(), tokens)
	c.read(p, resp, err, tokens)
}

func (c *crowd) read(p *picker, resp *http.Response, err error, tokens int) {
	n := 0
	if err == nil {
		n, err = countTokens(resp)
	}
	if err != nil || n != tokens {
		c.cut.Add(1)
		p.t.Errorf("%d of %d tokens came: %v", n, tokens, err)
		return
	}
	c.whole.Add(1)
}

// awaitMore waits until each client may have had two more answers.
func (c *crowd) awaitMore(t *testing.T, clients int) {
	t.Helper()
	want := c.whole.Load() + 2*int64(clients)
	eventually(t, "answers go on", func() error {
		if n := c.whole.Load() + c.cut.Load(); n < want {
			return fmt.Errorf("%d of %d answers", n, want)
		}
		return nil
	})
}

// end waits for the last answers, and demands that none was cut off and that no booking is left.
func (c *crowd) end(p *picker) {
	p.t.Helper()
	close(c.stop)
	c.all.Wait()
	p.t.Logf("%d answers were whole, and %d had holes or were cut off", c.whole.Load(), c.cut.Load())
	if n := c.cut.Load(); n != 0 {
		p.t.Errorf("%d answers had holes or were cut off", n)
	}
	p.assertNothingBooked()
}

// TestPodsComeAndGo scales a pool up to five pods and down to two, three times, while 40 clients stream. The pods that go are being
// deleted when answers of five seconds have just begun, and end when they have no more requests. No answer has a hole.
func TestPodsComeAndGo(t *testing.T) {
	t.Parallel()
	const rounds, clients, longAnswers, longTokens = 3, 30, 10, 600
	// The endpoints of original destinations are those that the router picks, so Envoy needs no others.
	p := startPicker(t, shape{filter: duplex, pool: originalDst}, 3)
	c := p.startCrowd(clients)
	pods := []int{0, 1, 2}
	next := 3
	for range rounds {
		for ; len(pods) < 5; next++ {
			p.startPod(next)
			pods = append(pods, next)
		}
		p.awaitWorkers(5)

		served := map[string]int{} // long answers, by the address of the engine
		var begun sync.WaitGroup
		var mu sync.Mutex
		begun.Add(longAnswers)
		for i := range longAnswers {
			c.all.Go(func() {
				resp, err := p.streamAbout(t.Context(), fmt.Sprintf("harbour %d", next*longAnswers+i), longTokens)
				if err == nil {
					mu.Lock()
					served[resp.Header.Get("x-test-served")]++
					mu.Unlock()
				}
				begun.Done()
				c.read(p, resp, err, longTokens)
			})
		}
		begun.Wait()
		slices.SortStableFunc(pods, func(a, b int) int { return cmp.Compare(served[p.engineAt(b)], served[p.engineAt(a)]) })
		going := pods[:3]
		pods = pods[3:]
		before := p.generated(going...)
		for _, i := range going {
			pod := p.pod(i)
			pod.Terminating = true // its engine goes on, as one does in its grace period
			p.api.PutPod(pod)
		}
		p.awaitWorkers(2)

		for _, i := range going {
			// A request that was picked before may still be on its way from Envoy.
			settles(t, "a pod that is being deleted has finished", func() (float64, error) {
				if n := p.running(i); n != 0 {
					return n, fmt.Errorf("%g requests run", n)
				}
				return p.generated(i), nil
			})
		}
		if n := p.generated(going...) - before; n < 2*longTokens {
			t.Errorf("the pods had %g tokens left to generate, of long answers %v: the test shows little", n, served)
		}
		for _, i := range going {
			p.engines[i].kill() // a request that came now would be lost
			p.api.DeletePod("llm", p.pod(i).Name)
		}
		c.awaitMore(t, clients)
	}
	c.end(p)
}

// pickerAway is how long the API server is away, beside the time that the test itself needs.
var pickerAway = flag.Duration("picker.away", 0, "`time` for which the API server of Kubernetes answers nothing")

// TestPickerWithoutAPIServer: while the API server does not answer, the workers that were known serve, and no answer is cut off. When it is
// back, the pods that came and went meanwhile are right.
func TestPickerWithoutAPIServer(t *testing.T) {
	t.Parallel()
	const clients = 12
	p := startPicker(t, shape{filter: duplex, pool: originalDst}, 3)
	c := p.startCrowd(clients)
	workers := func() (names []string) {
		for _, r := range p.fleet() {
			names = append(names, r.Worker)
		}
		slices.Sort(names)
		return names
	}
	before := workers()

	p.api.Break(kubeapi.NoAnswer)
	eventually(t, "the reason is shown", func() error {
		text, err := p.read("/readyz")
		if err == nil && !strings.Contains(text, "degraded: InferencePool llm/sim") {
			err = fmt.Errorf("%q", text)
		}
		return err
	})
	p.startPod(3)
	pod := p.pod(0)
	pod.Terminating = true
	p.api.PutPod(pod)
	for began := time.Now(); ; {
		c.awaitMore(t, clients)
		if now := workers(); !slices.Equal(now, before) {
			t.Fatalf("workers %v without an API server, not %v", now, before)
		}
		if time.Since(began) >= *pickerAway {
			break
		}
	}

	p.api.Break(0)
	began := time.Now()
	want := []string{p.pod(1).Name, p.pod(2).Name, p.pod(3).Name}
	eventually(t, "the workers are right", func() error {
		if now := workers(); !slices.Equal(now, want) {
			return fmt.Errorf("%v, not %v", now, want)
		}
		return nil
	})
	t.Logf("the API server was away for %s or more, and the workers were right %d ms after it was back",
		*pickerAway, time.Since(began).Milliseconds())
	eventually(t, "nothing is degraded", func() error {
		text, err := p.read("/readyz")
		if err == nil && strings.Contains(text, "degraded") {
			err = fmt.Errorf("%q", text)
		}
		return err
	})
	c.awaitMore(t, clients)
	c.end(p)
}

// subsetFromHeader has Envoy read a value of metadata from a header of the client. Gateways set this metadata themselves.
const subsetFromHeader = `- name: envoy.filters.http.header_to_metadata
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
              request_rules:
              - header: x-test-subset
                on_header_present: {metadata_namespace: envoy.lb.subset_hint, key: x-gateway-destination-endpoint-subset,
                  type: PROTOBUF_VALUE, encode: BASE64}`

// TestPickerKeepsToSubsets: a request goes to the endpoints alone to which a gateway restricts it. Both pods have an engine at each of two
// ports, and the address of one is IPv6.
func TestPickerKeepsToSubsets(t *testing.T) {
	t.Parallel()
	p := newPicker(t)
	_, second, _ := strings.Cut(freeAddress(t), ":")
	first := fmt.Sprint(p.port)
	secondPort, _ := strconv.Atoi(second)
	p.api.PutPool("llm", "sim", inPool, p.port, secondPort)
	v4, v6 := fmt.Sprintf("127.77.%d.1", p.net), "::1"
	for _, ip := range []string{v4, v6} {
		for _, port := range []string{first, second} {
			p.startEngine(net.JoinHostPort(ip, port))
		}
		name := "vllm-" + strings.NewReplacer(".", "-", "::", "v6-").Replace(ip)
		p.api.PutPod(kubeapi.Pod{Namespace: "llm", Name: name, UID: name, IP: ip, Labels: maps.Clone(inPool), Ready: true})
	}
	p.serve(shape{
		before: subsetFromHeader, pool: originalDst,
		filter: duplex + "\n              metadata_options: {forwarding_namespaces: {untyped: [envoy.lb, envoy.lb.subset_hint]}}",
	}, 4)

	a, b := v4+":"+first, v4+":"+second
	c, d := "[::1]:"+first, "[::1]:"+second
	for name, tt := range map[string]struct {
		subset any
		want   []string // none for a refusal
	}{
		"a list of one endpoint":              {[]any{a}, []string{a}},
		"its other port":                      {[]any{b}, []string{b}},
		"one endpoint of IPv6":                {[]any{c}, []string{c}},
		"its other port, as a string":         {d, []string{d}},
		"a list of two":                       {[]any{b, c}, []string{b, c}},
		"two in a string, one of them absent": {"10.9.9.9:80," + d, []string{d}},
		"an IPv4 address":                     {[]any{v4}, []string{a, b}},
		"an IPv6 address":                     {v6, []string{c, d}},
		"an empty list":                       {[]any{}, nil},
		"an empty string":                     {"", nil},
		"endpoints of no worker":              {[]any{"10.9.9.9:80", "[::2]:" + first}, nil},
	} {
		value, err := structpb.NewValue(tt.subset)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := proto.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 8 {
			body := fmt.Sprintf(`{"model": "sim", "max_tokens": 2, "messages": [{"role": "user", "content": "Tell me about %d."}]}`, i)
			r, err := p.send(t.Context(), http.MethodPost, "/v1/chat/completions", []byte(body),
				"x-test-subset", base64.StdEncoding.EncodeToString(raw))
			switch {
			case err != nil:
				t.Fatal(err)
			case tt.want == nil && (r.status != http.StatusServiceUnavailable || r.error.Code != "no_ready_worker"):
				t.Errorf("%s: status %d: %s", name, r.status, r.body)
			case tt.want != nil && !slices.Contains(tt.want, r.header.Get("x-test-served")):
				t.Errorf("%s: status %d from %q, not from one of %v: %s", name, r.status, r.header.Get("x-test-served"), tt.want, r.body)
			}
		}
	}
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
	p.assertNothingBooked()
	second.assertNothingBooked()
	if decided(p.gateway) == 0 || decided(second) == 0 || forwarded(p.gateway)+forwarded(second) == 0 {
		t.Fatalf("one router decided %g requests, the other %g; %g ends were passed on: the test shows nothing",
			decided(p.gateway), decided(second), forwarded(p.gateway)+forwarded(second))
	}
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
			second.awaitIdle()
			for subject := range subjects {
				if r := ask(second, subject); r.usage.Details.CachedTokens == 0 {
					t.Errorf("subject %d was computed again", subject)
				}
				second.awaitIdle()
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
		var all, begun sync.WaitGroup
		begun.Add(streams)
		until := p.generated(0, 1, 2) + float64(streams**pickerTokens*(1+trial%3)/4)
		for range streams {
			all.Go(func() {
				resp, err := p.stream(p.t.Context(), *pickerTokens)
				begun.Done()
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
		begun.Wait() // a request that is not decided yet would be lost with its router
		eventually(p.t, "the engines answer", func() error {
			if n := p.generated(0, 1, 2); n < until {
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

// generated returns the tokens that the engines of these pods have emitted.
func (p *picker) generated(pods ...int) float64 {
	p.t.Helper()
	return p.reported("vllm:generation_tokens_total", pods)
}

// running returns the requests that these engines have.
func (p *picker) running(pods ...int) float64 {
	p.t.Helper()
	return p.reported("vllm:num_requests_running", pods) + p.reported("vllm:num_requests_waiting", pods)
}

// reported returns the sum of a metric of engines.
func (p *picker) reported(metric string, pods []int) (sum float64) {
	p.t.Helper()
	for _, i := range pods {
		text, err := get("http://" + p.engineAt(i) + "/metrics")
		if err != nil {
			p.t.Fatal(err)
		}
		sum += sample(text, metric)
	}
	return sum
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
			if p.metric("stator_accesslog_ends_total", `source="access_log"`) == 0 { // ends that responses have shown do not count
				return errNotYet
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
	p := newPicker(t)
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
