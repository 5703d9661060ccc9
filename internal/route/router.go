package route

import (
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/fleet"
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
// Locks, in the order in which they may be held together: a waiting's mu, then the workspaces' mu. The mu of queues is held
// with a waiting's mu below it, and by SetModels only.
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
	queues     queues
}

// New returns a router that serves no model until SetModels.
func New(cfg Config, f *fleet.Fleet, x *kvindex.Index) *Router {
	cfg = cfg.withDefaults()
	speeds, predictor := learned.NewSpeeds(cfg.Speeds), predict.New(x, cfg.PredictFor, cfg.Predicted)
	r := &Router{
		cfg: cfg, fleet: f, index: x, recent: decision.NewRecent(cfg.Decisions),
		finder: eligible.NewFinder(f, speeds), judge: score.NewJudge(x, cfg.Outside, speeds, cfg.Others), predictor: predictor,
		speeds: speeds, transfers: learned.NewTransfers(speeds), breaks: breaks.New(cfg.Seed),
	}
	r.ids.init(cfg.Replica, cfg.Seed)
	r.workspaces.init(cfg.Seed)
	r.bookings = pick.NewBookings(pick.BookingsConfig{
		Served: cfg.Served, Prefilled: speeds.ObservePrefill, Gone: predictor.Forget,
	})
	r.models.Store(&map[string]*serving.Model{})
	r.queues.init()
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

// Bookings returns the number of requests that are booked and have not ended.
func (r *Router) Bookings() int { return r.bookings.Len() }

// Breaks returns the places in prompts that keep caches from being hit, the most expensive first.
func (r *Router) Breaks(now time.Time) []breaks.Place { return r.breaks.Found(now) }

// Explain returns a recent decision by its id.
func (r *Router) Explain(id string) (*decision.Decision, bool) { return r.recent.Find(id) }

// Recent returns up to n decisions, newest first.
func (r *Router) Recent(n int) []*decision.Decision { return r.recent.Newest(n) }
