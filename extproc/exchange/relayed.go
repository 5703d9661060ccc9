package exchange

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/stator-project/stator/extproc/migrate"
	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/pick"
)

// A request whose decision is split may come to the relay, by Envoy's choice of its address:
//
//	transfers         when                                                   the relay sends
//	p2p, bootstrap    at once: it is the picked address                      both requests, to the picked decode worker
//	nixl, context     after the decode worker has failed before its answer:  both again, to another decode worker
//	                    it is the next address
//
// If there is no other decode worker, one that has failed gets the client's body, and computes the prompt: it may have failed
// because it could not fetch the prompt from the prefill worker. For the same reason the next worker computes the prompt after one
// that has answered with an error.
//
// A body may end an engine, so that it goes to no third worker after two have broken: they had received it, and their connection
// broke or they answered with an error. SGLang's decode workers compute no prompts: without a leg to a prefill worker there is no
// attempt.
//
// The parameters of a transfer are never used a second time. A decode worker frees the blocks at the prefill worker when it has fetched
// them, and no one learns whether it had done so before it died; another decode worker would read the present content of these blocks.

// relay is the part of a service for the requests that come to the relay.
type relay struct {
	address string // as Envoys reach it; empty for none
	// The budgets of bodies, and of the token ids and the events of streams.
	bodies, streams Budget
	// plans are the latest decisions whose requests may come to the relay. lastBookings are of the last attempts of the relay's latest
	// requests, by the ids of their first decisions.
	plans        latest[*plan]
	lastBookings latest[pick.Booking]
}

// plan is a decision whose request may come to the relay.
type plan struct {
	decision  decision.Decision // without slices
	relayed   bool              // the relay sends the first requests; otherwise the picked worker has failed
	broke     []string          // prefill workers that the body has broken
	migration Migration
}

// newPlan returns the plan of a decision.
func newPlan(d *decision.Decision, relayed bool, broke []string, m Migration) *plan {
	kept := &plan{decision: *d, relayed: relayed, broke: broke, migration: m}
	kept.decision.Candidates, kept.decision.Others = nil, nil
	return kept
}

// Relayed is a request that the relay sends to workers. It belongs to one goroutine.
type Relayed struct {
	svc      *Service
	exchange Exchange
	body     []byte
	plan     *plan
	alive    bool // the picked worker accepts connections, although it has failed

	first   decision.Client  // of the request's own decision
	model   string           // by that decision
	stream  *migrate.Request // of a stream that is continued; nil for others
	promise migrate.Promise  // empty for a request that is no stream, or whose model has no migration
	left    int              // how often the stream may still be continued

	tried    []string // decode workers that have failed
	prefills []string // prefill workers that have failed
	broke    []string // workers of both kinds that have failed after they had received the body, each once
	answered bool     // one of them has answered with an error
	attempts int
}

// maxAttempts bounds how often the relay sends a request. The last attempt has one worker.
const maxAttempts = 3

// Relay begins a request that has come to the relay: its method and path, the id of its decision and of the request, and its body.
// ctx ends when the client leaves. The answer is set, and nothing else, for a request that goes to no worker.
func (s *Service) Relay(ctx context.Context, h Head, id string, body []byte) (*Relayed, *Answer) {
	r := &Relayed{svc: s, exchange: s.Begin(Origin{Context: ctx})}
	r.plan, _ = s.relay.plans.take(id)
	x := &r.exchange
	x.head = h
	x.target = s.Settings().classify(http.MethodPost, h.Path)
	x.booking = id
	if x.target.local != nil || !x.target.splits {
		return nil, refusal(&openai.Error{Status: http.StatusNotFound, Type: openai.InvalidRequest, Code: "unknown_url",
			Message: "The relay has no such path: " + clip(h.Method+" "+h.Path) + "."}, "unknown_path")
	}
	if h.Method != http.MethodPost {
		return nil, notPost(h.Method)
	}

	clean, err := x.open(body)
	if err != nil {
		return nil, refusal(err, string(decision.ReasonBadRequest))
	}
	r.body = body
	if clean != nil {
		r.body = clean
	}
	if r.plan != nil {
		r.broke = r.plan.broke
		r.first, r.model = r.plan.decision.Client, r.plan.decision.Model
		r.readPromise()
	}
	return r, nil
}

// endFailed ends the booking of the picked worker, which has failed. One that accepts connections may have failed to fetch the
// prompt, for which the prefill worker is to blame: that is no evidence of its own health.
func (r *Relayed) endFailed(d *decision.Decision, now time.Time) {
	r.tried = append(r.tried, d.Worker)
	r.hasBroken(d.Worker)
	if r.alive {
		r.answered = true
		r.svc.router.End(d.ID, now)
		return
	}
	r.svc.router.Ended(route.Ending{ID: d.ID, Tried: d.Address, Failed: true}, now)
}

// hasBroken records a worker that has failed after it had received the body.
func (r *Relayed) hasBroken(worker string) {
	if !slices.Contains(r.broke, worker) {
		r.broke = append(slices.Clip(r.broke), worker)
	}
}

// FailedAt returns the address of the picked worker if the request comes because that worker has failed; empty if it has not.
func (r *Relayed) FailedAt() string {
	if r.plan == nil || r.plan.relayed {
		return ""
	}
	return r.plan.decision.Address
}

// IsAlive records that the worker at FailedAt accepts connections. Its failure is then no evidence of its health.
func (r *Relayed) IsAlive() { r.alive = true }

// decide returns the decision of the next attempt: the request's own decision if it has not been tried, or another one.
func (r *Relayed) decide(now time.Time) (*decision.Decision, *Answer) {
	p := r.plan
	r.plan = nil
	switch {
	case p != nil && p.relayed:
		return &p.decision, nil
	case p != nil:
		r.endFailed(&p.decision, now)
	}
	if len(r.broke) >= prefill.MaxBroken {
		return nil, NoAnswer()
	}

	x := &r.exchange
	ask := x.prefillRequest(r.body)
	ask.ID = r.svc.router.NewID()
	ask.Splits = x.splits()
	ask.Local = r.attempts == maxAttempts-1 || r.answered
	ask.Except, ask.IgnoreBodyHints = r.tried, true
	ask.Session, ask.Source = r.first.Session, r.first.Source
	d := r.svc.router.Decide(&ask, now)
	if d.Outcome != decision.Picked && len(r.tried) > 0 {
		// There is no other worker. One that has failed may only have been unable to fetch the prompt, so it computes it.
		ask.ID = r.svc.router.NewID()
		ask.Local, ask.Except = true, nil
		d = r.svc.router.Decide(&ask, now)
	}
	if d.Outcome == decision.Picked {
		return d, nil
	}
	return nil, refused(d)
}

// Answered records that the answer to a request, by the id of its decision, has ended regularly: with tokens, or without any.
func (s *Service) Answered(id string, isEmpty bool, now time.Time) {
	s.prefills.Answered(id, isEmpty, now)
}

// LastBooking returns once the booking of the worker to which the relay has sent a request last, by the id of its first decision.
func (s *Service) LastBooking(id string) (pick.Booking, bool) { return s.relay.lastBookings.take(id) }
