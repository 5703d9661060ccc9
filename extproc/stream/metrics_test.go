package stream

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// registered is a world that has decided about two requests: one was picked, one refused.
func registered(t *testing.T) *world {
	w, client := served(t)
	s := open(t, client)
	ask(t, s, completionHeaders(false))
	ask(t, s, bodyMessage(true, hello))
	s = open(t, client)
	ask(t, s, headersMessage(true, ":method", "GET", ":path", "/v1/models/none"))
	w.idle(t)
	return w
}

// TestMetricsAreWellNamed lints every metric of the package.
func TestMetricsAreWellNamed(t *testing.T) {
	problems, err := testutil.GatherAndLint(registered(t).Registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestOutcomesAreCounted compares the counters of all outcomes.
func TestOutcomesAreCounted(t *testing.T) {
	w := registered(t)
	err := testutil.GatherAndCompare(w.Registry, strings.NewReader(`
# HELP stator_extproc_requests_total Requests by outcome: picked, local for pages of the router, cancelled for queued requests whose clients cancelled, else the reason of the refusal.
# TYPE stator_extproc_requests_total counter
stator_extproc_requests_total{outcome="bad_request"} 0
stator_extproc_requests_total{outcome="body_too_large"} 0
stator_extproc_requests_total{outcome="busy"} 0
stator_extproc_requests_total{outcome="cancelled"} 0
stator_extproc_requests_total{outcome="content_encoding"} 0
stator_extproc_requests_total{outcome="deadline"} 0
stator_extproc_requests_total{outcome="insufficient_quota"} 0
stator_extproc_requests_total{outcome="internal"} 0
stator_extproc_requests_total{outcome="local"} 0
stator_extproc_requests_total{outcome="method"} 0
stator_extproc_requests_total{outcome="model_not_found"} 1
stator_extproc_requests_total{outcome="no_allowed_worker"} 0
stator_extproc_requests_total{outcome="no_ready_worker"} 0
stator_extproc_requests_total{outcome="no_tainted_worker"} 0
stator_extproc_requests_total{outcome="overloaded"} 0
stator_extproc_requests_total{outcome="panic"} 0
stator_extproc_requests_total{outcome="picked"} 1
stator_extproc_requests_total{outcome="pinned_busy"} 0
stator_extproc_requests_total{outcome="protocol_error"} 0
stator_extproc_requests_total{outcome="queue_full"} 0
stator_extproc_requests_total{outcome="rank_not_found"} 0
stator_extproc_requests_total{outcome="rate_limit_exceeded"} 0
stator_extproc_requests_total{outcome="unknown_path"} 0
stator_extproc_requests_total{outcome="unread"} 0
stator_extproc_requests_total{outcome="waited_too_long"} 0
stator_extproc_requests_total{outcome="worker_not_found"} 0
stator_extproc_requests_total{outcome="worker_required"} 0
`), "stator_extproc_requests_total")
	if err != nil {
		t.Error(err)
	}
}
