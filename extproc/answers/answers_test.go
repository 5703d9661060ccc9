package answers

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unique"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/pick"
)

// fleetOf returns a snapshot of workers a, b and so on of model m, at 10.0.0.1:80 and so on.
func fleetOf(version uint64, names ...string) *fleet.Snapshot {
	f := &fleet.Snapshot{Version: version}
	for i, name := range names {
		f.Workers = append(f.Workers, &fleet.Worker{Name: name, Model: "m", Address: fmt.Sprintf("10.0.0.%d:80", i+1)})
	}
	return f
}

func bookingOn(w *fleet.Worker, account string) *pick.Booking {
	return &pick.Booking{
		Rank: fleet.Rank{Worker: w}, Caller: unique.Make(pick.Caller{Account: account, Stream: true}), Tokens: pick.Tokens{Prompt: 100, Cached: 60},
	}
}

// TestAnswers: an answer counts for the worker that gave it, and the time of the first token only if the answer was a stream.
func TestAnswers(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(reg)
	f := fleetOf(1, "a", "b")
	a, b := f.Workers[0], f.Workers[1]
	whole := bookingOn(a, "")
	whole.Caller = unique.Make(pick.Caller{})

	m.Ended(bookingOn(a, "acme"), &messages.Entry{Served: a.Address, Status: 200, FirstToken: 2 * time.Second, LastByte: 3 * time.Second}, How{}, f)
	m.Ended(whole, &messages.Entry{Served: a.Address, Status: 200, FirstToken: 4 * time.Second, LastByte: 4 * time.Second}, How{}, f)
	m.Ended(bookingOn(a, ""), &messages.Entry{Served: b.Address, Status: 200}, How{Retried: true}, f)
	m.Ended(bookingOn(a, ""), &messages.Entry{Served: "10.9.9.9:1", Status: 503}, How{}, f) // of the relay
	m.Ended(bookingOn(b, ""), &messages.Entry{Left: true}, How{}, f)
	m.Refused(&decision.Decision{Outcome: decision.Refused, Pool: "m", Reason: decision.ReasonQueueFull, Client: decision.Client{Account: "acme"}})
	m.Refused(&decision.Decision{Outcome: decision.Refused, Reason: decision.ReasonQueueFull})

	err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP stator_request_answers_total Ended requests of workers by the class of the HTTP status: 2xx to 5xx, or none if the client left before it.
# TYPE stator_request_answers_total counter
stator_request_answers_total{code="2xx",model="m",worker="a"} 2
stator_request_answers_total{code="2xx",model="m",worker="b"} 1
stator_request_answers_total{code="5xx",model="m",worker="a"} 1
stator_request_answers_total{code="none",model="m",worker="b"} 1
# HELP stator_request_retries_total Requests that this worker answered after another one had failed.
# TYPE stator_request_retries_total counter
stator_request_retries_total{model="m",worker="a"} 0
stator_request_retries_total{model="m",worker="b"} 1
# HELP stator_request_prompt_tokens_total Tokens in the prompts of answered requests.
# TYPE stator_request_prompt_tokens_total counter
stator_request_prompt_tokens_total{model="m",worker="a"} 200
stator_request_prompt_tokens_total{model="m",worker="b"} 100
# HELP stator_request_refusals_total Refused requests of a known model, by reason. stator_extproc_requests_total has those of unknown models, too.
# TYPE stator_request_refusals_total counter
stator_request_refusals_total{model="m",reason="queue_full"} 1
# HELP stator_tenant_requests_total Requests by the tenant of Envoy's authentication and the class of the HTTP status, or refused, or none.
# TYPE stator_tenant_requests_total counter
stator_tenant_requests_total{code="2xx",model="m",tenant="acme"} 1
stator_tenant_requests_total{code="refused",model="m",tenant="acme"} 1
# HELP stator_tenant_first_token_seconds Time from the tenant's requests to the first byte of the body of streamed answers, as Envoy measured it.
# TYPE stator_tenant_first_token_seconds summary
stator_tenant_first_token_seconds_sum{model="m",tenant="acme"} 2
stator_tenant_first_token_seconds_count{model="m",tenant="acme"} 1
`), "stator_request_answers_total", "stator_request_retries_total", "stator_request_prompt_tokens_total", "stator_request_refusals_total",
		"stator_tenant_requests_total", "stator_tenant_first_token_seconds")
	if err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}

	want := map[string]uint64{"stator_request_first_token_seconds": 1, "stator_request_duration_seconds": 2}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		n, ok := want[family.GetName()]
		if got := family.GetMetric()[0].GetHistogram().GetSampleCount(); ok && got != n {
			t.Errorf("%s of worker a has %d observations, want %d", family.GetName(), got, n)
		}
	}
}

// TestSeriesOfWorkersThatLeft: they are dropped with the next request, and come back with the worker's next one.
func TestSeriesOfWorkersThatLeft(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(reg)
	before, after := fleetOf(1, "a", "b"), fleetOf(2, "a")
	count := func() int {
		n, err := testutil.GatherAndCount(reg, "stator_request_prompt_tokens_total")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}

	for _, w := range before.Workers {
		m.Ended(bookingOn(w, ""), &messages.Entry{Served: w.Address, Status: 200}, How{}, before)
	}
	if n := count(); n != 2 {
		t.Errorf("%d workers, want 2", n)
	}
	m.Ended(bookingOn(after.Workers[0], ""), &messages.Entry{Status: 200}, How{}, after)
	if n := count(); n != 1 {
		t.Errorf("%d workers after one has left, want 1", n)
	}
}

// TestSeriesAreBounded: names that come after the bounds share the series "other".
func TestSeriesAreBounded(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(reg)
	f := &fleet.Snapshot{Version: 1}
	const over = 50
	for i := range maxWorkers + over {
		f.Workers = append(f.Workers, &fleet.Worker{Name: fmt.Sprint("w", i), Model: "m", Address: fmt.Sprint("10.0.0.1:", i)})
	}
	for i, w := range f.Workers {
		m.Ended(bookingOn(w, fmt.Sprint("tenant", i)), &messages.Entry{Status: 200}, How{}, f)
	}
	for name, most := range map[string]int{"stator_request_prompt_tokens_total": maxWorkers + 1, "stator_tenant_prompt_tokens_total": maxTenants + 1} {
		n, err := testutil.GatherAndCount(reg, name)
		if err != nil || n != most {
			t.Errorf("%s has %d series, %v; want %d", name, n, err, most)
		}
	}
	if n := testutil.ToFloat64(m.requests.WithLabelValues("m", other, "2xx")); n != over {
		t.Errorf("%g requests of other workers, want %d", n, over)
	}
}

// BenchmarkEnded measures the end of a request, of one of 1,000 workers and one of 1,000 tenants.
func BenchmarkEnded(b *testing.B) {
	m := New(prometheus.NewRegistry())
	f := &fleet.Snapshot{Version: 1}
	for i := range 1000 {
		f.Workers = append(f.Workers, &fleet.Worker{Name: fmt.Sprint("w", i), Model: "m", Address: fmt.Sprint("10.0.0.1:", i)})
	}
	bookings := make([]*pick.Booking, len(f.Workers))
	for i, w := range f.Workers {
		bookings[i] = bookingOn(w, fmt.Sprint("tenant", i))
	}
	e := messages.Entry{Status: 200, FirstToken: time.Second, LastByte: 2 * time.Second}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		k := bookings[i%len(bookings)]
		e.Served = k.Rank.Worker.Address
		m.Ended(k, &e, How{}, f)
	}
}
