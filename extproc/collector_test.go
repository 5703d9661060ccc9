package extproc

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/test/testkit"
)

// listedRouter returns a router with two listed workers, one picked request, and its registry.
func listedRouter(t *testing.T) (*Router, *prometheus.Registry) {
	t.Helper()
	settings, err := config.Parse([]byte(`{apiVersion: stator.dev/v1alpha1, kind: Stator, index: {maxBytes: 1048576}, models: [{
		name: sim, path: "builtin:sim", aliases: [also], router: {busy: {kvUsage: 0.9}, queue: {maxWait: 1s, classes: [{name: chat}, {name: batch, order: wspt}]}},
		workers: [{name: w0, address: "10.0.0.1:80", healthPath: none, ranks: 1}, {name: w1, address: "10.0.0.2:80", healthPath: none, ranks: 1}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	metrics := prometheus.NewRegistry()
	r, err := New(Config{Settings: settings, Log: new(testkit.Log).Logger(), Metrics: metrics})
	if err != nil {
		t.Fatal(err)
	}

	d := r.routes.Decide(&request.Request{Endpoint: prompt.Completions, Known: true, Body: completion("hello")}, time.Now())
	if d.Outcome != decision.Picked {
		t.Fatal(d)
	}
	return r, metrics
}

// TestMetricsAreWellNamed lints every metric of the process.
func TestMetricsAreWellNamed(t *testing.T) {
	_, metrics := listedRouter(t)
	problems, err := testutil.GatherAndLint(metrics)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestCollectorPublishesStatistics compares metrics of each package with their statistics.
func TestCollectorPublishesStatistics(t *testing.T) {
	_, metrics := listedRouter(t)
	err := testutil.GatherAndCompare(metrics, strings.NewReader(`
# HELP stator_feed_ranks Ranks by the state of their caches in the index.
# TYPE stator_feed_ranks gauge
stator_feed_ranks{state="exact"} 0
stator_feed_ranks{state="none"} 2
stator_feed_ranks{state="stale"} 0
stator_feed_ranks{state="syncing"} 0
# HELP stator_index_max_bytes Limit of the memory of the index.
# TYPE stator_index_max_bytes gauge
stator_index_max_bytes 1.048576e+06
# HELP stator_peers_messages_total Booking updates of other replicas: applied, old (late or repeated), lost (missing by their numbers), or refused (an amount is negative, or something out of bounds).
# TYPE stator_peers_messages_total counter
stator_peers_messages_total{result="applied"} 0
stator_peers_messages_total{result="lost"} 0
stator_peers_messages_total{result="old"} 0
stator_peers_messages_total{result="refused"} 0
# HELP stator_route_bookings Booked requests that have not ended.
# TYPE stator_route_bookings gauge
stator_route_bookings 1
# HELP stator_route_bookings_ended_total Ended bookings by the reason of their end.
# TYPE stator_route_bookings_ended_total counter
stator_route_bookings_ended_total{reason="failed"} 0
stator_route_bookings_ended_total{reason="finished"} 0
stator_route_bookings_ended_total{reason="moved"} 0
stator_route_bookings_ended_total{reason="rank_gone"} 0
stator_route_bookings_ended_total{reason="reconciled"} 0
stator_route_bookings_ended_total{reason="replaced"} 0
stator_route_bookings_ended_total{reason="source_gone"} 0
stator_route_bookings_ended_total{reason="stopped"} 0
# HELP stator_route_prompt_tokens_total Tokens in the prompts of picked requests.
# TYPE stator_route_prompt_tokens_total counter
stator_route_prompt_tokens_total 2
# HELP stator_route_queue_requests Requests in the queue: every rank that may serve them is busy.
# TYPE stator_route_queue_requests gauge
stator_route_queue_requests{class="batch",model="sim"} 0
stator_route_queue_requests{class="chat",model="sim"} 0
`), "stator_feed_ranks", "stator_index_max_bytes", "stator_peers_messages_total", "stator_route_bookings",
		"stator_route_bookings_ended_total", "stator_route_prompt_tokens_total", "stator_route_queue_requests")
	if err != nil {
		t.Error(err)
	}
}

// TestCollectorFollowsTheFleet: the bookings of a rank end when it leaves the fleet, and its metrics are
// gone.
func TestCollectorFollowsTheFleet(t *testing.T) {
	r, metrics := listedRouter(t)
	for _, worker := range r.fleet.Snapshot().Workers {
		r.fleet.Remove(worker.Name)
	}

	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			if (name == "stator_route_bookings" || name == "stator_feed_ranks") && m.GetGauge().GetValue() != 0 {
				t.Errorf("%s is %v", name, m)
			}
		}
	}
}

// TestReadyModels: every model needs a ready worker.
func TestReadyModels(t *testing.T) {
	r, _ := listedRouter(t)
	if err := r.ReadyModels(); err != nil {
		t.Error(err)
	}
	for _, worker := range r.fleet.Snapshot().Workers {
		r.fleet.Remove(worker.Name)
	}
	if err := r.ReadyModels(); err == nil {
		t.Error("a model without workers is ready")
	}
}
