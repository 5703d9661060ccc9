package route

import (
	"sync/atomic"

	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/decision"
)

// counts are the counters of Stats. They are kept here so that decisions need no metrics library.
type counts struct {
	picked, refused                       atomic.Uint64
	promptTokens, cached, blocks, overlap atomic.Uint64
	notFound, unready, busy, bad          atomic.Uint64
	queued, cancelled, stopped, heldBack  atomic.Uint64
	unread                                [openai.NumWhys]atomic.Uint64
}

// countDecision counts a decision. A request that waits is counted twice: as queued when it comes, and as picked or
// refused when it goes.
func (c *counts) countDecision(d *decision.Decision) {
	switch d.Outcome {
	case decision.Picked:
		c.picked.Add(1)
		c.promptTokens.Add(uint64(d.PromptTokens))
		c.cached.Add(uint64(d.Cached))
		c.blocks.Add(uint64(d.Blocks))
		c.overlap.Add(uint64(d.Overlap))
		return
	case decision.Queued:
		c.queued.Add(1)
		return
	}

	c.refused.Add(1)
	switch d.Reason {
	case decision.ReasonModelNotFound:
		c.notFound.Add(1)
	case decision.ReasonCancelled:
		c.stopped.Add(1)
	case decision.ReasonNoReadyWorker:
		c.unready.Add(1)
	case decision.ReasonBusy, decision.ReasonPinnedBusy, decision.ReasonQueueFull, decision.ReasonDeadline, decision.ReasonWaitedTooLong:
		c.busy.Add(1)
	default:
		c.bad.Add(1)
	}
}
