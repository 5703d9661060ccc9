package scenario

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// traceReceiver receives spans as a collector does, over gRPC and HTTP.
type traceReceiver struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	all   []*otlp.Span // of routers; guarded by mu
	envoy []*otlp.Span // guarded by mu
}

// Export receives spans over gRPC.
func (r *traceReceiver) Export(_ context.Context, m *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range m.ResourceSpans {
		into := &r.all
		if attribute(resource.Resource.Attributes, "service.name") == "envoy" {
			into = &r.envoy
		}
		for _, scope := range resource.ScopeSpans {
			*into = append(*into, scope.Spans...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// ServeHTTP receives spans over HTTP.
func (r *traceReceiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	m := new(collector.ExportTraceServiceRequest)
	if err != nil || request.URL.Path != "/v1/traces" || proto.Unmarshal(body, m) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_, _ = r.Export(request.Context(), m)
}

// spans returns all spans of routers and Envoys when there are so many of each.
func (r *traceReceiver) spans(t *testing.T, routers, envoys int) (all, envoy []*otlp.Span) {
	eventually(t, fmt.Sprintf("%d spans of routers and %d of Envoys", routers, envoys), func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		all, envoy = r.all, r.envoy
		if len(all) != routers || len(envoy) != envoys {
			return fmt.Errorf("%d and %d: %v %v", len(all), len(envoy), all, envoy)
		}
		return nil
	})
	return all, envoy
}

// attribute returns the text of an attribute; empty without it.
func attribute(of []*common.KeyValue, key string) string {
	for _, a := range of {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// TestTraces: Envoy's span of a request is a child of the client's, the router's is a child of Envoy's, and the engine gets the router's as
// its parent. A refused request without a trace has a span of the router with the reason. Other requests have none, and their engine gets
// what the client has sent.
func TestTraces(t *testing.T) {
	t.Parallel()
	r := &traceReceiver{}
	overHTTP := httptest.NewServer(r)
	t.Cleanup(overHTTP.Close)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	overGRPC := grpc.NewServer()
	collector.RegisterTraceServiceServer(overGRPC, r)
	go func() { _ = overGRPC.Serve(ln) }()
	t.Cleanup(overGRPC.Stop)

	got := make(chan string, 10)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.Method != http.MethodPost {
			http.NotFound(w, request)
			return
		}
		got <- request.Header.Get("traceparent")
		w.Header().Set("content-type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}],"usage":{"prompt_tokens":7}}`)
	}))
	t.Cleanup(engine.Close)

	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	const unsampled = "00-" + trace + "-" + parent + "-00"
	for round, endpoint := range []string{overHTTP.URL, "grpc://" + ln.Addr().String()} {
		g := up(t, "--config", configFile(t, fmt.Sprintf(`
tracing: {endpoint: %q, ratio: 0}
models: [{name: sim, path: "builtin:sim", workers: [{name: w, address: %q, healthPath: none}]}]
`, endpoint, engine.Listener.Addr())))
		ask := func(headers ...string) reply {
			answer, err := g.tryChat(t.Context(), []message{{"user", "hello"}}, 5, headers...)
			if err != nil {
				t.Fatal(err)
			}
			return answer
		}

		for _, sent := range []string{"", unsampled} {
			ask("traceparent", sent)
			if at := <-got; at != sent {
				t.Errorf("the engine gets %q instead of %q", at, sent)
			}
		}
		answer := ask("traceparent", "00-"+trace+"-"+parent+"-01")
		refused, err := g.send(t.Context(), http.MethodPost, "/v1/chat/completions", []byte(`{"model": "absent", "messages": [{"role": "user", "content": "hello"}]}`))
		if err != nil || refused.status < 400 {
			t.Fatalf("status %d, %v", refused.status, err)
		}

		all, envoy := r.spans(t, 2*round+2, 3*round+3)
		pick, refusal := all[2*round], all[2*round+1]
		if attribute(pick.Attributes, "error.type") != "" {
			pick, refusal = refusal, pick
		}
		named := map[string]*otlp.Span{"chat sim": pick}
		for _, s := range envoy[3*round:] {
			named[s.Name] = s
		}
		const call = "async envoy.service.ext_proc.v3.ExternalProcessor.Process egress"
		parents := map[string]string{"ingress": parent}
		for name, of := range map[string]string{"router pool/sim egress": "ingress", call: "ingress", "chat sim": call} {
			parents[name] = hex.EncodeToString(named[of].GetSpanId())
		}
		for name, parent := range parents {
			s := named[name]
			if hex.EncodeToString(s.GetTraceId()) != trace || hex.EncodeToString(s.GetParentSpanId()) != parent {
				t.Errorf("the span %q of trace %x has the parent %x, want %s", name, s.GetTraceId(), s.GetParentSpanId(), parent)
			}
		}
		if at, want := <-got, fmt.Sprintf("00-%s-%x-01", trace, pick.SpanId); at != want {
			t.Errorf("the engine gets %q, and the span is %q", at, want)
		}
		for key, want := range map[string]string{
			"stator.decision.id": answer.decision, "stator.worker": "w", "stator.answer": "as_picked",
			"stator.served": engine.Listener.Addr().String(), "gen_ai.request.model": "sim", "gen_ai.operation.name": "chat",
		} {
			if v := attribute(pick.Attributes, key); v != want {
				t.Errorf("%s is %q, want %q", key, v, want)
			}
		}
		if len(refusal.ParentSpanId) != 0 || attribute(refusal.Attributes, "error.type") != "model_not_found" || attribute(refusal.Attributes, "stator.worker") != "" {
			t.Errorf("the refusal is %v", refusal)
		}
		g.assertExemplar(trace)
		g.assertServed(3)
		g.up.stop()
	}
}

// assertExemplar demands that a scraper which asks for OpenMetrics gets the trace of a request as an exemplar of its duration.
func (g *gateway) assertExemplar(trace string) {
	g.t.Helper()
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, "http://"+g.admin+"/metrics", nil)
	if err != nil {
		g.t.Fatal(err)
	}
	r.Header.Set("accept", "application/openmetrics-text")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, `# {trace_id="`+trace+`"}`) {
			found[strings.SplitN(line, "_bucket{", 2)[0]] = true
		}
	}
	for _, name := range []string{"stator_request_duration_seconds", "stator_extproc_decision_duration_seconds"} {
		if !found[name] {
			g.t.Errorf("%s has no exemplar of the trace, but there are %v", name, found)
		}
	}
}
