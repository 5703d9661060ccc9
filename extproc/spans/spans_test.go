package spans

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	trace  = "0af7651916cd43dd8448eb211c80319c"
	parent = "b7ad6b7169203331"
	header = "00-" + trace + "-" + parent + "-01"
)

// TestParse accepts the headers that W3C's rules accept, and nothing else.
func TestParse(t *testing.T) {
	for _, good := range []string{header, "cc" + header[2:], "cc" + header[2:] + "-what-will-come", header[:53] + "ff"} {
		c := Parse([]byte(good))
		if hex.EncodeToString(c.Trace[:]) != trace || hex.EncodeToString(c.Span[:]) != parent || !c.IsSampled() || c.String() != header {
			t.Errorf("%q is read as %q", good, c)
		}
	}
	if c := Parse([]byte(header[:53] + "02")); !c.IsValid() || c.IsSampled() {
		t.Errorf("without the flag: %+v", c)
	}

	for _, bad := range []string{
		"", "00", header[:54], header + "-more", header + " ", "ff" + header[2:], strings.ToUpper(header), "0x" + header[2:],
		"00-" + strings.Repeat("0", 32) + "-" + parent + "-01", "00-" + trace + "-" + strings.Repeat("0", 16) + "-01",
		strings.ReplaceAll(header, "-", "_"), "cc" + header[2:] + "x", "cc" + header[2:] + "-" + strings.Repeat("x", maxHeader),
		header[:10] + "\x00" + header[11:], strings.Repeat("-", 55), header[:53] + "0g",
	} {
		if c := Parse([]byte(bad)); c != (Context{}) || c.String() != "" {
			t.Errorf("%q is accepted as %q", bad, c)
		}
	}
}

// FuzzParse: a context that is accepted has a header that means the same.
func FuzzParse(f *testing.F) {
	f.Add([]byte(header))
	f.Fuzz(func(t *testing.T, text []byte) {
		c := Parse(text)
		c.Flags &= flagSampled
		if c.IsValid() && Parse([]byte(c.String())) != c {
			t.Errorf("%q is %+v", text, c)
		}
	})
}

