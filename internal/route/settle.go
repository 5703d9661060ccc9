package route

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/pick"
)

// SettlePrefills ends the prefill of every booking whose prompt is computed by now, and
// returns their number. Call it every few milliseconds: responses are not watched, so cache
// events show when a prompt is computed.
//
// Some ranks publish no events, or late ones, and a prompt that is cached already gets none. There a
// prefill ends when it was expected to end, when a later request was served to its end, or when the engine's report shows that it must
// be over, and nothing is learned from it.
func (r *Router) SettlePrefills(now time.Time) int {
	n := r.bookings.Settle(func(k *pick.Booking) (pick.Progress, time.Time) {
		overdue := now.Sub(k.At) >= k.FirstToken.Duration()
		if ended, ok := r.computedAt(k.Rank, k.Last, now); ok {
			return pick.Computed, ended
		}
		unseen := k.Last == 0 || k.Rank.Load.Lag() > maxEventLag || r.predictor.StandForCache(k.Rank)
		if unseen && (overdue || k.Rank.Load.IsOvertaken(k.At) || k.Rank.Load.IsAdmitted(k.At, k.Amount.PrefillTime, now)) {
			return pick.Supposed, now
		}
		if overdue && now.Sub(k.At) > overdueAfter(k) {
			k.Rank.Load.ObserveOverdue(now)
		}
		return pick.Pending, now
	}, now)
	r.settleTransfers(now)
	r.Wake(now)
	return n
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

// settleOne learns from the prefill of a request that is about to end, if it is computed by now.
func (r *Router) settleOne(id string, now time.Time) {
	r.bookings.SettleOne(id, func(rank fleet.Rank, last uint64) (time.Time, bool) { return r.computedAt(rank, last, now) }, now)
}

// computedAt returns the time at which a prompt with the last block last was computed; ok is false if the rank's
// events have not shown it by now.
func (r *Router) computedAt(rank fleet.Rank, last uint64, now time.Time) (ended time.Time, ok bool) {
	if last == 0 || !r.index.IsReported(rank.ID, blockhash.Sequence(last)) {
		return time.Time{}, false
	}
	return now.Add(-rank.Load.Lag()), true
}

// maxEventLag bounds the delay of events that still show when a prompt was computed.
const maxEventLag = 50 * time.Millisecond

// overdueAfter returns the time after its decision at which a request's first token is overdue: overdueFactor times the
// expected time, and overdueSlack.
//
// The expectation is the wait for the prefills before it and its own prefill, by the line of the class and by the
// rank's observed pace. Lines were wrong by up to 91 % on short prompts under noise, and a pass of an engine that decodes
// many answers lasts longer than one that only prefills. The slack covers the time to the engine, and passes that are
// slow for a moment. A worker that is suspected too early costs one probe.
func overdueAfter(k *pick.Booking) time.Duration {
	return overdueFactor*k.FirstToken.Duration() + overdueSlack
}

const (
	overdueFactor = 4
	overdueSlack  = 2 * time.Second
)

// PrefillDone ends the prefill of a decision's request, because its answer has begun. False means that it
// had ended already, or that there is no such booking.
func (r *Router) PrefillDone(id string, now time.Time) bool {
	done := r.bookings.PrefillDone(id, now)
	if done {
		r.Wake(now)
	}
	return done
}

// ObserveReport takes over an engine's report of its load, and learns from it how long the engine's passes take. A
// report of an empty engine ends the bookings that are older than Config.Grace: their ends were missed. It returns
// the number of ended bookings.
func (r *Router) ObserveReport(rank fleet.Rank, report fleet.Report) (ended int) {
	interval := rank.Load.SetReport(report, rank.Worker)
	rank.Load.Health().ObserveAsleep(report.Asleep)
	if interval.Gaps > 0 {
		rank.Load.ObserveProgress(report.At)
	}
	r.speeds.ObserveInterval(rank, &interval, report.At)
	ended = r.bookings.Reconcile(rank, report.Running+report.Waiting, report.At, r.cfg.Grace)
	r.Wake(report.At)
	return ended
}
