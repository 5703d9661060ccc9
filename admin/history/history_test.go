package history

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// process has the metrics of a router that a history reads.
type process struct {
	reg      *prometheus.Registry
	requests *prometheus.CounterVec
	ended    *prometheus.CounterVec
	prompt   prometheus.Counter
	first    *prometheus.HistogramVec
	ranks    *prometheus.GaugeVec
}

func newProcess() *process {
	p := &process{
		reg:      prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "stator_extproc_requests_total"}, []string{"outcome"}),
		ended:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "stator_accesslog_requests_total"}, []string{"outcome"}),
		prompt:   prometheus.NewCounter(prometheus.CounterOpts{Name: "stator_route_prompt_tokens_total"}),
		first: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "stator_request_first_token_seconds", Buckets: []float64{1, 2, 4}},
			[]string{"worker"}),
		ranks: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "stator_feed_ranks"}, []string{"state"}),
	}
	p.reg.MustRegister(p.requests, p.ended, p.prompt, p.first, p.ranks)
	return p
}

func (p *process) addTo(t *testing.T, h *History, at time.Time) {
	t.Helper()
	families, err := p.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	h.Add(at, families)
}

// TestPoint compares a step with the requests that were counted in it.
func TestPoint(t *testing.T) {
	p, now := newProcess(), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	h := New(p.reg)
	p.requests.WithLabelValues("picked").Add(1000)
	p.first.WithLabelValues("a").Observe(4)
	p.addTo(t, h, now)
	if n := len(h.Points()); n != 0 {
		t.Fatalf("%d points after the first reading, want none", n)
	}

	p.requests.WithLabelValues("picked").Add(30)
	p.requests.WithLabelValues("queue_full").Add(4)
	p.requests.WithLabelValues("no_ready_worker").Add(2)
	p.requests.WithLabelValues("local").Add(100)
	p.ended.WithLabelValues("as_picked").Add(25)
	p.ended.WithLabelValues("unserved").Add(5)
	p.prompt.Add(600)
	p.ranks.WithLabelValues("exact").Set(3)
	p.ranks.WithLabelValues("stale").Set(2)
	for _, worker := range []string{"a", "b"} {
		for range 10 {
			p.first.WithLabelValues(worker).Observe(1.5)
		}
	}
	p.addTo(t, h, now.Add(10*time.Second))
	p.addTo(t, h, now.Add(10*time.Second)) // no time has passed
	p.addTo(t, h, now.Add(20*time.Second))

	points := h.Points()
	if len(points) != 2 {
		t.Fatalf("%d points, want 2", len(points))
	}
	got := points[0]
	if !math.IsNaN(float64(got.Request)) {
		t.Errorf("a time without requests is %v, want NaN", got.Request)
	}
	got.Request = 0
	want := Point{At: now.Add(10 * time.Second), Picked: 3, Refused: 0.6, Failed: 0.5, Prompt: 60, First50: 1.5, First95: 1.95, Exact: 3}
	if got != want {
		t.Errorf("the point is\n%+v, want\n%+v", got, want)
	}
	text, err := json.Marshal(points[1])
	if err != nil || !strings.Contains(string(text), `"first_token_p50_seconds":null`) {
		t.Errorf("a step without requests is %s, %v", text, err)
	}
}

// TestBound keeps an hour, and restarted counters count as no requests.
func TestBound(t *testing.T) {
	p, now := newProcess(), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	h := New(p.reg)
	for i := range Steps + 10 {
		p.requests.WithLabelValues("picked").Add(1)
		p.addTo(t, h, now.Add(time.Duration(i)*Step))
	}
	p.requests.Reset()
	p.addTo(t, h, now.Add((Steps+10)*Step))

	points := h.Points()
	if len(points) != Steps || cap(points) > 2*Steps {
		t.Errorf("%d points with room for %d, want %d", len(points), cap(points), Steps)
	}
	if last := points[len(points)-1]; last.Picked != 0 {
		t.Errorf("after a reset of the counters %g requests a second were picked", last.Picked)
	}
}

// TestQuantile interpolates within buckets, as Prometheus does.
func TestQuantile(t *testing.T) {
	b := buckets{1: 10, 2: 30, 4: 30, math.Inf(1): 40}
	for _, c := range []struct {
		share float64
		want  Seconds
	}{{0.25, 1}, {0.5, 1.5}, {0.7, 1.9}, {0.9, 4}} {
		if got := b.quantile(c.share); math.Abs(float64(got-c.want)) > 1e-9 {
			t.Errorf("quantile %g = %g, want %g", c.share, got, c.want)
		}
	}
	if got := (buckets{}).quantile(0.5); !math.IsNaN(float64(got)) {
		t.Errorf("without counts the quantile is %g", got)
	}
}

// BenchmarkAdd reads the histograms of a thousand workers, as a router does every 15 seconds.
func BenchmarkAdd(b *testing.B) {
	p := newProcess()
	for i := range 1000 {
		p.first.WithLabelValues(string(rune('a' + i))).Observe(1)
	}
	h := New(p.reg)
	now := time.Now()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		families, err := p.reg.Gather()
		if err != nil {
			b.Fatal(err)
		}
		h.Add(now.Add(time.Duration(i)*Step), families)
	}
}
