package stream

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/route"
)

type metrics struct {
	streams  prometheus.Gauge
	outcomes *prometheus.CounterVec
	duration prometheus.Histogram
	blocks   prometheus.Histogram
	waits    prometheus.Histogram
}

// outcomes are all that a request can come to: what a label may say is a closed set.
var outcomes = closed()

func closed() []string {
	list := []string{"picked", "left", "local", "method", "unknown_path", "body_too_large", "content_encoding", "protocol_error"}
	for _, r := range route.Reasons() {
		list = append(list, string(r))
	}
	return list
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "stator", Subsystem: "extproc", Name: "streams",
			Help: "Requests that wait for a decision now.",
		}),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stator", Subsystem: "extproc", Name: "requests_total",
			Help: "Requests by outcome: picked, local for what needs no engine, left for clients that left the queue, else the reason of the refusal.",
		}, []string{"outcome"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "stator", Subsystem: "extproc", Name: "decision_duration_seconds",
			Help:    "Time from the end of the request body to the pick.",
			Buckets: prometheus.ExponentialBuckets(16e-6, 2, 16),
		}),
		blocks: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "stator", Subsystem: "extproc", Name: "prompt_blocks",
			Help:    "Complete KV blocks in the prompts of picked requests.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 9),
		}),
	}
	m.waits = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: "stator", Subsystem: "extproc", Name: "wait_duration_seconds",
		Help:    "Time that requests waited in the queue, whatever became of them.",
		Buckets: prometheus.ExponentialBuckets(1e-3, 2, 16),
	})
	for _, o := range outcomes {
		m.outcomes.WithLabelValues(o)
	}
	reg.MustRegister(m.streams, m.outcomes, m.duration, m.blocks, m.waits)
	return m
}
