package extproc

import (
	"context"
	"flag"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/cockroachdb/datadriven" // its flag -rewrite updates the table here, too
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/stator-project/stator/test/testkit"
)

// healthTable has the answers to each name, by the state of a router.
type healthTable struct {
	t      *testing.T
	client healthv1.HealthClient
	names  []string
	states []string
	rows   map[string][]string // by name
}

// is reports whether the answer to a name is SERVING.
func (h *healthTable) is(name string) bool {
	return h.answer(name) == healthv1.HealthCheckResponse_SERVING.String()
}

func (h *healthTable) answer(name string) string {
	a, err := h.client.Check(h.t.Context(), &healthv1.HealthCheckRequest{Service: name})
	if err != nil {
		h.t.Fatal(err)
	}
	return a.GetStatus().String()
}

// record asks for all names.
func (h *healthTable) record(state string) {
	h.states = append(h.states, state)
	for _, name := range h.names {
		h.rows[name] = append(h.rows[name], h.answer(name))
	}
}

// String returns the table in Markdown.
func (h *healthTable) String() string {
	text := "| Name | " + strings.Join(h.states, " | ") + " |\n|---|" + strings.Repeat("---|", len(h.states)) + "\n"
	for _, name := range h.names {
		cell := "`" + name + "`"
		if name == "" {
			cell = "none"
		}
		text += "| " + cell + " | " + strings.Join(h.rows[name], " | ") + " |\n"
	}
	return text
}

// TestHealthByName compares the table of docs/mesh.md with what a router answers to the names that manifests of endpoint pickers ask for,
// on the port for health alone. Run it with -rewrite to write the table.
func TestHealthByName(t *testing.T) {
	testkit.NoLeaks(t)
	var isHealthy atomic.Bool
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !isHealthy.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer engine.Close()
	at := strings.TrimPrefix(engine.URL, "http://")
	reg := prometheus.NewRegistry()
	r, err := New(Config{
		Settings: settings(t, `{name: sim, path: "builtin:sim", workers: [{name: w0, address: "`+at+`"}]}`),
		Log:      new(testkit.Log).Logger(), Metrics: reg,
	})
	if err != nil {
		t.Fatal(err)
	}
	envoys, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	kubelets, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dial := func(ln net.Listener) *grpc.ClientConn {
		conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	h := &healthTable{
		t: t, client: healthv1.NewHealthClient(dial(kubelets)), names: append([]string{healthLiveness, healthServer}, healthReadiness...),
		rows: map[string][]string{},
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	hard, end := context.WithCancel(t.Context())
	defer end()
	done, mayListen := make(chan error, 1), make(chan struct{})
	go func() {
		done <- r.Run(ctx, RunConfig{Health: kubelets, DrainTime: time.Minute, Hard: hard, Listen: func() (net.Listener, error) {
			<-mayListen
			return envoys, nil
		}})
	}()
	h.record("looks for its workers")

	close(mayListen)
	last := healthReadiness[len(healthReadiness)-1]
	testkit.Eventually(t, "Envoys are served", func() bool { return h.is(healthServer) })
	h.record("a model has no ready worker")

	isHealthy.Store(true)
	testkit.Eventually(t, "it is ready", func() bool { return h.is(last) })
	h.record("every model has one")

	// A request whose body has not come yet is waited for.
	request, err := extprocv3.NewExternalProcessorClient(dial(envoys)).Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	headers := &corev3.HeaderMap{}
	for _, pair := range [][2]string{{":method", "POST"}, {":path", "/v1/chat/completions"}, {"content-type", "application/json"}} {
		headers.Headers = append(headers.Headers, &corev3.HeaderValue{Key: pair[0], RawValue: []byte(pair[1])})
	}
	err = request.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: headers},
	}})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the request has arrived", func() bool { return valueOf(t, reg, "stator_extproc_streams") == 1 })
	stop()
	testkit.Eventually(t, "it takes no new requests", func() bool { return !h.is(healthServer) })
	h.record("stops, and finishes requests")
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
	compareHealth(t, h.String())
}

// compareHealth compares the table of health with docs/mesh.md.
func compareHealth(t *testing.T, table string) {
	t.Helper()
	const file, begin, end = "../docs/mesh.md", "<!-- health:begin -->\n", "<!-- health:end -->"
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, hasBegin := strings.Cut(string(raw), begin)
	_, tail, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		t.Fatalf("%s has no section between %q and %q", file, begin, end)
	}
	updated := head + begin + table + end + tail
	switch {
	case updated == string(raw):
	case flag.Lookup("rewrite").Value.String() == "true":
		if err := os.WriteFile(file, []byte(updated), 0o644); err != nil {
			t.Error(err)
		}
	default:
		t.Errorf("the table of health in %s is out of date: run `make golden` and read the diff. It is now\n%s", file, table)
	}
}

// valueOf returns the value of a gauge without labels; 0 if there is none.
func valueOf(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return 0
}
