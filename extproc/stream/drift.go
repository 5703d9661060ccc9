package stream

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/kv/drift"
)

// driftCollector publishes what promise and report of cached tokens have shown. Its label is the
// name of a worker of the fleet.
type driftCollector struct{ drift *drift.Detector }

// NewDriftCollector returns a collector of what d has seen.
func NewDriftCollector(d *drift.Detector) prometheus.Collector { return &driftCollector{d} }

var (
	driftPromised = desc("feed", "promised_cached_tokens_total", "Cached tokens that decisions promised to find at a worker, of requests that its engine's counts cover for certain.", "worker")
	driftFound    = desc("feed", "reported_cached_tokens_total", "Cached tokens that the worker's engine says it found in the same time, whoever asked.", "worker")
	driftRatio    = desc("feed", "drift_ratio", "What was promised and cannot have been found, in shares of the prompt tokens of the last window; below 0: found and not promised.", "worker")
	driftWindows  = desc("feed", "drift_windows_total", "Windows in which promise and report were compared.", "worker")
	driftResyncs  = desc("feed", "drift_resyncs_total", "Times that what was known of a worker's cache was built up anew because of drift.", "worker")
)

// Describe lists nothing: which workers there are is known when they are there.
func (c *driftCollector) Describe(chan<- *prometheus.Desc) {}

// Collect reads all figures.
func (c *driftCollector) Collect(out chan<- prometheus.Metric) {
	for _, w := range c.drift.Stats() {
		send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64) {
			out <- prometheus.MustNewConstMetric(d, kind, v, w.Worker)
		}
		send(driftPromised, prometheus.CounterValue, float64(w.Promised))
		send(driftFound, prometheus.CounterValue, float64(w.Found))
		send(driftRatio, prometheus.GaugeValue, w.Ratio)
		send(driftWindows, prometheus.CounterValue, float64(w.Windows))
		send(driftResyncs, prometheus.CounterValue, float64(w.Resyncs))
	}
}
