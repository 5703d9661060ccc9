// Package gateway has a real Envoy Gateway read the policies of `stator envoy snippet --for envoy-gateway`, and sends requests through a
// stock Envoy that it configures. `make test-gateway` builds what this needs and runs it. Envoy Gateway runs in its standalone mode, so
// there is no Kubernetes. All of it is in a network namespace of its own, which needs `unshare`, because Envoy Gateway has fixed ports,
// and would fetch an Envoy of its own.
//
// In this mode Envoy Gateway reads no Services. So the references of the snippet to the Service of the routers name a Backend here.
package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	gatewayURL = "http://127.0.0.1:8888"
	adminURL   = "http://127.0.0.1:8081"
	routerAt   = "10.50.0.9:9002"
	engines    = 3
)

// lab is a folder with the logs and files of a running Envoy Gateway, its Envoy, a router and engines.
type lab struct {
	stator, folder string
	router         *exec.Cmd
}

// TestPolicies: every request is served as the router has picked, and its access-log entry comes. A router that stops or is killed cuts no
// answer off, and requests are answered while it is away. A client's own header chooses no worker then.
func TestPolicies(t *testing.T) {
	l := start(t)
	const requests = 200
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			for turn := range requests / 10 {
				if err := l.stream(fmt.Sprintf("Everything about subject %d, please. ", i), 20+turn); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	l.eventually(t, "each request is served as picked", func() error {
		picked, all := l.metric(t, `stator_accesslog_requests_total{outcome="as_picked"}`), l.metric(t, "stator_accesslog_requests_total{")
		if picked < requests || picked != all {
			return fmt.Errorf("%d of %d requests, %d were sent", picked, all, requests)
		}
		t.Logf("%d of %d requests were served as picked", picked, all)
		return nil
	})

	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		l.streamWhile(t, 40, 300, func() { _ = l.router.Process.Signal(signal) })
		_ = l.router.Wait()
		for range 20 {
			if err := l.stream("Hello.", 4); err != nil {
				t.Errorf("a request without a router, after %s: %v", signal, err)
			}
		}
		if signal == syscall.SIGKILL {
			l.assertNoChoice(t)
		}
		l.startRouter(t)
	}
}

// assertNoChoice sends requests that name an engine in a header. They must go to all engines.
func (l *lab) assertNoChoice(t *testing.T) {
	t.Helper()
	const requests = 30
	before := l.served(t)
	for range requests {
		if err := l.stream("Hello.", 4, "x-gateway-destination-endpoint", engine(0)); err != nil {
			t.Error(err)
		}
	}
	after := l.served(t)
	for i := range engines {
		if after[i] == before[i] {
			t.Errorf("a client's header has chosen the engine: of %d requests engine %d got none", requests, i)
		}
	}
}

// served returns the requests that each engine has answered.
func (l *lab) served(t *testing.T) (n [engines]int) {
	t.Helper()
	for i := range n {
		n[i] = sum(t, "http://"+engine(i)+"/metrics", "vllm:request_success_total{")
	}
	return n
}

// metric returns the sum of the router's samples that begin with a text.
func (l *lab) metric(t *testing.T, prefix string) int {
	t.Helper()
	return sum(t, adminURL+"/metrics", prefix)
}

// sum returns the sum of the samples of a page whose lines begin with a text.
func sum(t *testing.T, url, prefix string) (total int) {
	t.Helper()
	text, err := get(url)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			var value float64
			_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &value)
			total += int(value)
		}
	}
	return total
}

