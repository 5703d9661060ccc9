package extproc

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/route/breaks"
)

// The places in prompts that keep caches from being hit: at most 32 at a time. Character counts within the message, and token within the
// prompt. A place goes an hour after the last request that it broke.
var (
	placeLabels   = []string{"model", "message", "role", "character", "token", "kind"}
	breakerTokens = metric.Desc("route", "prefix_breaker_tokens_total",
		"Prompt tokens that no rank had cached although an earlier prompt had the same text, because the two differ before it in a text "+
			"of this kind at this place.", placeLabels...)
	breakerRate = metric.Desc("route", "prefix_breaker_tokens_per_second",
		"Those tokens per second, as they were counted since the first such request.", placeLabels...)
	breakerRatio = metric.Desc("route", "prefix_breaker_ratio",
		"Those tokens as a share of all prompt tokens since the first such request.", placeLabels...)
)

// breaksCollector publishes the places that a router has found. Their number is bounded, and so is the number of its samples. Labels have
// where a text is and of what kind, and never the text.
type breaksCollector struct {
	found func(now time.Time) []breaks.Place
}

// NewBreaksCollector returns a collector of the places that found returns.
func NewBreaksCollector(found func(now time.Time) []breaks.Place) prometheus.Collector {
	return breaksCollector{found}
}

// Describe sends nothing: the places are not known yet.
func (c breaksCollector) Describe(chan<- *prometheus.Desc) {}

// Collect reads all places.
func (c breaksCollector) Collect(metrics chan<- prometheus.Metric) {
	out, now := samples{metrics}, time.Now()
	for _, p := range c.found(now) {
		labels := []string{p.Model, strconv.Itoa(p.Message), p.Role, strconv.Itoa(p.Character), strconv.Itoa(p.Token), p.Kind.String()}
		out.counter(breakerTokens, p.Tokens, labels...)
		out.gauge(breakerRate, p.TokensPerSecond(now), labels...)
		out.gauge(breakerRatio, p.Share, labels...)
	}
}
