package istio

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"istio.io/istio/pilot/pkg/features"
	"istio.io/istio/pilot/test/xds"
	"istio.io/istio/pkg/test"
)

const (
	engines       = 3
	conversations = 20
	turns         = 4 // of each conversation
	requests      = conversations * turns
)

// fleet is engines, and a gateway before them.
type fleet struct {
	t              *testing.T
	stator, envoy  string // programs
	engines        []string
	config         string // a file that lists the engines
	gateway, admin string // addresses
}

// TestTrafficThroughIstiod: an Envoy that istiod configures, with the EnvoyFilter of the snippet, sends all requests to the engines that
// the router has picked. Conversations find as much in the caches of the engines as through an Envoy that Stator configures.
func TestTrafficThroughIstiod(t *testing.T) {
	own := startFleet(t)
	own.start(own.stator, "up", "--config", own.config, "--envoy", own.envoy, "--listen-address", own.gateway, "--admin-address", own.admin)
	want := own.converse()

	f := startFleet(t)
	router := freeAddress(t)
	f.start(f.stator, "extproc", "--config", f.config, "--listen-address", router, "--admin-address", f.admin)
	f.startEnvoyOfIstiod(f.snippet(router))
	got := f.converse()
	t.Logf("cached tokens of all prompt tokens: %.3f through istiod's Envoy, %.3f through Stator's", got, want)
	if math.Abs(got-want) > 0.02 {
		t.Error("they differ by more than 0.02")
	}
	if want < 0.5 {
		t.Error("the conversations hardly reuse caches: the test shows little")
	}
}

// startFleet starts engines.
func startFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{
		t: t, stator: os.Getenv("STATOR_TEST_STATOR"), envoy: os.Getenv("STATOR_TEST_ENVOY"),
		config: filepath.Join(t.TempDir(), "fleet.yaml"), gateway: freeAddress(t), admin: freeAddress(t),
	}
	if f.stator == "" || f.envoy == "" {
		t.Skip("STATOR_TEST_STATOR and STATOR_TEST_ENVOY name no programs: run make test-istio")
	}
	text := "apiVersion: stator.dev/v1alpha1\nkind: Stator\nmodels:\n- name: sim\n  path: builtin:sim\n  workers:\n"
	for i := range engines {
		at := freeAddress(t)
		events := "ipc://" + filepath.Join(t.TempDir(), "events")
		f.start(f.stator, "sim", "--listen-address", at, "--kv-events", events)
		text += fmt.Sprintf("  - {name: w%d, address: %q, kvEvents: %q}\n", i, at, events)
		f.engines = append(f.engines, at)
		f.eventually("the engine answers", func() error {
			_, err := get("http://" + at + "/health")
			return err
		})
	}
	if err := os.WriteFile(f.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

// snippet returns the objects that users apply.
func (f *fleet) snippet(router string) string {
	f.t.Helper()
	cmd := exec.Command(f.stator, "envoy", "snippet", "--for", "istio", "-n", "llm", "--gateway-labels", "istio=ingressgateway",
		"--service", "vllm", "--route-name", "llm-route", "--extproc-address", router)
	var failure bytes.Buffer
	cmd.Stderr = &failure
	text, err := cmd.Output()
	if err != nil {
		f.t.Fatalf("%v\n%s", err, &failure)
	}
	return string(text)
}

// startEnvoyOfIstiod starts an istiod in this process, with the objects of a user, and an Envoy that it configures.
func (f *fleet) startEnvoyOfIstiod(snippet string) {
	f.t.Helper()
	if found := faults(f.t, snippet); len(found) > 0 {
		f.t.Fatal(found)
	}
	// Filters of Istio's own proxy, which a stock Envoy lacks.
	test.SetForTest(f.t, &features.MetadataExchange, false)
	test.SetForTest(f.t, &features.ALPNFilter, false)

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	var endpoints []string
	for _, at := range f.engines {
		host, port, _ := net.SplitHostPort(at)
		endpoints = append(endpoints, fmt.Sprintf("{address: %s, ports: {http: %s}}", host, port))
	}
	_, port, _ := net.SplitHostPort(f.gateway)
	xds.NewFakeDiscoveryServer(f.t, xds.FakeOptions{
		ConfigString:    fmt.Sprintf(objects, port, strings.Join(endpoints, ", ")) + snippet,
		ListenerBuilder: func() (net.Listener, error) { return ln, nil },
	})

	config := filepath.Join(f.t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, bootstrap, ln.Addr().(*net.TCPAddr).Port), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.start(f.envoy, "--config-path", config, "--concurrency", "2", "--use-dynamic-base-id", "--log-level", "warn")
}

// converse plays conversations, demands that the router has picked for all of their requests and that its pick was obeyed, and returns the
// share of prompt tokens that the engines have found in their caches.
func (f *fleet) converse() float64 {
	f.t.Helper()
	f.eventually("a request is decided, and reported as served", func() error {
		if _, err := get("http://" + f.admin + "/readyz"); err != nil {
			return err
		}
		if _, err := f.chat([]message{{"user", "Hello."}}); err != nil {
			return err
		}
		if picked, served := f.picked(), f.served(); picked == 0 || picked != served {
			return fmt.Errorf("%g were picked, and %g served so", picked, served)
		}
		return nil
	})
	before, queries, hits := f.served(), f.cache("queries"), f.cache("hits")

	// One request after the other, so that the load of engines decides nothing: it differs from run to run.
	lists := make([][]message, conversations)
	for turn := range turns {
		for i := range lists {
			question := "And what else is there?"
			if turn == 0 {
				question = strings.Repeat(fmt.Sprintf("Everything about subject %d, please. ", i), 50)
			}
			lists[i] = append(lists[i], message{"user", question})
			text, err := f.chat(lists[i])
			if err != nil {
				f.t.Fatal(err)
			}
			lists[i] = append(lists[i], message{"assistant", text})
		}
	}
	f.eventually("all requests are served as picked", func() error {
		if n := f.served() - before; n != requests || f.picked() != f.served() {
			return fmt.Errorf("%g of %d", n, requests)
		}
		return nil
	})
	return (f.cache("hits") - hits) / (f.cache("queries") - queries)
}

// picked returns the requests for which the router has picked an engine.
func (f *fleet) picked() float64 {
	return f.sum(f.admin, `stator_extproc_requests_total{outcome="picked"}`)
}

// served returns the requests that were served by the engine that was picked, as the access log tells.
func (f *fleet) served() float64 {
	return f.sum(f.admin, `stator_accesslog_requests_total{outcome="as_picked"}`)
}

// cache returns the prompt tokens that the engines have looked up in their caches ("queries"), or found there ("hits").
func (f *fleet) cache(what string) (tokens float64) {
	for _, at := range f.engines {
		tokens += f.sum(at, "vllm:prefix_cache_"+what+"_total{")
	}
	return tokens
}

// sum returns the sum of the samples of a process whose lines begin with a text.
func (f *fleet) sum(at, prefix string) (total float64) {
	f.t.Helper()
	text, err := get("http://" + at + "/metrics")
	if err != nil {
		f.t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			var value float64
			_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &value)
			total += value
		}
	}
	return total
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chat returns the text of an answer.
func (f *fleet) chat(list []message) (string, error) {
	body, err := json.Marshal(map[string]any{"model": "sim", "max_tokens": 8, "messages": list})
	if err != nil {
		return "", err
	}
	resp, err := http.Post("http://"+f.gateway+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	text, err := read(resp)
	if err != nil {
		return "", err
	}
	var answer struct{ Choices []struct{ Message message } }
	if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Choices) == 0 {
		return "", fmt.Errorf("no answer: %.300s", text)
	}
	return answer.Choices[0].Message.Content, nil
}