// start starts everything, and waits for the first answer.
func start(t *testing.T) *lab {
	t.Helper()
	programs := os.Getenv("STATOR_TEST_GATEWAY")
	if programs == "" {
		t.Skip("STATOR_TEST_GATEWAY names no folder with envoy-gateway and stator: run make test-gateway")
	}
	l := &lab{stator: filepath.Join(programs, "stator"), folder: t.TempDir()}
	t.Setenv("HOME", l.folder)
	l.run(t, "ip", "link", "set", "lo", "up")
	for _, address := range []string{"1", "2", "3", "9"} {
		l.run(t, "ip", "address", "add", "10.50.0."+address+"/32", "dev", "lo")
	}

	var workers, endpoints []string
	for i := range engines {
		host, _, _ := strings.Cut(engine(i), ":")
		events := "tcp://" + host + ":5557"
		l.start(t, fmt.Sprintf("engine-%d", i), l.stator, "sim", "--listen-address", engine(i), "--kv-events", events)
		workers = append(workers, fmt.Sprintf("{name: w%d, address: %q, kvEvents: %q}", i, engine(i), events))
		endpoints = append(endpoints, fmt.Sprintf("{ip: {address: %s, port: 8000}}", host))
	}
	l.write(t, "fleet.yaml", `apiVersion: stator.dev/v1alpha1
kind: Stator
models: [{name: sim, path: "builtin:sim", workers: [`+strings.Join(workers, ", ")+`]}]
`)
	l.startRouter(t)

	snippet := l.run(t, l.stator, "envoy", "snippet", "--for", "envoy-gateway", "-n", "default", "--gateway", "default/gw", "--route", "llm")
	const service = `name: stator\n( +)namespace: default\n +port: 9002`
	policies := regexp.MustCompile(service).ReplaceAllString(snippet, "name: stator\n${1}group: gateway.envoyproxy.io\n${1}kind: Backend")
	if strings.Count(policies, "kind: Backend\n") < 2 {
		t.Fatalf("the snippet does not name the routers' Service twice, as this test expects:\n%s", snippet)
	}
	l.write(t, "resources/all.yaml", fmt.Sprintf(objects, strings.Join(endpoints, ", "))+policies)
	l.write(t, "gateway.yaml", strings.ReplaceAll(gatewayConfig, "FOLDER", l.folder))
	l.run(t, filepath.Join(programs, "envoy-gateway"), "certgen", "--local", "--config-home", l.folder+"/home")
	l.start(t, "envoy-gateway", filepath.Join(programs, "envoy-gateway"), "server", "--config-path", l.folder+"/gateway.yaml")
	l.write(t, "envoy.yaml", strings.ReplaceAll(bootstrap, "CERTIFICATES", l.folder+"/home/certs/envoy"))
	l.start(t, "envoy", os.Getenv("STATOR_TEST_ENVOY"), "--config-path", l.folder+"/envoy.yaml", "--concurrency", "2", "--log-level", "warn",
		"--disable-hot-restart")
	l.eventually(t, "Envoy answers", func() error { return l.stream("Hello.", 1) })
	return l
}

func engine(i int) string { return fmt.Sprintf("10.50.0.%d:8000", i+1) }

// startRouter starts the router, and waits until it is ready and Envoy reaches it.
func (l *lab) startRouter(t *testing.T) {
	t.Helper()
	l.router = l.start(t, "router", l.stator, "extproc", "--config", l.folder+"/fleet.yaml", "--listen-address", routerAt, "--insecure",
		"--admin-address", strings.TrimPrefix(adminURL, "http://"))
	l.eventually(t, "the router is ready", func() error {
		_, err := get(adminURL + "/readyz")
		return err
	})
}

// stream sends a chat, and demands an answer of so many tokens. Pairs of further headers may follow.
func (l *lab) stream(prompt string, tokens int, headers ...string) error {
	resp, err := l.begin(prompt, tokens, headers...)
	if err != nil {
		return err
	}
	return whole(resp, tokens)
}

func (l *lab) begin(prompt string, tokens int, headers ...string) (*http.Response, error) {
	body := fmt.Sprintf(`{"model": "sim", "stream": true, "ignore_eos": true, "max_tokens": %d,
"messages": [{"role": "user", "content": %q}]}`, tokens, strings.Repeat(prompt, 20))
	r, err := http.NewRequest(http.MethodPost, gatewayURL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return http.DefaultClient.Do(r)
}

// whole reads an answer to its end, and demands so many tokens. A status of 200 does not show that.
func whole(resp *http.Response, tokens int) error {
	defer resp.Body.Close()
	n, ended := 0, false
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		ended = ended || line == "data: [DONE]"
		if strings.Contains(line, `"content":"`) && !strings.Contains(line, `"content":""`) {
			n++
		}
	}
	if resp.StatusCode != http.StatusOK || n != tokens || !ended {
		return fmt.Errorf("status %d, %d of %d tokens, the end came: %t", resp.StatusCode, n, tokens, ended)
	}
	return nil
}

