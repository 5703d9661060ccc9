package route

import (
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/request"
)

// HasTransfers reports whether a worker takes part in transfers of KV caches.
func (r *Router) HasTransfers() bool {
	return slices.ContainsFunc(r.fleet.Snapshot().Workers, func(w *fleet.Worker) bool {
		return w.Role != fleet.Aggregated || w.Transfer != fleet.NoTransfer
	})
}

// onward returns the transfer to the decode worker of a decision; the zero value if the worker's place is not known, or the decision has no
// booking (any more). Its tokens are those that the worker did not hold when it was picked: by now the index expects all of them there.
func (r *Router) onward(id string) (o request.Onward) {
	k, ok := r.bookings.Get(id)
	if place := r.placeOf(&k); ok && place.IsKnown() {
		return request.Onward{Worker: k.Rank.Worker.Name, Place: place, Tokens: max(0, int(k.Prompt-k.Cached))}
	}
	return o
}

// placeOf returns the place of a booking's worker.
func (r *Router) placeOf(k *pick.Booking) (p fleet.Place) {
	if k.Rank.Worker == nil {
		return p
	}
	return k.Rank.Worker.Place()
}

// sharedWith returns the level of the place that a booking's worker shares with another one.
func (r *Router) sharedWith(k *pick.Booking, worker string) fleet.Level {
	place := r.placeOf(k)
	other := r.fleet.Snapshot().Worker(worker)
	if other == nil {
		return fleet.Apart
	}
	there := other.Place()
	return place.Shared(&there)
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

// isFull reports whether a request that comes to a rank now waits until another one has ended.
func isFull(rank fleet.Rank, now time.Time) bool {
	v := rank.Load.View(now, rank.Worker.Figures.Requests.Value)
	return v.Queued || v.Slots > 0 && rank.Load.Booked().Requests+v.Untracked > int64(v.Slots)
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
