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
func (r *Router) Handed(d *decision.Decision, prefill string, now time.Time) bool {
	level := fleet.Apart
	k, ok := r.bookings.Handed(d.ID, now, func(k *pick.Booking) time.Duration {
		level = r.sharedWith(k, prefill)
		return r.speeds.TransferTime(k.Rank.Worker, level, int(k.Prompt-k.Cached), now)
	})
	if !ok {
		return false
	}

	// If the rank holds the last block already, no event will show the transfer. If it computes prompts, or has no slot free, the event
	// shows the time of these prompts, or until a slot is free, too.
	tokens := int(k.Prompt - k.Cached)
	_, there := r.computedAt(k.Rank, d.Last, now)
	shows := d.Last != 0 && !there && !r.predictor.StandForCache(k.Rank) && !learned.ComputesPrompts(k.Rank) && !isFull(k.Rank, now)
	if shows && tokens > 0 {
		r.transfers.Add(d.ID, learned.Transfer{Rank: k.Rank, Last: d.Last, Tokens: tokens, Level: level, Since: now})
	}
	return true
}

// sharedWith returns the level of the place that a booking's worker shares with another one.
func (r *Router) sharedWith(k *pick.Booking, worker string) fleet.Level {
	other := r.fleet.Snapshot().Worker(worker)
	if other == nil {
		return fleet.Apart
	}
	here, there := k.Rank.Worker.Place(), other.Place()
	return here.Shared(&there)
}

// isFull reports whether a request that comes to a rank now waits until another one has ended.
func isFull(rank fleet.Rank, now time.Time) bool {
	v := rank.Load.View(now, rank.Worker.Slots())
	return v.Queued || v.Slots > 0 && v.Booked.Requests+v.Untracked > int64(v.Slots)
}
