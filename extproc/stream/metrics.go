package stream

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/metric"
)

type metrics struct {
	streams prometheus.Gauge
	unread  *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	part := metric.For(reg, "extproc")
	m := &metrics{
		streams: part.Gauge("streams", "Requests that wait for a decision, queued ones included."),
		unread: part.Counters("unread_total",
			"Requests that go by load, or are refused, because Envoy's filter sends no whole body; by its request_body_mode.", "mode"),
	}
	for _, mode := range unreadModes {
		m.unread.WithLabelValues(mode.String())
	}
	return m
}
