package route

import (
	"time"

	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/request"
)

// Decide picks a rank for req, and books req there. If it returns Queued, the final decision comes through Request.Ready. It
// never waits and never returns nil. Every Picked decision must be followed by one End, and every Queued one by a call of
// Ready, by Cancel or by Expire.
func (r *Router) Decide(req *request.Request, now time.Time) *decision.Decision {
	return r.DecideInto(new(decision.Decision), req, now)
}

// DecideInto is Decide for a caller that uses a decision again. It overwrites d and its slices. It returns d, or another
// decision for a request whose turn in the queue came at once. It allocates nothing if the request has an ID, its body is
// parsed, and its prompt was seen before.
func (r *Router) DecideInto(d *decision.Decision, req *request.Request, now time.Time) *decision.Decision {
	w := r.workspaces.acquire()
	defer r.workspaces.release(w)

	// Only the memory of the slices is used again. Everything else of the last decision must go.
	*d = decision.Decision{
		ID: req.ID, At: now, Client: decision.Client{
			Session: decision.Label(req.Session), Source: decision.Label(req.Source), Account: decision.Label(req.Tenant),
		},
		Candidates: d.Candidates[:0], Placement: decision.Placement{Others: d.Others[:0]},
	}
	if d.ID == "" {
		d.ID = r.NewID()
	}

	req.Ticket = nil
	final := r.decide(w, req, d)
	req.Keep(&w.asked, d)
	if final != d {
		return final // it went through the queue without waiting, and is finished already
	}
	r.finish(d, w.asked.Chain[:d.Blocks])
	return d
}

// decide reads the request and attempts to book it, or puts it into the queue. It returns d, or the
// final decision of a request whose turn in the queue came at once.
func (r *Router) decide(w *workspace, req *request.Request, d *decision.Decision) *decision.Decision {
	q := &w.asked
	var refused *decision.Refusal
	if k := r.kept(req); k != nil {
		refused = q.Reuse(req, k, d)
		q.Session = learned.SessionHash(r.cfg.Seed, d.Session)
	} else {
		refused = r.readPrompt(w, q, req, d)
	}
	if refused == nil {
		refused = r.attempt(w, q, d)
		if refused == nil {
			return d
		}
		var final *decision.Decision
		switch {
		case !q.MayWait:
		case refused == queueOccupied, refused.IsBusy() && q.Model.MaxWait > 0:
			final, refused = r.enqueue(w, q, req, d, refused == queueOccupied)
		case refused.Reason == decision.ReasonNoReadyWorker && q.Model.Hold > 0:
			final, refused = r.hold(q, req, d, refused)
		}
		if refused == nil {
			return final
		}
	}

	if q.Dry {
		d.Refuse(refused)
		return d
	}
	r.refuse(d, q.Model, refused)
	return d
}

// dryID is the id of decisions that were made for no request.
const dryID = "dry-run"

// DryRun returns the decision that Decide would make about req now, with all candidates. It books, counts and learns nothing; only the
// policy round-robin counts it as a turn. A request that would have to wait is refused as busy. req must have no Ready.
func (r *Router) DryRun(req *request.Request, now time.Time) *decision.Decision {
	w := r.workspaces.acquire()
	defer r.workspaces.release(w)
	dry := *req
	dry.Dry = true
	return r.decide(w, &dry, &decision.Decision{ID: dryID, At: now, Client: decision.Client{Session: decision.Label(req.Session)}})
}
