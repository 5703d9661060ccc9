package route

import (
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/pick"
)

// HasTransfers reports whether a worker takes part in transfers of KV caches.
func (r *Router) HasTransfers() bool {
	return slices.ContainsFunc(r.fleet.Snapshot().Workers, func(w *fleet.Worker) bool {
		return w.Role != fleet.Aggregated || w.Transfer != fleet.NoTransfer
	})
}

// Handed records that a prefill worker has computed the prompt of a decision that is Split, so that its transfer to the decode
// worker begins. False means that the decision has no booking (any more).
func (r *Router) Handed(d *decision.Decision, now time.Time) bool {
	k, ok := r.bookings.Handed(d.ID, now, r.transferTime)
	if !ok {
		return false
	}

	// If the rank holds the last block already, no event will show the transfer. If it computes prompts, the event
	// shows the time of these, too.
	tokens := int(k.Prompt - k.Cached)
	_, there := r.computedAt(k.Rank, d.Last, now)
	if d.Last != 0 && tokens > 0 && !there && !r.predictor.StandForCache(k.Rank) && !learned.ComputesPrompts(k.Rank) {
		r.transfers.Add(d.ID, learned.Transfer{Rank: k.Rank, Last: d.Last, Tokens: tokens, Since: now})
	}
	return true
}

// transferTime returns the expected duration of the transfer of a booking's prompt.
func (r *Router) transferTime(k *pick.Booking) time.Duration {
	return r.speeds.TransferTime(k.Rank.Worker, int(k.Prompt-k.Cached))
}

// settleTransfers learns from the transfers that have arrived. Events that are late do not show when.
func (r *Router) settleTransfers(now time.Time) {
	r.transfers.Settle(func(rank fleet.Rank, last uint64) (time.Time, bool) {
		if rank.Load.Lag() > maxEventLag {
			return time.Time{}, false
		}
		return r.computedAt(rank, last, now)
	}, now)
}
