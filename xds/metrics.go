package xds

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/metric"
)

// metrics count the traffic with Envoys.
type metrics struct {
	streams  prometheus.Gauge
	pushes   *prometheus.CounterVec
	nacks    *prometheus.CounterVec
	tooOld   prometheus.Counter
	lastPush prometheus.Gauge
}

// newMetrics registers the metrics in reg.
func newMetrics(reg prometheus.Registerer) *metrics {
	part := metric.For(reg, "xds")
	m := &metrics{
		streams:  part.Gauge("streams", "Open streams of Envoys: one for each over ADS, one for each cluster of the endpoint service."),
		pushes:   part.Counters("pushes_total", "Responses sent to Envoys, by resource type.", "type"),
		nacks:    part.Counters("nacks_total", "Responses that an Envoy refused, by resource type.", "type"),
		tooOld:   part.Counter("too_old_envoys_total", "Streams that ended because the Envoy is too old. It tries again."),
		lastPush: part.Gauge("last_push_timestamp_seconds", "Time of the last change of the configuration."),
	}

	for _, kind := range []string{"listener", "route", "cluster", "endpoint"} { // present before the first response
		m.pushes.WithLabelValues(kind)
		m.nacks.WithLabelValues(kind)
	}
	return m
}