// newTracer returns a tracer that nothing runs.
func newTracer(t testing.TB, cfg Config) *Tracer {
	cfg.Metrics, cfg.Log, cfg.Instance = prometheus.NewRegistry(), slog.New(slog.DiscardHandler), "router-1"
	if cfg.Endpoint == "" {
		cfg.Endpoint = "http://127.0.0.1:1"
	}
	tracer, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

// queued decodes the spans in the queue.
func queued(t *testing.T, tracer *Tracer) (all []*otlp.Span) {
	for len(tracer.queue) > 0 {
		s := new(otlp.Span)
		if err := proto.Unmarshal(<-tracer.queue, s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

var start = time.Unix(1_800_000_000, 0)

// TestSpan decodes a span with OpenTelemetry's own messages. Texts are cut, and are valid UTF-8.
func TestSpan(t *testing.T) {
	tracer := newTracer(t, Config{})
	s := tracer.Begin(Parse([]byte(header)), Context{}, start)
	s.Decided("chat sim", start.Add(2*time.Millisecond))
	s.Text("stator.worker", "w0")
	s.Text("absent", "")
	s.Text("hostile", "<b>\xff"+strings.Repeat("é", maxText))
	s.Number("tokens", 300)
	s.Number("negative", -1)
	s.Amount("cost", 1.5)
	s.Event("stator.parsed", start.Add(time.Millisecond))
	s.Event("stator.never", time.Time{})
	own := s.Own()
	s.Ended(&Answer{
		FirstToken: 40 * time.Millisecond, LastByte: 900 * time.Millisecond, Status: 502, OutputTokens: 7, Outcome: "failed", Served: "10.0.0.1:1",
	}, start.Add(time.Hour))

	all := queued(t, tracer)
	if len(all) != 1 {
		t.Fatalf("%d spans", len(all))
	}
	got := all[0]
	if hex.EncodeToString(got.TraceId) != trace || hex.EncodeToString(got.ParentSpanId) != parent || !bytes.Equal(got.SpanId, own.Span[:]) {
		t.Errorf("ids %x, %x, %x", got.TraceId, got.SpanId, got.ParentSpanId)
	}
	if got.Name != "chat sim" || got.Kind != otlp.Span_SPAN_KIND_SERVER || got.Flags != 1 || got.Status.GetCode() != otlp.Status_STATUS_CODE_ERROR {
		t.Errorf("span %v", got)
	}
	if got.StartTimeUnixNano != uint64(start.UnixNano()) || got.EndTimeUnixNano != uint64(start.Add(900*time.Millisecond).UnixNano()) {
		t.Errorf("from %d to %d", got.StartTimeUnixNano, got.EndTimeUnixNano)
	}

	texts, numbers := map[string]string{}, map[string]int64{}
	for _, a := range got.Attributes {
		texts[a.Key], numbers[a.Key] = a.Value.GetStringValue(), a.Value.GetIntValue()
		if a.Key == "cost" && a.Value.GetDoubleValue() != 1.5 {
			t.Errorf("cost %v", a.Value)
		}
	}
	if len(got.Attributes) != 9 || texts["stator.worker"] != "w0" || texts["stator.answer"] != "failed" || texts["stator.served"] != "10.0.0.1:1" {
		t.Errorf("%d texts %q", len(got.Attributes), texts)
	}
	if h := texts["hostile"]; !strings.HasPrefix(h, "<b>é") || len(h) > maxText || len(h) < maxText-3 {
		t.Errorf("a hostile text of %d bytes", len(h))
	}
	if numbers["tokens"] != 300 || numbers["negative"] != -1 || numbers["gen_ai.usage.output_tokens"] != 7 || numbers["http.response.status_code"] != 502 {
		t.Errorf("numbers %v", numbers)
	}
	if len(got.Events) != 2 || got.Events[0].Name != "stator.parsed" || got.Events[1].TimeUnixNano != uint64(start.Add(40*time.Millisecond).UnixNano()) {
		t.Errorf("events %v", got.Events)
	}
}

// TestSampling lists which spans are exported, and which engines join.
func TestSampling(t *testing.T) {
	sampled, not := Parse([]byte(header)), Parse([]byte(header[:53]+"00"))
	envoy := func(c Context) Context {
		c.Span = [8]byte{7}
		return c
	}
	for name, c := range map[string]struct {
		cfg      Config
		header   Context
		envoy    Context
		keep     bool
		answer   Answer
		joins    bool
		exported bool
		parent   string // of the exported span
	}{
		"sampled by the parent":      {header: sampled, parent: parent, joins: true, exported: true},
		"not sampled by the parent":  {cfg: Config{Ratio: 1}, header: not},
		"sampled by the ratio":       {cfg: Config{Ratio: 1}, joins: true, exported: true},
		"not sampled by the ratio":   {},
		"refused":                    {header: not, parent: parent, keep: true, exported: true},
		"slow":                       {cfg: Config{SlowerThan: time.Second}, answer: Answer{FirstToken: time.Second}, exported: true},
		"slow without a first token": {cfg: Config{SlowerThan: time.Second}, answer: Answer{LastByte: 2 * time.Second}, exported: true},
		"slow without an answer":     {cfg: Config{SlowerThan: time.Second}, exported: true},
		"a long answer is not slow":  {cfg: Config{SlowerThan: time.Second}, answer: Answer{FirstToken: 1, LastByte: time.Hour}},
		"failed":                     {cfg: Config{SlowerThan: time.Hour}, answer: Answer{Status: 503, LastByte: 1}, exported: true},
		"sampled by Envoy":           {envoy: envoy(sampled), parent: "0700000000000000", joins: true, exported: true},
		"a header sampled by Envoy":  {header: sampled, envoy: envoy(sampled), parent: "0700000000000000", joins: true, exported: true},
		"not sampled by Envoy":       {cfg: Config{Ratio: 1}, envoy: envoy(not)},
		"refused, unsampled Envoy":   {envoy: envoy(not), keep: true, exported: true},
		"refused, unsampled header":  {header: not, envoy: envoy(not), keep: true, parent: parent, exported: true},
	} {
		t.Run(name, func(t *testing.T) {
			tracer := newTracer(t, c.cfg)
			s := tracer.Begin(c.header, c.envoy, start)
			if c.keep {
				s.Keep()
			}
			own := s.Own()
			if own.IsValid() != c.joins || c.joins && !own.IsSampled() || c.joins && c.header.IsValid() && own.Trace != c.header.Trace {
				t.Errorf("engines get %q", own)
			}
			if s.MayBeExported() {
				s.Decided("chat", start)
			}
			id := s.Ended(&c.answer, start.Add(time.Minute))
			all := queued(t, tracer)
			if (len(all) == 1) != c.exported || (id != "") != c.exported {
				t.Fatalf("%d spans, trace %q", len(all), id)
			}
			if !c.exported {
				return
			}
			if hex.EncodeToString(all[0].ParentSpanId) != c.parent {
				t.Errorf("its parent is %x, want %q", all[0].ParentSpanId, c.parent)
			}
			if hex.EncodeToString(all[0].TraceId) != id {
				t.Errorf("its trace is %x, and %q is returned", all[0].TraceId, id)
			}
			if joined := cmp.Or(c.header, c.envoy); joined.IsValid() && [16]byte(all[0].TraceId) != joined.Trace {
				t.Errorf("its trace is %x", all[0].TraceId)
			}
		})
	}
	var none *Tracer
	if s := none.Begin(sampled, Context{}, start); s != nil || s.MayBeExported() || s.Own().IsValid() {
		t.Error("a span without a tracer")
	}
}

// TestFullQueueDrops: what does not fit is dropped, at once, and counted.
func TestFullQueueDrops(t *testing.T) {
	tracer := newTracer(t, Config{Ratio: 1})
	for range queueLength + 3 {
		s := tracer.Begin(Context{}, Context{}, start)
		s.Decided("chat", start)
		s.Ended(&Answer{}, start)
	}
	if n := testutil.ToFloat64(tracer.dropped.WithLabelValues(droppedFull)); n != 3 || len(tracer.queue) != queueLength {
		t.Errorf("%v dropped, %d queued", n, len(tracer.queue))
	}
}

// receiver is a collector over gRPC or HTTP.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	got chan *collector.ExportTraceServiceRequest
}

func (r *receiver) Export(_ context.Context, m *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.got <- m
	return &collector.ExportTraceServiceResponse{PartialSuccess: &collector.ExportTracePartialSuccess{ErrorMessage: "read and ignored"}}, nil
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)
	m := new(collector.ExportTraceServiceRequest)
	if request.URL.Path != "/base/v1/traces" || request.Header.Get("content-type") != "application/x-protobuf" || proto.Unmarshal(body, m) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.got <- m
}

// TestExport sends spans to a real server of each protocol. The queue is empty when Run returns.
func TestExport(t *testing.T) {
	r := &receiver{got: make(chan *collector.ExportTraceServiceRequest, 10)}
	overHTTP := httptest.NewServer(r)
	defer overHTTP.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	overGRPC := grpc.NewServer()
	collector.RegisterTraceServiceServer(overGRPC, r)
	go func() { _ = overGRPC.Serve(ln) }()
	defer overGRPC.Stop()

	for _, endpoint := range []string{overHTTP.URL + "/base", "grpc://" + ln.Addr().String()} {
		tracer := newTracer(t, Config{Ratio: 1, Endpoint: endpoint})
		for range maxBatch + 5 {
			s := tracer.Begin(Context{}, Context{}, start)
			s.Decided("chat", start)
			s.Ended(&Answer{}, start)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		tracer.Run(ended)

		for _, want := range []int{maxBatch, 5} {
			resource := (<-r.got).ResourceSpans[0]
			attributes := resource.Resource.Attributes
			if len(attributes) != 2 || attributes[0].Value.GetStringValue() != "stator" || attributes[1].Value.GetStringValue() != "router-1" {
				t.Errorf("resource %v", resource.Resource)
			}
			scope := resource.ScopeSpans[0]
			if scope.Scope.Name != "stator/extproc" || len(scope.Spans) != want || scope.Spans[want-1].Name != "chat" {
				t.Errorf("scope %v with %d spans, want %d", scope.Scope, len(scope.Spans), want)
			}
		}
		if n := testutil.ToFloat64(tracer.exported); n != maxBatch+5 {
			t.Errorf("%v exported to %s", n, endpoint)
		}
	}
}

// TestReceiverAway: without a receiver, and with one that refuses, spans are counted as lost, and Run ends.
func TestReceiverAway(t *testing.T) {
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("location", "http://127.0.0.1:1/")
		w.WriteHeader(http.StatusTemporaryRedirect)
	}))
	defer refuses.Close()
	for _, endpoint := range []string{"http://127.0.0.1:1", "grpc://127.0.0.1:1", refuses.URL} {
		tracer := newTracer(t, Config{Ratio: 1, Endpoint: endpoint})
		for range 2 * maxBatch {
			tracer.enqueue([]byte{})
		}
		ended, end := context.WithCancel(t.Context())
		end()
		tracer.Run(ended)
		if n := testutil.ToFloat64(tracer.dropped.WithLabelValues(droppedFailed)); n != 2*maxBatch || testutil.ToFloat64(tracer.exported) != 0 {
			t.Errorf("%s: %v dropped", endpoint, n)
		}
	}
}

// BenchmarkMessage: what does the export of one span cost in this process, without the connection?
func BenchmarkMessage(b *testing.B) {
	tracer := newTracer(b, Config{Ratio: 1})
	s := tracer.Begin(Context{}, Context{}, start)
	s.Decided("chat sim", start)
	for range 20 {
		s.Text("stator.some_attribute", "some-value")
	}
	batch := [][]byte{}
	for range maxBatch {
		batch = append(batch, s.encoded)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%maxBatch == 0 {
			_ = tracer.message(batch)
		}
	}
}
