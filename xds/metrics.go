package xds

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	streams  prometheus.Gauge
	pushes   *prometheus.CounterVec
	nacks    *prometheus.CounterVec
	lastPush prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "stator", Subsystem: "xds", Name: "streams",
			Help: "Envoys connected now.",
		}),
		pushes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stator", Subsystem: "xds", Name: "pushes_total",
			Help: "Responses sent to Envoys by resource type.",
		}, []string{"type"}),
		nacks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stator", Subsystem: "xds", Name: "nacks_total",
			Help: "Responses that an Envoy refused by resource type.",
		}, []string{"type"}),
		lastPush: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "stator", Subsystem: "xds", Name: "last_push_timestamp_seconds",
			Help: "When the configuration was last published.",
		}),
	}
	reg.MustRegister(m.streams, m.pushes, m.nacks, m.lastPush)
	return m
}
