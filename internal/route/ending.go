package route

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/predict"
)

// Ending describes the end of a request, as Envoy's access log reports it.
type Ending struct {
	// ID is the decision's.
	ID string
	// Served is the address of the worker whose response the client received; empty if no worker answered.
	Served string
	// Failed means that the client received no good answer from a worker: Envoy reached none, or the response
	// was a server error or was cut off.
	Failed bool
	// Refused means that the worker found fault with the request and computed nothing of it.
	Refused bool
	// Tried is the address of the worker that was tried last, if no worker answered; empty if it is not known.
	Tried string
	// CutOff means that the worker's side ended the response early. Left means that the client left before the first
	// byte of a response.
	CutOff, Left bool
	// Speculative means that the request was a speculative prefill: see [Router.Speculate]. Left means then that it was stopped.
	Speculative bool
}

// Ended ends the booking of a decision whose request is over, and returns it. False means that there is no such booking (any more). The
// caches are corrected by the ending of the request:
//
//	served by          failed   reason     predictions
//	the picked worker  no       Finished   stay
//	any, refused       no       Finished   are taken back
//	the picked worker  yes      Failed     stay: the prompt may have been computed
//	another            no       Moved      move to that worker
//	another            yes      Failed     are taken back
//	none               yes      Failed     are taken back
//	none               no       Finished   stay: it is not known who served it; taken back if the client left
//	                                       and the worker is in doubt
//	speculative, stopped        Stopped    are taken back: the worker may have computed a part of it
//
// The ending is evidence of the health of the workers: see [fleet.Health]. A request that its client cancelled has not failed, but its
// worker is in doubt if the client has waited for longer than the worker should have needed.
func (r *Router) Ended(e Ending, now time.Time) (ended pick.Booking, ok bool) {
	if !e.Failed {
		r.settleOne(e.ID, now)
	}
	made := r.predictor.Take(e.ID) // before the booking, whose end drops it
	k, ok := r.bookings.EndAs(e.ID, e.reason)
	if ok {
		r.endProgramStep(&k, made, now)
		if e.reason(k.Rank) == pick.Finished && !e.Refused && !e.Left && !e.Speculative {
			r.learnAnswer(&k, made, now)
		}
		r.correct(&e, &k, made, now)
		r.Wake(now)
	}
	r.predictor.Recycle(e.ID, made)
	return k, ok
}

// End ends the booking of a decision, because its request is over, however it ended. False means that
// there is no such booking (any more).
func (r *Router) End(id string, now time.Time) bool {
	_, ok := r.Ended(Ending{ID: id}, now)
	return ok
}

// EndBefore ends the bookings of one Envoy that began before t, and returns their number: for an Envoy whose
// access-log stream has stayed closed.
func (r *Router) EndBefore(source string, t time.Time) int {
	source = decision.Label(source)
	return r.bookings.EndBefore(func(k *pick.Booking) bool { return k.Caller.Value().Source == source }, t)
}

// RankGone ends all bookings on a rank whose epoch is over. It is safe to call from the
// fleet's hook of that name.
func (r *Router) RankGone(rank fleet.RankID) int {
	r.finder.Forget(rank)
	r.judge.Forget(rank)
	return r.bookings.EndIf(pick.RankGone, func(_ string, k *pick.Booking) bool { return k.Rank.ID == rank })
}

// learnAnswer learns the length of the answer of a request that was served.
func (r *Router) learnAnswer(k *pick.Booking, made *predict.Promise, now time.Time) {
	session := uint64(0)
	if made != nil {
		session = made.Session
	}
	r.speeds.ObserveAnswer(k, session, k.Rank.Load.Gap(now, fleet.MaxReportAge), now)
}

// reason returns the cause for which the booking on a rank ends.
func (e *Ending) reason(rank fleet.Rank) pick.Reason {
	switch {
	case e.Failed:
		return pick.Failed
	case e.isStopped():
		return pick.Stopped
	case e.Refused || e.Served == "" || e.Served == rank.Worker.Address:
		return pick.Finished
	default:
		return pick.Moved
	}
}

