package emitters

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/metric"
)

var (
	blocks = metric.Desc("emitters", "blocks", "Blocks of a cache outside engines in the index of such caches.", "emitter", "model")
	states = metric.Desc("emitters", "state", "1 for the state of the cache in that index, and 0 for the other states.",
		"emitter", "model", "state")
	otherTopics = metric.Desc("emitters", "other_topics_total",
		"Messages on the socket of a cache outside engines that are of topics of other caches.", "emitter", "model")
)

// collector reads the states of a set when they are scraped.
type collector struct{ set *Set }

// Describe sends the descriptions of the metrics.
func (collector) Describe(out chan<- *prometheus.Desc) {
	out <- blocks
	out <- states
	out <- otherTopics
}

// Collect reads the states.
func (c collector) Collect(out chan<- prometheus.Metric) {
	for _, s := range c.set.States() {
		out <- prometheus.MustNewConstMetric(blocks, prometheus.GaugeValue, float64(s.Blocks), s.Name, s.Model)
		out <- prometheus.MustNewConstMetric(otherTopics, prometheus.CounterValue, float64(s.OtherTopics), s.Name, s.Model)
		for state := feed.None; state <= feed.Stale; state++ {
			is := 0.0
			if state == s.State {
				is = 1
			}
			out <- prometheus.MustNewConstMetric(states, prometheus.GaugeValue, is, s.Name, s.Model, state.String())
		}
	}
}
