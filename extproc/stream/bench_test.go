package stream

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/extproc/spans"
)

// turn passes both messages of one request to an exchange and ends its booking, whose id it returns.
func turn(w *world, headers, body *messages.Request) string {
	x := door{srv: w.server, Exchange: w.Requests.Begin(exchange.Origin{Source: "envoy-a"})}
	for _, m := range []*messages.Request{headers, body} {
		answered := x.Phase()
		r, err := x.handle(m, time.Now())
		if err != nil {
			panic(err)
		}
		_ = toMessage(r, answered, false)
		x.Recycle()
	}
	w.Router.End(x.Booking(), start)
	return x.Booking()
}

// TestAllocationsDoNotGrowWithThePrompt: the allocations of a request do not depend on its size, because bodies
// are never copied. Most of them are the decision's.
func TestAllocationsDoNotGrowWithThePrompt(t *testing.T) {
	w, _ := served(t)
	headers := w.read(completionHeaders(false))
	count := func(n int) float64 {
		body := w.read(bodyMessage(true, completionOf(n)))
		return testing.AllocsPerRun(200, func() { turn(w, headers, body) })
	}
	small, large := count(100), count(4000)
	t.Logf("%.0f allocations at 100 bytes, %.0f at 4,000", small, large)
	if large > small+3 {
		t.Errorf("%.0f allocations at 4,000 bytes, %.0f at 100", large, small)
	}
}

// TestAllocationsOfHeaders bounds the allocations that every request causes before its body arrives.
func TestAllocationsOfHeaders(t *testing.T) {
	w, _ := served(t)
	raw, err := proto.Marshal(completionHeaders(false))
	if err != nil {
		t.Fatal(err)
	}
	m := messages.Request{Names: messages.Names{Sessions: []string{"x-session-id"}}}
	read := testing.AllocsPerRun(1000, func() { err = m.Read(raw) })
	if read > 2 || err != nil { // path and session
		t.Errorf("reading headers takes %.0f allocations, %v", read, err)
	}
	step := testing.AllocsPerRun(1000, func() {
		x := w.Requests.Begin(exchange.Origin{})
		x.OnHeaders(headOf(&m), start)
	})
	if step > 2 { // the exchange, here, and the id
		t.Errorf("answering headers takes %.0f allocations", step)
	}
}

func completionOf(n int) string {
	return fmt.Sprintf(`{"model": "sim", "prompt": %q}`, strings.Repeat("lorem ipsum ", n/12))
}

// BenchmarkExchange: how long does ext_proc take for a request, without gRPC? Both messages are decoded, decided
// and answered, with one token per byte.
//
//	go test ./extproc/stream -run '^$' -bench Exchange -count 10 | benchstat -col /prompt -
func BenchmarkExchange(b *testing.B) {
	for _, n := range []int{1_000, 4_000, 32_000} {
		b.Run(fmt.Sprintf("prompt=%d", n), func(b *testing.B) {
			w, _ := served(b)
			headers, body := w.read(completionHeaders(false)), w.read(bodyMessage(true, completionOf(n)))
			b.ReportAllocs()
			b.SetBytes(int64(len(body.Body)))
			for b.Loop() {
				turn(w, headers, body)
			}
		})
	}
}

// BenchmarkSpans: what does tracing cost this process for a request? With ratio 1 all spans go to a receiver in this process, whose own
// work counts too. "slow" writes the spans of all requests and exports none.
//
//	go test ./extproc/stream -run '^$' -bench Spans -count 10 | benchstat -col /tracing -
func BenchmarkSpans(b *testing.B) {
	for name, cfg := range map[string]*spans.Config{"off": nil, "all": {Ratio: 1}, "slow": {SlowerThan: time.Hour}} {
		b.Run("tracing="+name, func(b *testing.B) {
			var tracer *spans.Tracer
			stop := func() []*otlp.Span { return nil }
			if cfg != nil {
				tracer, stop = collect(b, *cfg)
			}
			w := servedBy(b, newTracedWorld(tracer))
			headers, body := w.read(completionHeaders(false)), w.read(bodyMessage(true, completionOf(1000)))
			b.ReportAllocs()
			before := cpuTime()
			for b.Loop() {
				id := turn(w, headers, body)
				w.Requests.EndSpan(id, &spans.Answer{FirstToken: 1, LastByte: 2, Status: 200}, start)
			}
			b.ReportMetric(float64((cpuTime()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(len(stop()))/float64(b.N), "exported/op")
		})
	}
}

// cpuTime returns the CPU time of this process so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkStream: how long does the same take with gRPC over an in-memory connection, the client's part
// included?
//
//	go test ./extproc/stream -run '^$' -bench Stream -count 10 | benchstat -col /prompt -
func BenchmarkStream(b *testing.B) {
	for _, n := range []int{1_000, 32_000} {
		b.Run(fmt.Sprintf("prompt=%d", n), func(b *testing.B) {
			w, client := served(b)
			headers, body := completionHeaders(false), bodyMessage(true, completionOf(n))
			b.ReportAllocs()
			for b.Loop() {
				s := open(b, client)
				ask(b, s, headers)
				ask(b, s, body)
				if _, err := s.Recv(); err == nil {
					b.Fatal("the stream goes on")
				}
			}
			w.Router.EndBefore("bufconn", start.AddDate(100, 0, 0))
		})
	}
}
