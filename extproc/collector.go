package extproc

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/kv/drift"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/peers"
	"github.com/stator-project/stator/internal/route/pick"
)

// collector publishes the statistics of packages that import no metrics library: the pure packages count, and
// this process exports their counters.
type collector struct {
	routes *route.Router
	feed   *feed.Feed
	index  *kvindex.Index
	memory *prompt.Memory
	// coverage returns the part of the fleet's caches for which the index has room.
	coverage func() kvindex.Coverage
}

// Decisions, bookings and the queue. Tokens and blocks are counted when a request is picked, so they include
// requests that end without an answer.
var (
	promptTokens = metric.Desc("route", "prompt_tokens_total", "Tokens in the prompts of picked requests.")
	cachedTokens = metric.Desc("route", "cached_tokens_total",
		"Prompt tokens that the picked rank had cached, as far as the index stored or predicted.")
	promptBlocks  = metric.Desc("route", "prompt_blocks_total", "Complete blocks in the prompts of picked requests.")
	overlapBlocks = metric.Desc("route", "overlap_blocks_total",
		"Prompt blocks that the picked rank had cached, as far as the index stored or predicted. "+
			"Divided by prompt_blocks_total: the hit rate.")
	bookingsOpen  = metric.Desc("route", "bookings", "Booked requests that have not ended.")
	bookingsEnded = metric.Desc("route", "bookings_ended_total", "Ended bookings by the reason of their end.", "reason")
	unbooked      = metric.Desc("route", "unbooked_requests_total",
		"Picked requests that were not booked because the table of bookings was full.")
	// Both are 0 while every request is served by the worker that was picked, and few are in flight. The engines of
	// half-open workers answer, or agents report them.
	unpromised = metric.Desc("route", "unpromised_requests_total",
		"Picked requests whose predicted blocks cannot be taken back if another worker serves them, because too many were in flight.")
	heldBack = metric.Desc("route", "held_back_total",
		"Times that a worker became half-open because it did not serve three requests in a row that were sent there.")
	unread = metric.Desc("route", "unread_requests_total",
		"Requests that were routed by session or load because their prompt was not read, by the reason.", "reason")
	queueRequests = metric.Desc("route", "queue_requests",
		"Requests in the queue: every rank that may serve them is busy.", "model", "class")
	queueTokens = metric.Desc("route", "queue_tokens", "Tokens in the prompts of queued requests.", "model", "class")
	queuedTotal = metric.Desc("route", "queued_requests_total", "Requests that were queued.")
	cancelled   = metric.Desc("route", "queue_cancelled_total", "Queued requests that their clients cancelled.")
	lostRaces   = metric.Desc("route", "lost_races_total",
		"Picks that were repeated because a request decided at the same time was booked first.")
)

// The index. Its memory is bounded: at the limit the blocks go first that were stored longest ago.
var (
	indexBytes      = metric.Desc("index", "bytes", "Memory of the index.")
	indexMaxBytes   = metric.Desc("index", "max_bytes", "Limit of the memory of the index.")
	indexBlocks     = metric.Desc("index", "blocks", "Different blocks in the index.")
	indexPairs      = metric.Desc("index", "block_holders", "Pairs of a block and a rank that has it cached.")
	indexPredicted  = metric.Desc("index", "predicted_blocks", "Predicted blocks that are neither reported nor expired yet.")
	indexOrphans    = metric.Desc("index", "orphan_blocks", "Blocks whose parent block is not in the index yet.")
	indexFleetPairs = metric.Desc("index", "fleet_pairs",
		"Blocks that the caches of all ranks can hold together. Ranks that do not report their size are left out.")
	indexCapacityPairs = metric.Desc("index", "capacity_pairs",
		"Pairs of a block and a rank for which the index has room. Below fleet_pairs it is too small.")
	indexEvictions = metric.Desc("index", "evictions_total", "Pairs of a block and a rank dropped because the index reached its limit.")
)

// The memory of tokenized prompts. A conversation's next prompt begins with the one before, so most of its
// segments are found.
var (
	memoryBytes    = metric.Desc("prompt", "memory_bytes", "Memory of tokenized prompt segments.")
	memoryMaxBytes = metric.Desc("prompt", "memory_max_bytes", "Limit of that memory; 0 disables it.")
	memoryEntries  = metric.Desc("prompt", "memory_entries",
		"Entries in that memory: prompt segments, and ranges of their block hashes.")
	memoryEvictions = metric.Desc("prompt", "memory_evictions_total", "Entries dropped because the memory reached its limit.")
	memoryLookups   = metric.Desc("prompt", "memory_lookups_total",
		"Prompt segments found in the memory (hit), or tokenized (miss).", "result")
	memoryText = metric.Desc("prompt", "memory_text_bytes_total",
		"Bytes of text in the prompt segments found in the memory (hit), or tokenized (miss).", "result")
)

