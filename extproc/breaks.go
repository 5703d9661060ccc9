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

// NewBreaksCollector returns a collector of the places that found returns. Their number is bounded, and so is the number of its
// samples. Labels have where a text is and of what kind, and never the text.
func NewBreaksCollector(found func(now time.Time) []breaks.Place) prometheus.Collector {
	return metric.Collector(func(out metric.Scrape) {
		now := time.Now()
		for _, p := range found(now) {
			labels := []string{p.Model, strconv.Itoa(p.Message), p.Role, strconv.Itoa(p.Character), strconv.Itoa(p.Token), p.Kind.String()}
			out.Counter(breakerTokens, p.Tokens, labels...)
			out.Gauge(breakerRate, p.TokensPerSecond(now), labels...)
			out.Gauge(breakerRatio, p.Share, labels...)
		}
	})
}
