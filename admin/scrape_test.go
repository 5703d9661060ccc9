package admin_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/workeragent"
)

// readPage returns the status and the text of a page.
func readPage(t *testing.T, s admin.Sources, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	admin.Handler(s).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// engineWith returns the address of an engine with that page of metrics.
func engineWith(t *testing.T, page string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page) }))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// TestMetricsOfEngines: the page has the samples of all engines that answer, with the labels of their workers. Of two types of one metric
// the first one stays.
func TestMetricsOfEngines(t *testing.T) {
	a := engineWith(t, "# TYPE vllm:ttft histogram\nvllm:ttft_bucket{le=\"1\",model=\"x\"} 2\nvllm:ttft_bucket{le=\"+Inf\",model=\"x\"} 2\n"+
		"vllm:ttft_sum{model=\"x\"} 1\nvllm:ttft_count{model=\"x\"} 2\n# TYPE odd gauge\nodd 1\n")
	b := engineWith(t, "# TYPE vllm:ttft histogram\nvllm:ttft_bucket{le=\"+Inf\"} 7\nvllm:ttft_sum 1\nvllm:ttft_count 7\n# TYPE odd counter\nodd 2\n")
	broken := engineWith(t, "what is {this")
	s := admin.Sources{Agent: func() []workeragent.EngineStatus {
		return []workeragent.EngineStatus{
			{Worker: "n.a", Model: "m", Kind: "vllm", Address: a},
			{Worker: "n.b", Model: "m", Kind: "vllm", Address: b},
			{Worker: "n.c", Model: "m", Kind: "vllm", Address: broken},
			{Worker: "n.d", Model: "m", Kind: "vllm", Address: "127.0.0.1:1"},
			{Worker: "n.e", Model: "m", Kind: "exec", Address: a},
			{Worker: "n.f", Model: "m", Kind: "vllm"},
		}
	}}
	status, text := readPage(t, s, "/metrics/engines")
	const want = `# TYPE odd gauge
odd{model="m",worker="n.a"} 1
# TYPE vllm:ttft histogram
vllm:ttft_bucket{model="m",worker="n.a",le="1"} 2
vllm:ttft_bucket{model="m",worker="n.a",le="+Inf"} 2
vllm:ttft_sum{model="m",worker="n.a"} 1
vllm:ttft_count{model="m",worker="n.a"} 2
vllm:ttft_bucket{model="m",worker="n.b",le="+Inf"} 7
vllm:ttft_sum{model="m",worker="n.b"} 1
vllm:ttft_count{model="m",worker="n.b"} 7
`
	if status != http.StatusOK || text != want {
		t.Errorf("status %d:\n%s\nwant:\n%s", status, text, want)
	}
}

// TestTargets: the list has each engine with known metrics, at its own path.
func TestTargets(t *testing.T) {
	f := &fleet.Snapshot{Workers: []*fleet.Worker{
		{Name: "a", Model: "m", Engine: "vllm", Address: "10.0.0.1:8000"},
		{Name: "b", Model: "m", Engine: "trtllm", Address: "10.0.0.2:8000", Role: fleet.Decode},
		{Name: "c", Model: "m", Engine: "exec", Address: "10.0.0.3:8000"},
		{Name: "d", Model: "m", Engine: "vllm"},
	}}
	_, text := readPage(t, admin.Sources{Fleet: func() *fleet.Snapshot { return f }}, "/sd")
	const want = `[{"targets":["10.0.0.1:8000"],"labels":{"__metrics_path__":"/metrics","engine":"vllm","model":"m","role":"aggregated","worker":"a"}},` +
		`{"targets":["10.0.0.2:8000"],"labels":{"__metrics_path__":"/prometheus/metrics","engine":"trtllm","model":"m","role":"decode","worker":"b"}}]` + "\n"
	if text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

// TestMetricsOfEnvoy: the page is Envoy's own, or 502 while Envoy does not answer.
func TestMetricsOfEnvoy(t *testing.T) {
	for want, err := range map[int]error{http.StatusOK: nil, http.StatusBadGateway: errors.New("envoy does not run")} {
		status, text := readPage(t, admin.Sources{EnvoyMetrics: func(context.Context, int) (string, error) { return "envoy_x 1\n", err }}, "/metrics/envoy")
		if status != want || err == nil && text != "envoy_x 1\n" {
			t.Errorf("status %d, %q, want %d", status, text, want)
		}
	}
}