// The cache states. Duplicates and gaps are normal after a lost message; unrecovered gaps are not.
var (
	feedRanks = metric.Desc("feed", "ranks", "Ranks by the state of their caches in the index.", "state")
	feedStale = metric.Desc("feed", "stale_ranks",
		"Stale ranks by the reason why their caches in the index cannot be trusted.", "reason")
	feedBatches    = metric.Desc("feed", "batches_total", "Batches of events applied.")
	feedBlocks     = metric.Desc("feed", "blocks_total", "Blocks that events stored or removed.", "kind")
	feedDuplicates = metric.Desc("feed", "duplicates_total", "Batches ignored because they had been applied before.")
	feedGaps       = metric.Desc("feed", "gaps_total", "Batches refused because an earlier sequence number was missing.")
	feedLost       = metric.Desc("feed", "unrecovered_gaps_total", "Gaps in the sequence numbers that no replay filled.")
	feedRestarts   = metric.Desc("feed", "restarts_total", "Engine restarts found by sequence numbers or by the engine's answers.")
	feedIgnored    = metric.Desc("feed", "ignored_total", "Events or batches that were not applied, by reason.", "reason")
)

// Describe sends nothing: the collector is unchecked, because its labels depend on the configuration.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads all statistics.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	samples := samples{out}
	c.collectRoutes(samples)
	c.collectIndex(samples)
	c.collectMemory(samples)
	c.collectFeed(samples)
}

// samples sends the values of one collection.
type samples struct{ out chan<- prometheus.Metric }

