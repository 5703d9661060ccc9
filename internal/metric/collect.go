package metric

import "github.com/prometheus/client_golang/prometheus"

// collector calls a function for each scrape.
type collector struct {
	collect func(Scrape)
	descs   []*prometheus.Desc
}

// Collector returns a collector that calls collect for each scrape, with the descriptions of its metrics. Without descriptions the
// registry does not check them: labels such as names of workers come and go.
func Collector(collect func(Scrape), descs ...*prometheus.Desc) prometheus.Collector {
	return collector{collect, descs}
}

// Describe sends the descriptions.
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect sends the values of now.
func (c collector) Collect(out chan<- prometheus.Metric) { c.collect(Scrape{out}) }

// Scrape takes the values of one scrape.
type Scrape struct{ out chan<- prometheus.Metric }

// Counter sends the value of a counter with these values of its labels.
func (s Scrape) Counter(d *prometheus.Desc, v uint64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

// Gauge sends the value of a gauge with these values of its labels.
func (s Scrape) Gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// State sends a gauge that is 1 if a state holds, and 0 if not.
func (s Scrape) State(d *prometheus.Desc, holds bool, labels ...string) {
	v := 0.0
	if holds {
		v = 1
	}
	s.Gauge(d, v, labels...)
}