// isStopped reports whether the router has stopped the request.
func (e *Ending) isStopped() bool { return e.Speculative && e.Left }

// correct takes back the prediction of a request that its rank did not serve, and predicts its blocks on the rank that served it. made is
// nil for a request without a prediction.
func (r *Router) correct(e *Ending, k *pick.Booking, made *predict.Promise, now time.Time) {
	load := k.Rank.Load
	switch {
	case e.isStopped():
		r.predictor.Withdraw(k.Rank, made)
		return
	case e.Served == k.Rank.Worker.Address && !e.Failed:
		load.ObserveServed(now)
		if e.Refused {
			r.predictor.Withdraw(k.Rank, made)
		}
		return
	case e.Served == k.Rank.Worker.Address:
		if e.CutOff {
			load.ObserveCutOff(now)
		} else {
			load.ObserveServerError(now)
		}
		return
	case e.Served == "" && !e.Failed:
		r.left(e, k, made, now)
		return
	}

	if r.isForeign(e.Served) || r.isForeign(e.Tried) {
		r.predictor.Withdraw(k.Rank, made) // the relay has sent the request to workers, and has reported how that went
		return
	}
	r.unserved(load, now)
	if e.Failed && e.Served == "" && e.Tried != k.Rank.Worker.Address {
		// The retry has failed, too.
		if tried, ok := rankAt(r.fleet.Snapshot(), k.Rank, e.Tried); ok {
			r.unserved(tried.Load, now)
		}
	}
	r.predictor.Withdraw(k.Rank, made)
	if e.Failed {
		return
	}

	served, ok := rankAt(r.fleet.Snapshot(), k.Rank, e.Served)
	if !ok {
		return
	}
	served.Load.ObserveServed(now)
	if !e.Refused && served.Worker.TokensPerBlock() == k.Rank.Worker.TokensPerBlock() { // else its blocks are others
		r.predictor.Move(made, served, now)
	}
	if r.cfg.Served != nil {
		r.cfg.Served(served, k.At, pick.Tokens{Prompt: k.Prompt})
	}
}

// isForeign reports whether an address belongs to no worker.
func (r *Router) isForeign(address string) bool {
	if address == "" {
		return false
	}
	for _, rank := range r.fleet.Snapshot().Ranks {
		if rank.Worker.Address == address {
			return false
		}
	}
	return true
}

// left corrects the caches after a request whose client left before the response began. A worker that is in doubt may never
// have seen the prompt. One that is not may have computed it, and the client may ask again.
func (r *Router) left(e *Ending, k *pick.Booking, made *predict.Promise, now time.Time) {
	if !e.Left {
		return
	}
	if now.Sub(k.At) > overdueAfter(k) {
		k.Rank.Load.ObserveOverdue(now)
	}
	if k.Rank.Load.HealthView().State != fleet.HealthReady {
		r.predictor.Withdraw(k.Rank, made)
	}
}

// unserved records that a rank did not serve a request.
func (r *Router) unserved(load *fleet.Load, now time.Time) {
	if load.ObserveUnserved(now) {
		r.counts.heldBack.Add(1)
	}
}

// rankAt returns the rank that an attempt at an address has reached, in the pool and role of the picked rank. A worker with several
// ranks has one address, and the request names the number of the picked rank. It names none if the picked worker has one rank; then
// it is not known which rank was reached.
func rankAt(snap *fleet.Snapshot, picked fleet.Rank, address string) (rank fleet.Rank, ok bool) {
	for _, rank := range snap.Pool(picked.Worker.Model, picked.Worker.Role) {
		if address == "" || rank.Worker.Address != address {
			continue
		}
		if rank.Worker.Ranks == 1 {
			return rank, true
		}
		if picked.Worker.Ranks > 1 && rank.Number == picked.Number {
			return rank, true
		}
	}
	return fleet.Rank{}, false
}
