package exchange

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/route/decision"
)

type metrics struct {
	outcomes *prometheus.CounterVec
	// picked is the counter of outcomePicked. Finding it by its label takes longer than counting.
	picked prometheus.Counter
	// ignoredHints counts requests with hint headers of clients that are not trusted.
	ignoredHints prometheus.Counter
	duration     prometheus.Histogram
	blocks       prometheus.Histogram
	waits        prometheus.Histogram
}

// The outcomes of this package, beside the outcomes of package route.
const (
	outcomePicked    = "picked"
	outcomeCancelled = "cancelled"
	outcomePanic     = "panic"
	outcomeUnread    = "unread"
	// Clients of OpenAI know these two as codes of errors.
	outcomeLimited = "rate_limit_exceeded"
	outcomeSpent   = "insufficient_quota"
)

// Outcomes are the possible outcomes of a request. The set is closed, because they are label values.
func Outcomes() []string {
	list := []string{
		outcomePicked, outcomeCancelled, "local", "method", "unknown_path", "body_too_large", "content_encoding", "overloaded",
		"protocol_error", outcomePanic, outcomeUnread, outcomeLimited, outcomeSpent,
	}
	for _, r := range decision.Reasons() {
		list = append(list, string(r))
	}
	return list
}

func newMetrics(reg prometheus.Registerer, bodies, prefilling *Budget) *metrics {
	part := metric.For(reg, "extproc")
	m := &metrics{
		outcomes: part.Counters("requests_total",
			"Requests by outcome: picked, local for pages of the router, cancelled for queued requests whose clients cancelled, "+
				"else the reason of the refusal.", "outcome"),
		ignoredHints: part.Counter("ignored_hints_total",
			"Requests whose hint headers were ignored, because their clients are not trusted."),
		duration: part.Histogram("decision_duration_seconds",
			"Time from the end of the request body to the decision, of requests that were not queued.",
			prometheus.ExponentialBuckets(16e-6, 2, 16)),
		blocks: part.Histogram("prompt_blocks", "Complete KV blocks in the prompts of picked requests.",
			prometheus.ExponentialBuckets(1, 4, 9)),
		waits: part.Histogram("wait_duration_seconds", "Time that requests were queued, whatever their outcome.",
			prometheus.ExponentialBuckets(1e-3, 2, 16)),
	}

	part.GaugeFunc("body_bytes", "Bytes of the bodies for which decisions are being made.",
		func() float64 { return float64(bodies.Used()) })
	part.GaugeFunc("prefill_body_bytes", "Bytes of the bodies whose prompts prefill workers compute before their decode workers get them.",
		func() float64 { return float64(prefilling.Used()) })
	for _, o := range Outcomes() {
		m.outcomes.WithLabelValues(o)
	}
	m.picked = m.outcomes.WithLabelValues(outcomePicked)
	return m
}
