package stream

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/pick"
)

// collector publishes the Stats of the packages that import no metrics library.
type collector struct {
	router *route.Router
	feed   *feed.Feed
	index  *kvindex.Index
	memory *prompt.Memory
}

// NewCollector returns a collector of the router's figures and those of what it knows.
// The memory of prompts may be nil.
func NewCollector(r *route.Router, f *feed.Feed, x *kvindex.Index, m *prompt.Memory) prometheus.Collector {
	return &collector{r, f, x, m}
}

func desc(subsystem, name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("stator", subsystem, name), help, labels, nil)
}

var (
	promptTokens  = desc("route", "prompt_tokens_total", "Tokens in the prompts of picked requests.")
	cachedTokens  = desc("route", "cached_tokens_total", "Tokens in the prompts of picked requests that the picked rank was known or predicted to hold.")
	promptBlocks  = desc("route", "prompt_blocks_total", "Complete blocks in the prompts of picked requests.")
	overlapBlocks = desc("route", "overlap_blocks_total", "Complete blocks in the prompts of picked requests that the picked rank was known or predicted to hold: over prompt_blocks_total, the hit rate.")
	bookingsOpen  = desc("route", "bookings", "Requests that are booked and have not ended.")
	bookingsEnded = desc("route", "bookings_ended_total", "Bookings by how they ended.", "reason")
	unbooked      = desc("route", "unbooked_requests_total", "Requests that were picked but not booked, because the table was full.")
	queueRequests = desc("route", "queue_requests", "Requests that wait because all ranks that may take them are busy.", "model", "class")
	queueTokens   = desc("route", "queue_tokens", "Tokens in the prompts of waiting requests.", "model", "class")
	queuedTotal   = desc("route", "queued_requests_total", "Requests that had to wait.")
	leftTotal     = desc("route", "queue_left_total", "Waiting requests whose clients left before their turn.")
	lostRaces     = desc("route", "lost_races_total", "Choices that were made again because another was booked first.")

	indexBytes     = desc("index", "bytes", "Memory of the index.")
	indexMaxBytes  = desc("index", "max_bytes", "Bound on the memory of the index.")
	indexBlocks    = desc("index", "blocks", "Different blocks that the index knows.")
	indexPairs     = desc("index", "holdings", "Pairs of a block and a rank that holds it.")
	indexPredicted = desc("index", "predicted_blocks", "Blocks predicted and not yet reported or expired.")
	indexOrphans   = desc("index", "orphan_blocks", "Blocks that wait for their parent.")
	indexEvictions = desc("index", "evictions_total", "Holdings forgotten because the bound was reached.")

	memoryBytes     = desc("prompt", "memory_bytes", "What is remembered of prompts.")
	memoryMaxBytes  = desc("prompt", "memory_max_bytes", "Bound on what is remembered of prompts; 0 is off.")
	memoryEntries   = desc("prompt", "memory_entries", "Segments of prompts, and stretches of their block hashes, that are remembered.")
	memoryEvictions = desc("prompt", "memory_evictions_total", "Entries forgotten because the bound was reached.")
	memoryLookups   = desc("prompt", "memory_lookups_total", "Segments of prompts that were remembered (hit), or had to be tokenized (miss).", "result")
	memoryText      = desc("prompt", "memory_text_bytes_total", "Text of the segments that were remembered (hit), or had to be tokenized (miss).", "result")

	feedRanks      = desc("feed", "ranks", "Ranks by what is known of their caches.", "state")
	feedBatches    = desc("feed", "batches_total", "Batches of events that were applied.")
	feedBlocks     = desc("feed", "blocks_total", "Blocks that events stored or removed.", "kind")
	feedDuplicates = desc("feed", "duplicates_total", "Batches that had been applied before.")
	feedGaps       = desc("feed", "gaps_total", "Batches that came before one that is missing.")
	feedLost       = desc("feed", "gaps_given_up_total", "Gaps that no replay could fill.")
	feedRestarts   = desc("feed", "restarts_total", "Engines seen to have started anew by their sequence numbers.")
	feedIgnored    = desc("feed", "ignored_total", "Events or batches that were not applied, by reason.", "reason")
)

// Describe lists nothing: the collector is unchecked, because its labels come from the packages
// it reads.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads all figures.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	c.collectRoute(count, gauge)
	c.collectIndex(count, gauge)
	c.collectFeed(count, gauge)
	c.collectMemory(count, gauge)
}

type (
	counter func(d *prometheus.Desc, v uint64, labels ...string)
	gauger  func(d *prometheus.Desc, v float64, labels ...string)
)

func (c *collector) collectRoute(count counter, gauge gauger) {
	s := c.router.Stats()
	count(promptTokens, s.PromptTokens)
	count(cachedTokens, s.CachedTokens)
	count(promptBlocks, s.Blocks)
	count(overlapBlocks, s.OverlapBlocks)
	gauge(bookingsOpen, float64(s.Bookings.Open))
	for reason, n := range s.Bookings.Ended {
		count(bookingsEnded, n, pick.Reason(reason).String())
	}
	count(unbooked, s.Bookings.Unbooked)
	count(lostRaces, s.Bookings.LostRaces)
	count(queuedTotal, s.Queued)
	count(leftTotal, s.Cancelled)
	for _, q := range c.router.Queues() {
		gauge(queueRequests, float64(q.Requests), q.Pool, q.Class)
		gauge(queueTokens, float64(q.Tokens), q.Pool, q.Class)
	}
}

func (c *collector) collectIndex(count counter, gauge gauger) {
	s := c.index.Stats()
	gauge(indexBytes, float64(s.Bytes))
	gauge(indexMaxBytes, float64(s.MaxBytes))
	gauge(indexBlocks, float64(s.Nodes))
	gauge(indexPairs, float64(s.Pairs))
	gauge(indexPredicted, float64(s.Predicted))
	gauge(indexOrphans, float64(s.Orphans))
	count(indexEvictions, s.Evicted)
}

func (c *collector) collectMemory(count counter, gauge gauger) {
	s := c.memory.Stats()
	gauge(memoryBytes, float64(s.Bytes))
	gauge(memoryMaxBytes, float64(s.MaxBytes))
	gauge(memoryEntries, float64(s.Entries))
	count(memoryEvictions, s.Evicted)
	count(memoryLookups, s.Hits, "hit")
	count(memoryLookups, s.Misses, "miss")
	count(memoryText, s.HitText, "hit")
	count(memoryText, s.MissText, "miss")
}

func (c *collector) collectFeed(count counter, gauge gauger) {
	s := c.feed.Stats()
	for state, n := range s.Ranks {
		gauge(feedRanks, float64(n), feed.State(state).String())
	}
	count(feedBatches, s.Batches)
	count(feedBlocks, s.Stored, "stored")
	count(feedBlocks, s.Removed, "removed")
	count(feedDuplicates, s.Duplicates)
	count(feedGaps, s.Gaps)
	count(feedLost, s.GivenUp)
	count(feedRestarts, s.Restarts)
	count(feedIgnored, s.WrongBlockSize, "block_size")
	count(feedIgnored, s.Unknown, "unknown_kind")
	count(feedIgnored, s.NoTokens, "no_tokens")
	count(feedIgnored, s.UnknownWorker, "unknown_worker")
	count(feedIgnored, s.WrongEpoch, "wrong_epoch")
}
