// Package jaeger sends the spans of requests to a real Jaeger, over gRPC and over HTTP, and asks Jaeger's API for the traces. `make
// test-jaeger` builds Jaeger and runs this. The requests pass a real Envoy that Stator configures. Simulated engines make no spans, so each
// is behind a proxy that exports one for a request to the same Jaeger, as a child of the request's trace context, as vLLM does.
package jaeger

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const jaegerConfig = `
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines: {traces: {receivers: [otlp], exporters: [jaeger_storage_exporter]}}
  telemetry: {metrics: {level: none}}
extensions:
  jaeger_query: {storage: {traces: memory}, http: {endpoint: %q}, grpc: {endpoint: %q}}
  jaeger_storage: {backends: {memory: {memory: {max_traces: 1000}}}}
receivers:
  otlp: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}
exporters:
  jaeger_storage_exporter: {trace_storage: memory}
`

const gatewayConfig = `apiVersion: stator.dev/v1alpha1
kind: Stator
tracing: {endpoint: %q, ratio: %v, slowerThan: 0s}
models:
- name: sim
  path: "builtin:sim"
  router: {prefill: remote}
  workers:
  - {name: prefill, role: prefill, address: %q, engine: sim, transfer: nixl, healthPath: none}
  - {name: decode, role: decode, address: %q, engine: sim, transfer: nixl, healthPath: none}
`

// lab is a running Jaeger, and the programs for others.
type lab struct {
	stator, envoy             string
	query, overGRPC, overHTTP string
}

// TestTraces: a request with two legs is one tree in Jaeger, from the client's span through Envoy and the router to both engines. A refused
// request is there although no request is sampled; if it was sampled, it has Envoy's span, too.
func TestTraces(t *testing.T) {
	for name, c := range map[string]struct {
		ratio   float64
		refused string
	}{
		"grpc": {0, "\nstator: chat, error.type=model_not_found"},
		"http": {1, "\nenvoy: ingress\n  " + call + "\n    stator: chat, error.type=model_not_found"},
	} {
		t.Run(name, func(t *testing.T) {
			l := startJaeger(t)
			gateway := l.startGateway(t, name+"://"+map[string]string{"grpc": l.overGRPC, "http": l.overHTTP}[name], c.ratio)

			trace := fmt.Sprintf("%016x%016x", rand.Uint64()|1<<63, rand.Uint64())
			chat(t, gateway, "sim", http.StatusOK, "traceparent", "00-"+trace+"-"+client+"-01")
			l.await(t, "/api/traces/"+trace, twoLegs)

			chat(t, gateway, "absent", http.StatusNotFound)
			l.await(t, refused, c.refused)
		})
	}
}

const (
	client  = "b7ad6b7169203331"
	refused = "/api/traces?service=stator&tags=%7B%22error.type%22%3A%22model_not_found%22%7D"
	call    = "envoy: async envoy.service.ext_proc.v3.ExternalProcessor.Process egress"
	twoLegs = `
envoy: ingress, a child of ` + client + `
  ` + call + `
    stator: chat sim, stator.answer=as_picked, stator.worker=decode
      engine: decode
      engine: prefill
  envoy: router pool/sim egress`
)

// chat sends a chat. Its answer must have that status.
func chat(t *testing.T, gateway, model string, status int, headers ...string) {
	t.Helper()
	body := fmt.Sprintf(`{"model": %q, "max_tokens": 4, "messages": [{"role": "user", "content": %q}]}`, model,
		strings.Repeat("a prompt for two legs ", 20))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gateway+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("content-type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != status {
		t.Fatalf("status %d, %v: %s", answer.StatusCode, err, text)
	}
}

// answer is an answer of Jaeger's API.
type answer struct {
	Data []struct {
		Spans []struct {
			SpanID, ProcessID, OperationName string
			References                       []struct{ SpanID string }
			Tags                             []struct {
				Key   string
				Value any
			}
		}
		Processes map[string]struct{ ServiceName string }
	}
}

// shown are the attributes that trees have.
var shown = []string{"error.type", "stator.answer", "stator.worker"}

// await waits until Jaeger has the tree of a trace.
func (l *lab) await(t *testing.T, query, want string) {
	t.Helper()
	got := ""
	eventually(t, "Jaeger has the trace", func() error {
		text, err := get("http://" + l.query + query)
		if err != nil {
			return err
		}
		var a answer
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			return err
		}
		if got = a.tree(); got != want {
			return fmt.Errorf("it has%s\nand not%s", got, want)
		}
		return nil
	})
	t.Logf("%s:%s", query, got)
}

