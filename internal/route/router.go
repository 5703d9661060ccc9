package route

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route/breaks"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/eligible"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/predict"
	"github.com/stator-project/stator/internal/route/score"
	"github.com/stator-project/stator/internal/route/serving"
)

// Router decides. Create it with [New], then call SetModels.
//
// Locks, in the order in which they may be held together: a waiting's mu, then the workspaces' mu. queuesMu is held with
// a waiting's mu below it, and by SetModels only.
type Router struct {
	cfg      Config
	fleet    *fleet.Fleet
	index    *kvindex.Index
	models   atomic.Pointer[map[string]*serving.Model] // the map never changes once stored
	bookings *pick.Bookings
	recent   *decision.Recent
	counts   counts
	ids      ids

	finder     *eligible.Finder
	judge      *score.Judge
	predictor  *predict.Predictor
	speeds     *learned.Speeds
	transfers  *learned.Transfers
	places     learned.Places
	breaks     *breaks.Watch
	workspaces workspaces

	queues   atomic.Pointer[[]*waiting] // the slice never changes once stored
	queuesMu sync.Mutex                 // held to store queues
	queued   atomic.Int64               // requests that wait, in all queues
}

// New returns a router that serves no model until SetModels.
func New(cfg Config, f *fleet.Fleet, x *kvindex.Index) *Router {
	cfg = cfg.withDefaults()
	speeds, predictor := learned.NewSpeeds(cfg.Speeds), predict.New(x, cfg.PredictFor)
	r := &Router{
		cfg: cfg, fleet: f, index: x, recent: decision.NewRecent(cfg.Decisions),
		finder: eligible.NewFinder(f, speeds), judge: score.NewJudge(x, cfg.Outside, speeds, cfg.Others), predictor: predictor,
		speeds: speeds, transfers: learned.NewTransfers(speeds), breaks: breaks.New(cfg.Seed),
	}
	r.ids.init(cfg)
	r.workspaces.init(cfg.Seed)
	r.bookings = pick.NewBookings(pick.BookingsConfig{
		Served: cfg.Served, Prefilled: speeds.ObservePrefill, Gone: predictor.Forget,
	})
	r.models.Store(&map[string]*serving.Model{})
	r.queues.Store(&[]*waiting{})
	return r
}

// NewID returns a fresh decision id, for a caller that must name the decision before it is made: see Request.ID.
func (r *Router) NewID() string { return r.ids.next() }

// IDFor returns the decision id for a request of one Envoy that has this request id: always the same one of this router, and
// one that clients cannot guess. It serves if Envoy may lose the id of a decision. Two requests may have the same request
// id, so look at [Router.IsBooked] first.
func (r *Router) IDFor(source, requestID string) string { return r.ids.of(source, requestID) }

// IsBooked reports whether a decision has a booking that has not ended.
func (r *Router) IsBooked(id string) bool {
	_, ok := r.bookings.Get(id)
	return ok
}

// Booking returns the booking of a decision. False means that it has ended, or that there was none.
func (r *Router) Booking(id string) (pick.Booking, bool) { return r.bookings.Get(id) }

// End ends the booking of a decision, because its request is over, however it ended. False means that
// there is no such booking (any more).
func (r *Router) End(id string, now time.Time) bool {
	_, ok := r.Ended(Ending{ID: id}, now)
	return ok
}

// PrefillDone ends the prefill of a decision's request, because its answer has begun. False means that it
// had ended already, or that there is no such booking.
func (r *Router) PrefillDone(id string, now time.Time) bool {
	done := r.bookings.PrefillDone(id, now)
	if done {
		r.Wake(now)
	}
	return done
}

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

// EndBefore ends the bookings of one Envoy that began before t, and returns their number: for an Envoy whose
// access-log stream has stayed closed.
func (r *Router) EndBefore(source string, t time.Time) int {
	source = decision.Label(source)
	return r.bookings.EndBefore(func(k *pick.Booking) bool { return k.Caller.Value().Source == source }, t)
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

// RankState returns the state of a worker, which is down if the rank is; present is false if it has left the fleet, or has another address
// now. Changed is closed at the next change of the fleet.
func (r *Router) RankState(worker string, number int, address string) (state fleet.State, present bool, changed <-chan struct{}) {
	changed = r.fleet.Changed() // before the snapshot, so that no change is missed
	rank, ok := r.fleet.Snapshot().Rank(worker, number)
	if !ok || rank.Worker.Address != address {
		return fleet.Down, false, changed
	}
	if rank.Load.HealthView().State == fleet.HealthDown {
		return fleet.Down, true, changed
	}
	return rank.Worker.State, true, changed
}

// Doubt records that a rank of a worker at an address has sent nothing in the middle of an answer for longer than it ever does.
func (r *Router) Doubt(worker string, number int, address string, now time.Time) {
	rank, ok := r.fleet.Snapshot().Rank(worker, number)
	if ok && rank.Worker.Address == address {
		rank.Load.ObserveOverdue(now)
	}
}

// RankGone ends all bookings on a rank whose epoch is over. It is safe to call from the
// fleet's hook of that name.
func (r *Router) RankGone(rank fleet.RankID) int {
	r.finder.Forget(rank)
	r.judge.Forget(rank)
	return r.bookings.EndIf(pick.RankGone, func(_ string, k *pick.Booking) bool { return k.Rank.ID == rank })
}

// Bookings returns the number of requests that are booked and have not ended.
func (r *Router) Bookings() int { return r.bookings.Len() }

// Breaks returns the places in prompts that keep caches from being hit, the most expensive first.
func (r *Router) Breaks(now time.Time) []breaks.Place { return r.breaks.Found(now) }

// Explain returns a recent decision by its id.
func (r *Router) Explain(id string) (*decision.Decision, bool) { return r.recent.Find(id) }

// Recent returns up to n decisions, newest first.
func (r *Router) Recent(n int) []*decision.Decision { return r.recent.Newest(n) }
