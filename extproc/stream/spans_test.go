package stream

import (
	"context"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/spans"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/test/doors"
)

// collect returns a tracer that exports to a receiver of this process. The second function ends the export and returns the spans.
func collect(t testing.TB, cfg spans.Config) (*spans.Tracer, func() []*otlp.Span) {
	var mu sync.Mutex
	var bodies [][]byte
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		bodies = append(bodies, body)
	}))
	t.Cleanup(receiver.Close)
	cfg.Endpoint, cfg.Metrics, cfg.Log = receiver.URL, prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
	tracer, err := spans.New(cfg)
	if err != nil {
		t.Fatal(err)
	}

	ctx, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { tracer.Run(ctx) })
	stop := func() (all []*otlp.Span) {
		end()
		running.Wait()
		for _, body := range bodies {
			var m otlp.TracesData // has the fields of the collector's request
			if err := proto.Unmarshal(body, &m); err != nil {
				t.Fatal(err)
			}
			all = append(all, m.ResourceSpans[0].ScopeSpans[0].Spans...)
		}
		return all
	}
	t.Cleanup(func() { end(); running.Wait() })
	return tracer, stop
}

// attributesOf returns the texts and the numbers of a span.
func attributesOf(s *otlp.Span) (texts map[string]string, numbers map[string]int64) {
	texts, numbers = map[string]string{}, map[string]int64{}
	for _, a := range s.Attributes {
		texts[a.Key], numbers[a.Key] = a.Value.GetStringValue(), a.Value.GetIntValue()
	}
	return texts, numbers
}

func eventsOf(s *otlp.Span) (names []string) {
	for _, e := range s.Events {
		names = append(names, e.Name)
	}
	return names
}

const (
	traceID     = "0af7651916cd43dd8448eb211c80319c"
	traceparent = "00-" + traceID + "-b7ad6b7169203331-01"
)

// TestSpanOfAPick: the span is a child of the request's, and the engine gets it as its parent.
func TestSpanOfAPick(t *testing.T) {
	tracer, stop := collect(t, spans.Config{})
	w := servedBy(t, newTracedWorld(tracer))
	x := door{srv: w.server, Exchange: w.Requests.Begin(exchange.Origin{Source: "envoy-a"})}
	headers := headersMessage(false, ":method", "POST", ":path", "/v1/completions?key=secret", "x-session-id", "s1", "traceparent", traceparent)
	if _, err := x.handle(w.read(headers), start); err != nil {
		t.Fatal(err)
	}
	r, err := x.handle(w.read(bodyMessage(true, hello)), start)
	if err != nil || r.Pick == nil {
		t.Fatalf("%+v, %v", r, err)
	}
	at := slices.IndexFunc(r.Set, func(h envoynames.Header) bool { return h.Key == "traceparent" })
	if at < 0 {
		t.Fatalf("headers %v", r.Set)
	}
	engine := spans.Parse([]byte(r.Set[at].Value))
	w.Requests.EndSpan(x.Booking(), &spans.Answer{
		FirstToken: time.Second, LastByte: time.Minute, Status: 200, OutputTokens: 5, Outcome: "as_picked", Served: r.Pick.Address,
	}, start.Add(time.Hour))
	w.Requests.EndSpan(x.Booking(), &spans.Answer{}, start) // a second end of the same request

	all := stop()
	if len(all) != 1 {
		t.Fatalf("%d spans", len(all))
	}
	s := all[0]
	if hex.EncodeToString(s.TraceId) != traceID || hex.EncodeToString(s.ParentSpanId) != "b7ad6b7169203331" {
		t.Errorf("trace %x, parent %x", s.TraceId, s.ParentSpanId)
	}
	if engine.Span != [8]byte(s.SpanId) || engine.Trace != [16]byte(s.TraceId) || !engine.IsSampled() {
		t.Errorf("the engine gets %q, and the span is %x", engine, s.SpanId)
	}
	texts, numbers := attributesOf(s)
	for key, want := range map[string]string{
		"gen_ai.operation.name": "text_completion", "gen_ai.request.model": "sim", "url.path": "/v1/completions",
		"stator.decision.id": x.Booking(), "stator.worker": r.Pick.Worker, "stator.address": r.Pick.Address, "stator.outcome": "picked",
		"stator.answer": "as_picked", "stator.served": r.Pick.Address, "stator.policy": r.Pick.Policy, "error.type": "",
	} {
		if texts[key] != want {
			t.Errorf("%s is %q, want %q", key, texts[key], want)
		}
	}
	if n := numbers["gen_ai.usage.input_tokens"]; n != int64(r.Pick.PromptTokens) || numbers["gen_ai.usage.output_tokens"] != 5 {
		t.Errorf("numbers %v", numbers)
	}
	want := []string{
		"stator.parsed", "stator.tokenized", "stator.looked_up", "stator.judged", "stator.booked", "stator.decided", "gen_ai.first_token",
	}
	if s.Name != "text_completion sim" || !slices.Equal(eventsOf(s), want) {
		t.Errorf("span %s with %v", s.Name, eventsOf(s))
	}
}