// counter sends the value of a counter with these label values.
func (s samples) counter(d *prometheus.Desc, v uint64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

// gauge sends the value of a gauge with these label values.
func (s samples) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// collectRoutes reads decisions, bookings and queues.
func (c *collector) collectRoutes(out samples) {
	s := c.routes.Stats()
	out.counter(promptTokens, s.PromptTokens)
	out.counter(cachedTokens, s.CachedTokens)
	out.counter(promptBlocks, s.Blocks)
	out.counter(overlapBlocks, s.OverlapBlocks)

	out.gauge(bookingsOpen, float64(s.Bookings.Open))
	for reason, n := range s.Bookings.Ended {
		out.counter(bookingsEnded, n, pick.Reason(reason).String())
	}
	out.counter(unbooked, s.Bookings.Unbooked)
	out.counter(lostRaces, s.Bookings.LostRaces)
	out.counter(unpromised, s.Unpromised)
	out.counter(heldBack, s.HeldBack)
	for why, n := range s.Unread {
		if label := prompt.Why(why).String(); label != "" {
			out.counter(unread, n, label)
		}
	}

	out.counter(queuedTotal, s.Queued)
	out.counter(cancelled, s.Cancelled)
	for _, q := range c.routes.Queues() {
		out.gauge(queueRequests, float64(q.Requests), q.Pool, q.Class)
		out.gauge(queueTokens, float64(q.Tokens), q.Pool, q.Class)
	}
}

// collectIndex reads the index.
func (c *collector) collectIndex(out samples) {
	s := c.index.Stats()
	out.gauge(indexBytes, float64(s.Bytes))
	out.gauge(indexMaxBytes, float64(s.MaxBytes))
	out.gauge(indexBlocks, float64(s.Nodes))
	out.gauge(indexPairs, float64(s.Pairs))
	out.gauge(indexPredicted, float64(s.Predicted))
	out.gauge(indexOrphans, float64(s.Orphans))
	coverage := c.coverage()
	out.gauge(indexFleetPairs, float64(coverage.Pairs))
	out.gauge(indexCapacityPairs, float64(coverage.Room))
	out.counter(indexEvictions, s.Evicted)
}

// collectMemory reads the memory of tokenized prompts.
func (c *collector) collectMemory(out samples) {
	s := c.memory.Stats()
	out.gauge(memoryBytes, float64(s.Bytes))
	out.gauge(memoryMaxBytes, float64(s.MaxBytes))
	out.gauge(memoryEntries, float64(s.Entries))
	out.counter(memoryEvictions, s.Evicted)
	out.counter(memoryLookups, s.Hits, "hit")
	out.counter(memoryLookups, s.Misses, "miss")
	out.counter(memoryText, s.HitText, "hit")
	out.counter(memoryText, s.MissText, "miss")
}

// collectFeed reads the cache states. Ignored events are one metric with a label, so that an alert covers
// all reasons.
func (c *collector) collectFeed(out samples) {
	s := c.feed.Stats()
	for state, n := range s.Ranks {
		out.gauge(feedRanks, float64(n), feed.State(state).String())
	}
	for reason := feed.Sound + 1; reason < feed.Reasons; reason++ {
		out.gauge(feedStale, float64(s.Stale[reason]), reason.String())
	}
	out.counter(feedBatches, s.Batches)
	out.counter(feedBlocks, s.Stored, "stored")
	out.counter(feedBlocks, s.Removed, "removed")
	out.counter(feedDuplicates, s.Duplicates)
	out.counter(feedGaps, s.Gaps)
	out.counter(feedLost, s.UnrecoveredGaps)
	out.counter(feedRestarts, s.Restarts)

	out.counter(feedIgnored, s.WrongBlockSize, "block_size")
	out.counter(feedIgnored, s.Unknown, "unknown_kind")
	out.counter(feedIgnored, s.NoTokens, "no_tokens")
	out.counter(feedIgnored, s.UnknownWorker, "unknown_worker")
	out.counter(feedIgnored, s.WrongEpoch, "wrong_epoch")
}

// The comparison of promised and reported cached tokens, per worker. A worker appears with its first whole
// window.
var (
	driftPromised = metric.Desc("feed", "promised_cached_tokens_total",
		"Cached tokens that decisions predicted on the engine's device, of the requests that its counters certainly include.", "worker")
	driftFound = metric.Desc("feed", "reported_cached_tokens_total",
		"Cached tokens that the worker's engine reported in the same time, for all its clients.", "worker")
	driftRatio = metric.Desc("feed", "drift_ratio",
		"Predicted cached tokens that the engine cannot have found, as a share of the prompt tokens of the last "+
			"window. Negative: found and not predicted.", "worker")
	driftWindows = metric.Desc("feed", "drift_windows_total", "Windows in which predictions and reports were compared.", "worker")
	driftResyncs = metric.Desc("feed", "drift_resyncs_total", "Rebuilds of a worker's cache state because of drift.", "worker")
)

// driftCollector publishes the comparison of predicted and reported cached tokens. Its label is the name
// of a worker of the fleet.
type driftCollector struct{ drift *drift.Detector }

// NewDriftCollector returns a collector of d's statistics.
func NewDriftCollector(d *drift.Detector) prometheus.Collector { return driftCollector{d} }

// Describe sends nothing: the workers are not known yet.
func (c driftCollector) Describe(chan<- *prometheus.Desc) {}

// Collect reads all statistics.
func (c driftCollector) Collect(metrics chan<- prometheus.Metric) {
	out := samples{metrics}
	for _, w := range c.drift.Stats() {
		out.counter(driftPromised, w.Promised, w.Worker)
		out.counter(driftFound, w.Found, w.Worker)
		out.gauge(driftRatio, w.Ratio, w.Worker)
		out.counter(driftWindows, w.Windows, w.Worker)
		out.counter(driftResyncs, w.Resyncs, w.Worker)
	}
}

// The exchange of bookings between the replicas of the router.
var (
	peersLive     = metric.Desc("peers", "replicas", "Other replicas of the router that publish their bookings.")
	peersBooked   = metric.Desc("peers", "bookings", "Requests that other replicas have booked.")
	peersMessages = metric.Desc("peers", "messages_total",
		"Booking updates of other replicas: applied, old (late or repeated), lost (missing by their numbers), or refused "+
			"(an amount is negative or out of bounds).", "result")
	peersMismatches = metric.Desc("peers", "digest_mismatches_total",
		"Updates after which a replica's bookings did not match its digest. A full update within two seconds corrects them.")
	peersExpired = metric.Desc("peers", "expired_total", "Replicas that stopped publishing; their bookings were dropped.")
)

// peersCollector publishes the exchange of bookings with other replicas.
type peersCollector struct{ peers *peers.Receiver }

// Describe sends nothing, like the other collectors.
func (c peersCollector) Describe(chan<- *prometheus.Desc) {}

// Collect reads all statistics.
func (c peersCollector) Collect(metrics chan<- prometheus.Metric) {
	out := samples{metrics}
	s := c.peers.Stats()
	out.gauge(peersLive, float64(s.Live))
	out.gauge(peersBooked, float64(s.Booked))
	out.counter(peersMessages, s.Messages, "applied")
	out.counter(peersMessages, s.Old, "old")
	out.counter(peersMessages, s.Lost, "lost")
	out.counter(peersMessages, s.Refused, "refused")
	out.counter(peersMismatches, s.DigestMismatches)
	out.counter(peersExpired, s.Expired)
}
