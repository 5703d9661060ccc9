package route

import (
	"sync/atomic"

	"github.com/stator-project/stator/internal/route/pick"
)

// counts are kept in the router so that decisions need no metrics library.
type counts struct {
	picked, refused                       atomic.Uint64
	promptTokens, cached, blocks, overlap atomic.Uint64
	notFound, unready, busy, bad          atomic.Uint64
	queued, left                          atomic.Uint64
}

func (c *counts) add(d *Decision) {
	switch d.Outcome {
	case Picked:
		c.picked.Add(1)
		c.promptTokens.Add(uint64(d.PromptTokens))
		c.cached.Add(uint64(d.Cached))
		c.blocks.Add(uint64(d.Blocks))
		c.overlap.Add(uint64(d.Overlap))
		return
	case Queued:
		c.queued.Add(1)
		return
	}
	c.refused.Add(1)
	switch d.Reason {
	case ModelNotFound:
		c.notFound.Add(1)
	case NoReadyWorker:
		c.unready.Add(1)
	case Overloaded, PinnedBusy, QueueFull, DeadlineMissed, WaitedTooLong:
		c.busy.Add(1)
	default:
		c.bad.Add(1)
	}
}

// Stats are the router's counters. Ratios are the reader's to make: overlap over blocks is
// a hit rate weighted by blocks, which a mean of ratios is not.
type Stats struct {
	Picked, Refused uint64
	// PromptTokens, CachedTokens, Blocks and OverlapBlocks are sums over picked requests.
	PromptTokens, CachedTokens, Blocks, OverlapBlocks uint64
	// ModelNotFound, NoReadyWorker, Busy and BadRequest say why requests were refused.
	ModelNotFound, NoReadyWorker, Busy, BadRequest uint64
	// Queued counts requests that had to wait, and Left those of them that left before their turn;
	// Waiting are those that wait now.
	Queued, Left uint64
	Waiting      int
	Bookings     BookingStats
}

// Stats returns the counters now.
func (r *Router) Stats() Stats {
	c := &r.counts
	return Stats{
		Picked: c.picked.Load(), Refused: c.refused.Load(),
		PromptTokens: c.promptTokens.Load(), CachedTokens: c.cached.Load(),
		Blocks: c.blocks.Load(), OverlapBlocks: c.overlap.Load(),
		ModelNotFound: c.notFound.Load(), NoReadyWorker: c.unready.Load(), BadRequest: c.bad.Load(),
		Busy: c.busy.Load(), Queued: c.queued.Load(), Left: c.left.Load(), Waiting: int(r.queued.Load()),
		Bookings: r.bookings.Stats(),
	}
}

// What callers need of package pick, so that those above import one package.
type (
	BookingStats  = pick.Stats
	BookingReason = pick.Reason
)
