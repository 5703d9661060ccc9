package metric_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/metric"
)

// TestNamesAndRegistration builds one metric of each kind and reads the registry's page.
func TestNamesAndRegistration(t *testing.T) {
	reg := prometheus.NewRegistry()
	part := metric.For(reg, "kitchen")

	part.Counter("orders_total", "Orders.").Inc()
	part.Counters("dishes_total", "Dishes.", "kind").WithLabelValues("soup").Add(2)
	part.CounterFunc("plates_total", "Plates.", func() float64 { return 3 })
	part.Gauge("cooks", "Cooks.").Set(4)
	part.GaugeFunc("pans", "Pans.", func() float64 { return 5 })
	part.Histogram("wait_duration_seconds", "Waits.", []float64{1}).Observe(0.5)

	want := `
# HELP stator_kitchen_cooks Cooks.
# TYPE stator_kitchen_cooks gauge
stator_kitchen_cooks 4
# HELP stator_kitchen_dishes_total Dishes.
# TYPE stator_kitchen_dishes_total counter
stator_kitchen_dishes_total{kind="soup"} 2
# HELP stator_kitchen_orders_total Orders.
# TYPE stator_kitchen_orders_total counter
stator_kitchen_orders_total 1
# HELP stator_kitchen_pans Pans.
# TYPE stator_kitchen_pans gauge
stator_kitchen_pans 5
# HELP stator_kitchen_plates_total Plates.
# TYPE stator_kitchen_plates_total counter
stator_kitchen_plates_total 3
# HELP stator_kitchen_wait_duration_seconds Waits.
# TYPE stator_kitchen_wait_duration_seconds histogram
stator_kitchen_wait_duration_seconds_bucket{le="1"} 1
stator_kitchen_wait_duration_seconds_bucket{le="+Inf"} 1
stator_kitchen_wait_duration_seconds_sum 0.5
stator_kitchen_wait_duration_seconds_count 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// TestExemplars: a scraper of OpenMetrics gets the trace of a value that has one.
func TestExemplars(t *testing.T) {
	reg := prometheus.NewRegistry()
	waits := metric.For(reg, "kitchen").Histogram("wait_duration_seconds", "Waits.", []float64{1})
	metric.Observe(waits, 0.5, "")
	metric.Observe(waits, 2, "0af7651916cd43dd8448eb211c80319c")

	r, w := httptest.NewRequest(http.MethodGet, "/metrics", nil), httptest.NewRecorder()
	r.Header.Set("Accept", "application/openmetrics-text")
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(w, r)
	if text := w.Body.String(); strings.Count(text, " # {") != 1 ||
		!strings.Contains(text, `wait_duration_seconds_bucket{le="+Inf"} 2 # {trace_id="0af7651916cd43dd8448eb211c80319c"} 2.0 `) {
		t.Error(text)
	}
}

// BenchmarkObserve: a value without a trace allocates nothing.
func BenchmarkObserve(b *testing.B) {
	waits := metric.For(prometheus.NewRegistry(), "kitchen").Histogram("wait_duration_seconds", "Waits.", []float64{1})
	for name, trace := range map[string]string{"none": "", "one": "0af7651916cd43dd8448eb211c80319c"} {
		b.Run("trace="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				metric.Observe(waits, 0.5, trace)
			}
		})
	}
}

// TestSecondRegistrationPanics: two metrics of one name are a mistake in the program.
func TestSecondRegistrationPanics(t *testing.T) {
	part := metric.For(prometheus.NewRegistry(), "kitchen")
	part.Gauge("cooks", "Cooks.")

	defer func() {
		if recover() == nil {
			t.Error("the second registration did not panic")
		}
	}()
	part.Gauge("cooks", "Cooks.")
}

// TestDesc checks the full name of a computed metric.
func TestDesc(t *testing.T) {
	d := metric.Desc("kitchen", "cooks", "Cooks.", "shift").String()
	if !strings.Contains(d, `fqName: "stator_kitchen_cooks"`) || !strings.Contains(d, "shift") {
		t.Error(d)
	}
}