func get(url string) (string, error) {
	resp, err := http.Get(url)
	if err != nil {
		return "", err
	}
	return read(resp)
}

func read(resp *http.Response) (string, error) {
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s: %s", resp.Status, text)
	}
	return string(text), err
}

// start starts a program that ends with the test. Its log is printed if the test fails.
func (f *fleet) start(program string, args ...string) {
	f.t.Helper()
	log, err := os.Create(filepath.Join(f.t.TempDir(), "log"))
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // stator up ends its Envoy
		_ = cmd.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); f.t.Failed() && err == nil {
			f.t.Logf("the log of %s ends with\n%s", cmd, text[max(0, len(text)-4000):])
		}
	})
}

// eventually waits until a condition holds, a minute at most.
func (f *fleet) eventually(what string, holds func() error) {
	f.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("%s: not within a minute: %v", what, err)
		}
	}
}

// freeAddress returns an address that was free a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().String()
}

// objects are those that a user has before Stator comes: port of the gateway, and endpoints of the Service. Without the DestinationRule
// istiod asks for mTLS, whose secrets only the agent of Istio's own proxy has.
const objects = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: istio-system}
spec:
  selector: {istio: ingressgateway}
  servers: [{port: {number: %s, name: http, protocol: HTTP}, hosts: ["*"]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: llm, namespace: istio-system}
spec:
  hosts: ["*"]
  gateways: [gw]
  http: [{name: llm-route, route: [{destination: {host: vllm.llm.svc.cluster.local, port: {number: 8000}}}]}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: vllm, namespace: llm}
spec:
  hosts: [vllm.llm.svc.cluster.local]
  ports: [{number: 8000, name: http, protocol: HTTP}]
  resolution: STATIC
  location: MESH_INTERNAL
  endpoints: [%s]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: vllm, namespace: llm}
spec: {host: vllm.llm.svc.cluster.local, trafficPolicy: {tls: {mode: DISABLE}}}
---
`

// bootstrap is the configuration of a gateway's Envoy: all of it comes from istiod, at a port.
const bootstrap = `node:
  id: router~127.0.0.1~gw-1.istio-system~istio-system.svc.cluster.local
  cluster: gw.istio-system
  metadata: {NAMESPACE: istio-system, LABELS: {istio: ingressgateway}, CLUSTER_ID: Kubernetes, ISTIO_VERSION: 1.31.0, GENERATOR: ""}
dynamic_resources:
  ads_config: {api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: istiod}}]}
  lds_config: {ads: {}, initial_fetch_timeout: 0s, resource_api_version: V3}
  cds_config: {ads: {}, initial_fetch_timeout: 0s, resource_api_version: V3}
static_resources:
  clusters:
  - name: istiod
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: istiod, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1,
      port_value: %d}}}}]}]}
`
