package cachesync

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/metric"
)

type metrics struct {
	recoveries *prometheus.CounterVec
	duration   prometheus.Histogram
	dumped     prometheus.Counter
	dropped    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	part := metric.For(reg, "feed")
	m := &metrics{
		recoveries: part.Counters("recoveries_total",
			"Attempts to make a rank's cache state exact from its agent, by the agent's answer and by the state after it.",
			"by", "result"),
		duration: part.Histogram("recovery_duration_seconds",
			"Duration of these attempts.", prometheus.ExponentialBuckets(1e-3, 4, 8)),
		dumped: part.Counter("snapshot_bytes_total", "Size of the cache snapshots received from agents."),
		dropped: part.Counter("dropped_batches_total",
			"Live batches dropped because the queue for ranks in recovery was full; they are replayed later."),
	}

	for _, by := range []method{byReplay, bySnapshot} {
		m.recoveries.WithLabelValues(string(by), "exact")
		m.recoveries.WithLabelValues(string(by), "not_exact")
	}
	return m
}

func (m *metrics) recovered(by method, exact bool, duration time.Duration) {
	result := "not_exact"
	if exact {
		result = "exact"
	}
	m.recoveries.WithLabelValues(string(by), result).Inc()
	m.duration.Observe(duration.Seconds())
}
