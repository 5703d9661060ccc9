package emitters

import (
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

// collect reads the states when they are scraped.
func (s *Set) collect(out metric.Scrape) {
	for _, e := range s.States() {
		out.Gauge(blocks, float64(e.Blocks), e.Name, e.Model)
		out.Counter(otherTopics, e.OtherTopics, e.Name, e.Model)
		for state := feed.None; state <= feed.Stale; state++ {
			out.State(states, state == e.State, e.Name, e.Model, state.String())
		}
	}
}