// streamWhile starts so many streams, calls event when all of them have begun, and demands that all answers are whole.
func (l *lab) streamWhile(t *testing.T, streams, tokens int, event func()) {
	t.Helper()
	var begun, all sync.WaitGroup
	var cut atomic.Int32
	begun.Add(streams)
	for i := range streams {
		all.Go(func() {
			resp, err := l.begin(fmt.Sprintf("Subject %d. ", i), tokens)
			begun.Done()
			if err == nil {
				err = whole(resp, tokens)
			}
			if err != nil {
				cut.Add(1)
				t.Error(err)
			}
		})
	}
	begun.Wait()
	event()
	all.Wait()
	t.Logf("%d of %d answers were cut", cut.Load(), streams)
}

// start starts a program that ends with the test. Its log is printed if the test fails.
func (l *lab) start(t *testing.T, name, program string, args ...string) *exec.Cmd {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(l.folder, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = l.folder, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("the log of %s ends with\n%s", name, text[max(0, len(text)-4000):])
		}
	})
	return cmd
}

// run runs a command, and ends the test if it fails. It returns what the command prints.
func (l *lab) run(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, &failure)
	}
	return string(out)
}

// eventually waits until a condition holds, a minute at most.
func (l *lab) eventually(t *testing.T, what string, holds func() error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute: %v", what, err)
		}
	}
}

func (l *lab) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(l.folder, name)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func get(url string) (string, error) {
	resp, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s: %s", resp.Status, text)
	}
	return string(text), err
}

const gatewayConfig = `apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyGateway
gateway: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
provider:
  type: Custom
  custom:
    resource: {type: File, file: {paths: [FOLDER/resources]}}
    infrastructure: {type: Host, host: {configHome: FOLDER/home}}
extensionApis: {enableBackend: true}
logging: {level: {default: warn}}
`

// objects are those that a user has before Stator comes.
const objects = `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: eg}
spec: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw, namespace: default}
spec:
  gatewayClassName: eg
  infrastructure: {parametersRef: {group: gateway.envoyproxy.io, kind: EnvoyProxy, name: stator}}
  listeners: [{name: http, port: 8888, protocol: HTTP}]
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: pool, namespace: default}
spec: {endpoints: [%s]}
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: stator, namespace: default}
spec: {appProtocols: [gateway.envoyproxy.io/h2c], endpoints: [{ip: {address: 10.50.0.9, port: 9002}}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: llm, namespace: default}
spec:
  parentRefs: [{name: gw}]
  rules: [{backendRefs: [{group: gateway.envoyproxy.io, kind: Backend, name: pool}], timeouts: {request: 0s}}]
---
`

// bootstrap is the configuration of an Envoy whose cluster is the Gateway. Envoy Gateway accepts TLS 1.3 alone.
const bootstrap = `node: {id: gw-1, cluster: default/gw}
dynamic_resources:
  ads_config: {api_type: DELTA_GRPC, transport_api_version: V3, set_node_on_first_message_only: true,
    grpc_services: [{envoy_grpc: {cluster_name: control}}]}
  lds_config: {ads: {}, resource_api_version: V3}
  cds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: control
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: control, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1,
      port_value: 18000}}}}]}]}
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context:
          tls_params: {tls_maximum_protocol_version: TLSv1_3}
          tls_certificates: [{certificate_chain: {filename: CERTIFICATES/tls.crt}, private_key: {filename: CERTIFICATES/tls.key}}]
          validation_context: {trusted_ca: {filename: CERTIFICATES/ca.crt}}
`