// TestSpanOfARefusal: refusals are exported whatever the flag is, and no engine joins. A page of the router has no span.
func TestSpanOfARefusal(t *testing.T) {
	tracer, stop := collect(t, spans.Config{})
	w := servedBy(t, newTracedWorld(tracer))
	for _, path := range []string{"/v1/models", "/v1/chat/completions"} {
		x := door{srv: w.server, Exchange: w.Requests.Begin(exchange.Origin{Source: "envoy-a"})}
		method := "POST"
		if path == "/v1/models" {
			method = "GET"
		}
		headers := w.read(headersMessage(method == "GET", ":method", method, ":path", path, "traceparent", traceparent[:53]+"00"))
		if _, err := x.handle(headers, start); err != nil {
			t.Fatal(err)
		}
		if method == "POST" {
			if _, err := x.handle(w.read(bodyMessage(true, `{"model": "absent", "messages": [{"role": "user", "content": "hello"}]}`)), start); err != nil {
				t.Fatal(err)
			}
		}
	}

	all := stop()
	if len(all) != 1 {
		t.Fatalf("%d spans", len(all))
	}
	texts, numbers := attributesOf(all[0])
	if texts["error.type"] == "" || texts["error.type"] != texts["stator.outcome"] || texts["stator.message"] == "" ||
		numbers["http.response.status_code"] < 400 || hex.EncodeToString(all[0].TraceId) != traceID || all[0].Flags != 0 {
		t.Errorf("span %v", all[0])
	}
}

// TestSpanOfAWait: the time in the queue is a part of the span. A request whose client leaves has a span too.
func TestSpanOfAWait(t *testing.T) {
	tracer, stop := collect(t, spans.Config{})
	w := servedBy(t, newTracedWorld(tracer))
	client := serve(t, w)
	if err := w.Router.SetModels(map[string]*serving.Config{"sim": {
		Prompt: doors.Letters{}, BlockSize: 4, Busy: serving.Busy{PrefillTokens: 1}, Queue: &queue.Config{}, MaxWait: time.Hour,
	}}); err != nil {
		t.Fatal(err)
	}
	ids := w.fill(t, client)
	traced := headersMessage(false, ":method", "POST", ":path", "/v1/completions", "traceparent", traceparent)

	waits := open(t, client)
	booking := bookingOf(ask(t, waits, traced))
	ask(t, waits, bodyMessage(true, fresh())) // the longer timeout
	w.Router.End(ids[0], time.Now())
	if _, err := waits.Recv(); err != nil {
		t.Fatal(err)
	}
	w.Requests.EndSpan(booking, &spans.Answer{Status: 200}, time.Now())

	left := w.Requests.Begin(exchange.Origin{Source: "envoy-a"})
	left.OnHeaders(exchange.Head{Method: "POST", Path: "/v1/completions", Trace: spans.Parse([]byte(traceparent))}, time.Now())
	left.CancelQueued(left.OnBody([]byte(fresh()), true, time.Now()).Queued)

	all := stop()
	if len(all) != 2 {
		t.Fatalf("%d spans", len(all))
	}
	if events := eventsOf(all[0]); !slices.Contains(events, "stator.queued") || !slices.Contains(events, "stator.dequeued") {
		t.Errorf("events %v", events)
	}
	if texts, _ := attributesOf(all[1]); texts["stator.outcome"] != "cancelled" {
		t.Errorf("attributes %v", texts)
	}
}

// TestUnendedSpans: a process that ends exports the sampled spans of requests that go on.
func TestUnendedSpans(t *testing.T) {
	tracer, stop := collect(t, spans.Config{Ratio: 1})
	w := servedBy(t, newTracedWorld(tracer))
	turn(w, w.read(completionHeaders(false)), w.read(bodyMessage(true, hello)))
	w.Requests.EndSpans(start.Add(time.Minute))
	if all := stop(); len(all) != 1 || all[0].EndTimeUnixNano < all[0].StartTimeUnixNano {
		t.Errorf("spans %v", all)
	}
}

// TestHostileTraceparent: a wrong header begins no trace of the client's, and goes on unchanged.
func TestHostileTraceparent(t *testing.T) {
	tracer, stop := collect(t, spans.Config{})
	w := servedBy(t, newTracedWorld(tracer))
	for _, value := range []string{"", traceparent + "-", "00-x", "\xff\x00", traceparent[:53] + "zz"} {
		x := door{srv: w.server, Exchange: w.Requests.Begin(exchange.Origin{})}
		headers := w.read(headersMessage(false, ":method", "POST", ":path", "/v1/completions", "traceparent", value))
		if _, err := x.handle(headers, start); err != nil {
			t.Fatal(err)
		}
		r, err := x.handle(w.read(bodyMessage(true, hello)), start)
		if err != nil || r.Pick == nil {
			t.Fatalf("%q: %+v, %v", value, r, err)
		}
		if slices.ContainsFunc(r.Set, func(h envoynames.Header) bool { return h.Key == "traceparent" }) {
			t.Errorf("%q is replaced: %v", value, r.Set)
		}
		w.Requests.EndSpan(x.Booking(), &spans.Answer{Status: 200}, start)
	}
	if all := stop(); len(all) != 0 {
		t.Errorf("%d spans", len(all))
	}
}
