package route

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/pick"
)

// Stats are the router's counters. They hold sums and no ratios: OverlapBlocks over Blocks is a hit rate
// weighted by blocks, which a mean of ratios is not.
type Stats struct {
	Picked, Refused uint64
	// PromptTokens, CachedTokens, Blocks and OverlapBlocks are sums over picked requests.
	PromptTokens, CachedTokens, Blocks, OverlapBlocks uint64
	// ModelNotFound, NoReadyWorker, Busy and BadRequest count refused requests by their reason. Busy
	// includes requests that waited too long or would have missed their deadline.
	ModelNotFound, NoReadyWorker, Busy, BadRequest uint64
	// Stopped counts refused requests whose client left while they were decided.
	Stopped uint64
	// Unread counts the requests that were routed without their prompt, by the reason.
	Unread [openai.NumWhys]uint64
	// Queued counts requests that had to wait, and Cancelled the ones whose client left before their turn. Waiting
	// counts the requests that wait now.
	Queued, Cancelled uint64
	Waiting           int
	Bookings          pick.Stats
	// HeldBack counts how often a worker became half-open because it did not serve requests in a row.
	HeldBack uint64
	// Unpromised counts picked requests whose prediction cannot be taken back, because too many were in flight.
	Unpromised uint64
}

// Stats returns the counters now.
func (r *Router) Stats() Stats {
	c := &r.counts
	_, lost := r.predictor.Promised()
	s := Stats{
		Picked: c.picked.Load(), Refused: c.refused.Load(),
		PromptTokens: c.promptTokens.Load(), CachedTokens: c.cached.Load(),
		Blocks: c.blocks.Load(), OverlapBlocks: c.overlap.Load(),
		ModelNotFound: c.notFound.Load(), NoReadyWorker: c.unready.Load(), BadRequest: c.bad.Load(),
		Stopped: c.stopped.Load(),
		Busy:    c.busy.Load(), Queued: c.queued.Load(), Cancelled: c.cancelled.Load(), Waiting: int(r.queues.len.Load()),
		Bookings: r.bookings.Stats(), HeldBack: c.heldBack.Load(), Unpromised: lost,
	}
	for why := range s.Unread {
		s.Unread[why] = c.unread[why].Load()
	}
	return s
}

// Speeds returns the learned speeds, per class of workers.
func (r *Router) Speeds() map[learned.WorkerClass]perfmodel.Speed { return r.speeds.All() }

// Transfers returns the learned times of transfers of KV caches at a moment, per class of workers, by the level of the place that both
// workers share.
func (r *Router) Transfers(now time.Time) map[learned.WorkerClass][fleet.Levels]perfmodel.Line {
	return r.speeds.Transfers(now)
}

// RankPace is the learned pace of one rank.
type RankPace struct {
	Worker string
	Rank   int
	Class  learned.WorkerClass
	fleet.PaceStats
}

// Paces returns the learned pace of each rank, by the names of workers.
func (r *Router) Paces(now time.Time) []RankPace {
	ranks := r.fleet.Snapshot().Ranks
	list := make([]RankPace, len(ranks))
	for i := range ranks {
		w := ranks[i].Worker
		list[i] = RankPace{w.Name, ranks[i].Number, learned.ClassOf(w), ranks[i].Load.PaceStats(now)}
	}
	return list
}

// QueueStats counts the waiting requests in one class of one pool's queue.
type QueueStats struct {
	Pool, Class                    string
	Requests, Tokens, CachedTokens int
}

// Queues returns the counts of every class now.
func (r *Router) Queues() []QueueStats {
	var list []QueueStats
	for _, w := range r.queues.all() {
		w.mu.Lock()
		for _, c := range w.queue.Stats() {
			list = append(list, QueueStats{Pool: w.pool, Class: c.Name, Requests: c.Requests, Tokens: c.Tokens,
				CachedTokens: c.CachedTokens})
		}
		w.mu.Unlock()
	}
	return list
}