// tree returns the spans, each below its parent.
func (a *answer) tree() string {
	var b strings.Builder
	for _, trace := range a.Data {
		children, known := map[string][]int{}, map[string]bool{}
		lines := make([]string, len(trace.Spans))
		for i, s := range trace.Spans {
			known[s.SpanID] = true
			parent := ""
			if len(s.References) > 0 {
				parent = s.References[0].SpanID
			}
			children[parent] = append(children[parent], i)

			lines[i] = trace.Processes[s.ProcessID].ServiceName + ": " + s.OperationName
			for _, key := range shown {
				for _, tag := range s.Tags {
					if tag.Key == key {
						lines[i] += fmt.Sprintf(", %s=%v", key, tag.Value)
					}
				}
			}
		}
		var write func(parent, note string, depth int)
		write = func(parent, note string, depth int) {
			list := children[parent]
			slices.SortFunc(list, func(i, j int) int { return cmp.Compare(lines[i], lines[j]) })
			for _, i := range list {
				b.WriteString("\n" + strings.Repeat("  ", depth) + lines[i] + note)
				write(trace.Spans[i].SpanID, "", depth+1)
			}
		}
		write("", "", 0)
		for parent := range children {
			if parent != "" && !known[parent] {
				write(parent, ", a child of "+parent, 0)
			}
		}
	}
	return b.String()
}

// startJaeger starts Jaeger.
func startJaeger(t *testing.T) *lab {
	t.Helper()
	l := &lab{
		stator: os.Getenv("STATOR_TEST_STATOR"), envoy: os.Getenv("STATOR_TEST_ENVOY"),
		query: freeAddress(t), overGRPC: freeAddress(t), overHTTP: freeAddress(t),
	}
	program := os.Getenv("STATOR_TEST_JAEGER")
	if program == "" || l.stator == "" || l.envoy == "" {
		t.Skip("STATOR_TEST_JAEGER, STATOR_TEST_STATOR and STATOR_TEST_ENVOY name no programs: run make test-jaeger")
	}
	config := filepath.Join(t.TempDir(), "jaeger.yaml")
	text := fmt.Sprintf(jaegerConfig, l.query, freeAddress(t), l.overGRPC, l.overHTTP)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, program, "--config", config)
	eventually(t, "Jaeger answers", func() error {
		_, err := get("http://" + l.query + "/api/services")
		return err
	})
	return l
}

// startGateway starts two engines, and a gateway before them that sends its spans to a receiver. It returns the gateway's URL.
func (l *lab) startGateway(t *testing.T, receiver string, ratio float64) string {
	t.Helper()
	proxies := map[string]string{}
	for _, role := range []string{"prefill", "decode"} {
		at := freeAddress(t)
		run(t, l.stator, "sim", "--name", role, "--listen-address", at, "--kv-transfer", "127.0.0.1:0", "--log-level", "error")
		eventually(t, "the engine answers", func() error {
			_, err := get("http://" + at + "/health")
			return err
		})
		proxies[role] = l.proxy(t, role, at)
	}

	config := filepath.Join(t.TempDir(), "stator.yaml")
	text := fmt.Sprintf(gatewayConfig, receiver, ratio, proxies["prefill"], proxies["decode"])
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	gateway, admin := freeAddress(t), freeAddress(t)
	run(t, l.stator, "up", "--config", config, "--listen-address", gateway, "--admin-address", admin, "--envoy", l.envoy)
	eventually(t, "the gateway is ready", func() error {
		_, err := get("http://" + admin + "/readyz")
		return err
	})
	return "http://" + gateway
}

// proxy exports a span for each request to an engine. It returns the address that routers use.
func (l *lab) proxy(t *testing.T, role, engine string) string {
	t.Helper()
	to := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: engine})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		to.ServeHTTP(w, r)
		if parts := strings.Split(r.Header.Get("traceparent"), "-"); len(parts) == 4 {
			l.export(t, role, parts[1], parts[2], began)
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// export sends a span of an engine to Jaeger.
func (l *lab) export(t *testing.T, name, trace, parent string, began time.Time) {
	span := map[string]any{
		"traceId": trace, "spanId": fmt.Sprintf("%016x", rand.Uint64()|1), "parentSpanId": parent, "name": name, "kind": 2,
		"startTimeUnixNano": fmt.Sprint(began.UnixNano()), "endTimeUnixNano": fmt.Sprint(time.Now().UnixNano()),
	}
	service := map[string]any{"key": "service.name", "value": map[string]any{"stringValue": "engine"}}
	message, err := json.Marshal(map[string]any{"resourceSpans": []any{map[string]any{
		"resource":   map[string]any{"attributes": []any{service}},
		"scopeSpans": []any{map[string]any{"spans": []any{span}}},
	}}})
	if err != nil {
		t.Error(err)
		return
	}
	r, err := http.Post("http://"+l.overHTTP+"/v1/traces", "application/json", strings.NewReader(string(message)))
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		t.Errorf("Jaeger answers an engine's span with %s", r.Status)
	}
}

// run starts a program, which is stopped when the test ends. Its output is shown if the test fails.
func run(t *testing.T, program string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		text, _ := os.ReadFile(log.Name())
		_ = log.Close()
		if t.Failed() {
			t.Logf("%s %s:\n%s", filepath.Base(program), args[0], text[max(0, len(text)-4000):])
		}
	})
}

func get(url string) (string, error) {
	r, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", url, r.Status, text)
	}
	return string(text), err
}

// eventually waits until ok has no error.
func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	const patience = 90 * time.Second
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %v", patience, what, err)
		}
	}
}

// freeAddress returns an address at which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().String()
}
