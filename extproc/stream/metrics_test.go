package stream

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
)

// registered is a world whose registry has everything that a router's process registers here.
func registered(t *testing.T) *world {
	w, client := served(t)
	index := kvindex.New(kvindex.Config{MaxBytes: 1 << 20})
	w.registry.MustRegister(NewCollector(w.router, feed.New(feed.Config{}, w.fleet, index), index, prompt.NewMemory(prompt.MemoryConfig{MaxBytes: 1 << 20})))
	s := open(t, client)
	ask(t, s, completionHeaders(false))
	ask(t, s, bodyMessage(true, hello))
	s = open(t, client)
	ask(t, s, headersMessage(true, ":method", "GET", ":path", "/v1/models/none"))
	w.idle(t)
	return w
}

func TestMetricsAreWellNamed(t *testing.T) {
	problems, err := testutil.GatherAndLint(registered(t).registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// The figures of the packages below arrive under their names, with their labels.
func TestCollector(t *testing.T) {
	w := registered(t)
	err := testutil.GatherAndCompare(w.registry, strings.NewReader(`
# HELP stator_extproc_requests_total Requests by outcome: picked, local for what needs no engine, left for clients that left the queue, else the reason of the refusal.
# TYPE stator_extproc_requests_total counter
stator_extproc_requests_total{outcome="bad_request"} 0
stator_extproc_requests_total{outcome="body_too_large"} 0
stator_extproc_requests_total{outcome="busy"} 0
stator_extproc_requests_total{outcome="content_encoding"} 0
stator_extproc_requests_total{outcome="deadline"} 0
stator_extproc_requests_total{outcome="internal"} 0
stator_extproc_requests_total{outcome="left"} 0
stator_extproc_requests_total{outcome="local"} 0
stator_extproc_requests_total{outcome="method"} 0
stator_extproc_requests_total{outcome="model_not_found"} 1
stator_extproc_requests_total{outcome="no_allowed_worker"} 0
stator_extproc_requests_total{outcome="no_ready_worker"} 0
stator_extproc_requests_total{outcome="no_tainted_worker"} 0
stator_extproc_requests_total{outcome="picked"} 1
stator_extproc_requests_total{outcome="pinned_busy"} 0
stator_extproc_requests_total{outcome="protocol_error"} 0
stator_extproc_requests_total{outcome="queue_full"} 0
stator_extproc_requests_total{outcome="rank_not_found"} 0
stator_extproc_requests_total{outcome="unknown_path"} 0
stator_extproc_requests_total{outcome="waited_too_long"} 0
stator_extproc_requests_total{outcome="worker_not_found"} 0
stator_extproc_requests_total{outcome="worker_required"} 0
# HELP stator_feed_ranks Ranks by what is known of their caches.
# TYPE stator_feed_ranks gauge
stator_feed_ranks{state="exact"} 0
stator_feed_ranks{state="none"} 2
stator_feed_ranks{state="stale"} 0
stator_feed_ranks{state="syncing"} 0
# HELP stator_index_max_bytes Bound on the memory of the index.
# TYPE stator_index_max_bytes gauge
stator_index_max_bytes 1.048576e+06
# HELP stator_prompt_memory_max_bytes Bound on what is remembered of prompts; 0 is off.
# TYPE stator_prompt_memory_max_bytes gauge
stator_prompt_memory_max_bytes 1.048576e+06
# HELP stator_route_bookings Requests that are booked and have not ended.
# TYPE stator_route_bookings gauge
stator_route_bookings 1
# HELP stator_route_bookings_ended_total Bookings by how they ended.
# TYPE stator_route_bookings_ended_total counter
stator_route_bookings_ended_total{reason="finished"} 0
stator_route_bookings_ended_total{reason="rank_gone"} 0
stator_route_bookings_ended_total{reason="reconciled"} 0
stator_route_bookings_ended_total{reason="replaced"} 0
stator_route_bookings_ended_total{reason="source_gone"} 0
# HELP stator_route_prompt_tokens_total Tokens in the prompts of picked requests.
# TYPE stator_route_prompt_tokens_total counter
stator_route_prompt_tokens_total 5
`), "stator_extproc_requests_total", "stator_feed_ranks", "stator_index_max_bytes", "stator_prompt_memory_max_bytes", "stator_route_bookings",
		"stator_route_bookings_ended_total", "stator_route_prompt_tokens_total")
	if err != nil {
		t.Error(err)
	}
}

// A rank that is gone takes its bookings with it, and its figures out of the next page.
func TestCollectorFollowsTheFleet(t *testing.T) {
	w := registered(t)
	for _, worker := range w.fleet.Snapshot().Workers {
		w.fleet.Remove(worker.Name)
	}
	families, err := w.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "stator_route_bookings" && f.GetMetric()[0].GetGauge().GetValue() != 0 {
			t.Error("a booking outlives its rank")
		}
		if f.GetName() == "stator_feed_ranks" {
			for _, m := range f.GetMetric() {
				if m.GetGauge().GetValue() != 0 {
					t.Errorf("%v", m)
				}
			}
		}
	}
}

// Two replicas in one process must not share a registry: that is said at once.
func TestMetricsRegisterOnce(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("the second server took the first one's metrics")
		}
	}()
	reg := prometheus.NewRegistry()
	newMetrics(reg)
	newMetrics(reg)
}
