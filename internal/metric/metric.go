// Package metric builds and registers Prometheus metrics under Stator's names.
//
// Every name is stator_<part>_<name>. The package holds no registry: callers pass theirs, and a
// second registration of one name panics, because it is a mistake in the program.
package metric

import "github.com/prometheus/client_golang/prometheus"

// namespace begins the name of every metric.
const namespace = "stator"

// Part builds the metrics of one part of the program.
type Part struct {
	registry prometheus.Registerer
	name     string
}

// For returns the builder of a part's metrics, which registers each of them in reg.
func For(reg prometheus.Registerer, part string) Part { return Part{reg, part} }

// Counter returns a counter. Its name ends in _total.
func (p Part) Counter(name, help string) prometheus.Counter {
	return register(p, prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: p.name, Name: name, Help: help}))
}

// Counters returns a counter for every combination of values of the labels.
func (p Part) Counters(name, help string, labels ...string) *prometheus.CounterVec {
	return register(p, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: p.name, Name: name, Help: help},
		labels))
}

// CounterFunc exports what read returns as a counter.
func (p Part) CounterFunc(name, help string, read func() float64) {
	register(p, prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: namespace, Subsystem: p.name, Name: name, Help: help}, read))
}

// Gauge returns a gauge.
func (p Part) Gauge(name, help string) prometheus.Gauge {
	return register(p, prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: p.name, Name: name, Help: help}))
}

// Gauges returns a gauge for every combination of values of the labels.
func (p Part) Gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return register(p, prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Subsystem: p.name, Name: name, Help: help},
		labels))
}

// GaugeFunc exports what read returns as a gauge.
func (p Part) GaugeFunc(name, help string, read func() float64) {
	register(p, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Subsystem: p.name, Name: name, Help: help}, read))
}

// Histogram returns a histogram with these bucket bounds, in ascending order.
func (p Part) Histogram(name, help string, buckets []float64) prometheus.Histogram {
	return register(p, prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Subsystem: p.name, Name: name, Help: help, Buckets: buckets,
	}))
}

// Histograms registers a histogram with labels. Scrapers that ask for native histograms get buckets whose bounds grow by a tenth.
func (p Part) Histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return register(p, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Subsystem: p.name, Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
	}, labels))
}

// Observe adds a value to a histogram, with the id of a trace as its exemplar unless that is empty. Scrapers that ask for OpenMetrics get
// the latest exemplar of each bucket.
func Observe(to prometheus.Observer, value float64, trace string) {
	if h, ok := to.(prometheus.ExemplarObserver); ok && trace != "" {
		h.ObserveWithExemplar(value, prometheus.Labels{"trace_id": trace})
		return
	}
	to.Observe(value)
}

// Summaries registers sums and counts of observations with labels. They have no quantiles.
func (p Part) Summaries(name, help string, labels ...string) *prometheus.SummaryVec {
	return register(p, prometheus.NewSummaryVec(prometheus.SummaryOpts{Namespace: namespace, Subsystem: p.name, Name: name, Help: help},
		labels))
}

// Desc describes a metric that a collector of the caller's computes when it is read.
func Desc(part, name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, part, name), help, labels, nil)
}

func register[C prometheus.Collector](p Part, c C) C {
	p.registry.MustRegister(c)
	return c
}
