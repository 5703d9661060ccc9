package extproc

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/kv/drift"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/pick"
)

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

// collect sends the counters of packages that import no metrics library: the pure packages count, and this process exports their
// counters. The collector is unchecked, because its labels depend on the configuration.
func (r *Router) collect(out metric.Scrape) {
	r.collectRoutes(out)
	r.collectIndex(out)
	r.collectMemory(out)
	r.collectFeed(out)
	r.collectPeers(out)
}

// collectRoutes reads decisions, bookings and queues.
func (r *Router) collectRoutes(out metric.Scrape) {
	s := r.routes.Stats()
	out.Counter(promptTokens, s.PromptTokens)
	out.Counter(cachedTokens, s.CachedTokens)
	out.Counter(promptBlocks, s.Blocks)
	out.Counter(overlapBlocks, s.OverlapBlocks)

	out.Gauge(bookingsOpen, float64(s.Bookings.Open))
	// Reasons without an end have a 0, so that rates can be computed from the first scrape on.
	for reason, n := range s.Bookings.Ended {
		out.Counter(bookingsEnded, n, pick.Reason(reason).String())
	}
	out.Counter(unbooked, s.Bookings.Unbooked)
	out.Counter(lostRaces, s.Bookings.LostRaces)
	out.Counter(unpromised, s.Unpromised)
	out.Counter(heldBack, s.HeldBack)
	for why, n := range s.Unread {
		if label := prompt.Why(why).String(); label != "" {
			out.Counter(unread, n, label)
		}
	}

	out.Counter(queuedTotal, s.Queued)
	out.Counter(cancelled, s.Cancelled)
	// Classes are apart, because an operator sets the bounds of each.
	for _, q := range r.routes.Queues() {
		out.Gauge(queueRequests, float64(q.Requests), q.Pool, q.Class)
		out.Gauge(queueTokens, float64(q.Tokens), q.Pool, q.Class)
	}
}

// collectIndex reads the index.
func (r *Router) collectIndex(out metric.Scrape) {
	s := r.index.Stats()
	out.Gauge(indexBytes, float64(s.Bytes))
	out.Gauge(indexMaxBytes, float64(s.MaxBytes))
	out.Gauge(indexBlocks, float64(s.Nodes))
	out.Gauge(indexPairs, float64(s.Pairs))
	out.Gauge(indexPredicted, float64(s.Predicted))
	out.Gauge(indexOrphans, float64(s.Orphans))
	// An alert compares these two: an index with less room than the fleet has cached blocks forgets some that are there.
	coverage := r.Coverage()
	out.Gauge(indexFleetPairs, float64(coverage.Pairs))
	out.Gauge(indexCapacityPairs, float64(coverage.Room))
	out.Counter(indexEvictions, s.Evicted)
}

// collectMemory reads the memory of tokenized prompts.
func (r *Router) collectMemory(out metric.Scrape) {
	s := r.memory.Stats()
	out.Gauge(memoryBytes, float64(s.Bytes))
	out.Gauge(memoryMaxBytes, float64(s.MaxBytes))
	out.Gauge(memoryEntries, float64(s.Entries))
	out.Counter(memoryEvictions, s.Evicted)
	// Hits and misses are one metric with a label, so that the rate of hits is one division.
	out.Counter(memoryLookups, s.Hits, "hit")
	out.Counter(memoryLookups, s.Misses, "miss")
	out.Counter(memoryText, s.HitText, "hit")
	out.Counter(memoryText, s.MissText, "miss")
}

// collectFeed reads the cache states. Ignored events are one metric with a label, so that an alert covers
// all reasons.
func (r *Router) collectFeed(out metric.Scrape) {
	s := r.feed.Stats()
	// States and reasons without a rank have a 0, so that alerts find them.
	for state, n := range s.Ranks {
		out.Gauge(feedRanks, float64(n), feed.State(state).String())
	}
	for reason := feed.Sound + 1; reason < feed.Reasons; reason++ {
		out.Gauge(feedStale, float64(s.Stale[reason]), reason.String())
	}
	out.Counter(feedBatches, s.Batches)
	out.Counter(feedBlocks, s.Stored, "stored")
	out.Counter(feedBlocks, s.Removed, "removed")
	out.Counter(feedDuplicates, s.Duplicates)
	out.Counter(feedGaps, s.Gaps)
	out.Counter(feedLost, s.UnrecoveredGaps)
	out.Counter(feedRestarts, s.Restarts)

	out.Counter(feedIgnored, s.WrongBlockSize, "block_size")
	out.Counter(feedIgnored, s.Unknown, "unknown_kind")
	out.Counter(feedIgnored, s.NoTokens, "no_tokens")
	out.Counter(feedIgnored, s.UnknownWorker, "unknown_worker")
	out.Counter(feedIgnored, s.WrongEpoch, "wrong_epoch")
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

// NewDriftCollector returns a collector of the comparison of predicted and reported cached tokens. Its label is the name of a worker of
// the fleet, so it is unchecked: the workers are not known before.
func NewDriftCollector(d *drift.Detector) prometheus.Collector {
	return metric.Collector(func(out metric.Scrape) {
		for _, w := range d.Stats() {
			out.Counter(driftPromised, w.Promised, w.Worker)
			out.Counter(driftFound, w.Found, w.Worker)
			out.Gauge(driftRatio, w.Ratio, w.Worker)
			out.Counter(driftWindows, w.Windows, w.Worker)
			out.Counter(driftResyncs, w.Resyncs, w.Worker)
		}
	})
}

// The exchange of bookings between the replicas of the router.
var (
	peersLive     = metric.Desc("peers", "replicas", "Other replicas of the router that publish their bookings.")
	peersBooked   = metric.Desc("peers", "bookings", "Requests that other replicas have booked.")
	peersMessages = metric.Desc("peers", "messages_total",
		"Booking updates of other replicas: applied, old (late or repeated), lost (missing by their numbers), or refused "+
			"(an amount is negative, or something out of bounds).", "result")
	peersPrompts = metric.Desc("peers", "prompts_total",
		"Prompts that other replicas have sent to workers, received here, and prompts of this replica that were dropped, because "+
			"the update for the others had no room.",
		"result")
	peersMismatches = metric.Desc("peers", "digest_mismatches_total",
		"Updates after which a replica's bookings did not match its digest. A full update within two seconds corrects them.")
	peersExpired = metric.Desc("peers", "expired_total", "Replicas that stopped publishing; their bookings were dropped.")
)

// collectPeers reads the exchange of bookings.
func (r *Router) collectPeers(out metric.Scrape) {
	s := r.peers.Stats()
	out.Gauge(peersLive, float64(s.Live))
	out.Gauge(peersBooked, float64(s.Booked))
	// Old messages are harmless. Lost and refused ones leave bookings of the replica wrong until its next full update.
	out.Counter(peersMessages, s.Messages, "applied")
	out.Counter(peersMessages, s.Old, "old")
	out.Counter(peersMessages, s.Lost, "lost")
	out.Counter(peersMessages, s.Refused, "refused")
	out.Counter(peersPrompts, s.Prompts, "received")
	out.Counter(peersPrompts, r.outbox.Dropped(), "dropped")
	out.Counter(peersMismatches, s.DigestMismatches)
	out.Counter(peersExpired, s.Expired)
}
