package scenario

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// traceReceiver receives spans as a collector does, over gRPC and HTTP.
type traceReceiver struct {
	collector.UnimplementedTraceServiceServer
	mu  sync.Mutex
	all []*otlp.Span // guarded by mu
}

// Export receives spans over gRPC.
func (r *traceReceiver) Export(_ context.Context, m *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range m.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			r.all = append(r.all, scope.Spans...)
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

// spans returns all spans when there are n.
func (r *traceReceiver) spans(t *testing.T, n int) (all []*otlp.Span) {
	eventually(t, fmt.Sprintf("%d spans", n), func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		all = r.all
		if len(all) != n {
			return fmt.Errorf("%d spans: %v", len(all), all)
		}
		return nil
	})
	return all
}

// attribute returns the text of an attribute; empty without it.
func attribute(s *otlp.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// TestTraces: through a real Envoy, the span of a request is a child of the client's, and the engine gets it as its parent. A refused
// request without a trace has a span with the reason. Other requests have none, and their engine gets what the client has sent.
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
	before := 0
	for _, endpoint := range []string{overHTTP.URL, "grpc://" + ln.Addr().String()} {
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

		all := r.spans(t, before+2)[before:]
		before += 2
		pick, refusal := all[0], all[1]
		if attribute(pick, "error.type") != "" {
			pick, refusal = refusal, pick
		}
		if hex.EncodeToString(pick.TraceId) != trace || hex.EncodeToString(pick.ParentSpanId) != parent {
			t.Errorf("the span of trace %x has the parent %x", pick.TraceId, pick.ParentSpanId)
		}
		if at, want := <-got, fmt.Sprintf("00-%s-%x-01", trace, pick.SpanId); at != want {
			t.Errorf("the engine gets %q, and the span is %q", at, want)
		}
		for key, want := range map[string]string{
			"stator.decision.id": answer.decision, "stator.worker": "w", "stator.answer": "as_picked",
			"stator.served": engine.Listener.Addr().String(), "gen_ai.request.model": "sim", "gen_ai.operation.name": "chat",
		} {
			if v := attribute(pick, key); v != want {
				t.Errorf("%s is %q, want %q", key, v, want)
			}
		}
		if len(refusal.ParentSpanId) != 0 || attribute(refusal, "error.type") != "model_not_found" || attribute(refusal, "stator.worker") != "" {
			t.Errorf("the refusal is %v", refusal)
		}
		g.assertServed(3)
		g.up.stop()
	}
}
