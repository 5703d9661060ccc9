package exchange

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/stator-project/stator/extproc/migrate"
	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/extproc/speculate"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/handoff"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/request"
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

// maxPlans bounds the decisions that are kept for the relay, and the bookings of its requests. Of more at a time the oldest are forgotten:
// requests are decided once more, and answers are not counted.
const maxPlans = 1 << 14

// latest keeps the last maxPlans values, by their ids. It is safe for concurrent use.
type latest[V any] struct {
	mu   sync.Mutex
	byID map[string]V // guarded by mu
	ids  []string     // guarded by mu; a ring, in the order of add
	next int          // guarded by mu
}

// add keeps a value. It returns the value that lost its place to it; the zero value for none.
func (l *latest[V]) add(id string, v V) (old V) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID == nil {
		l.byID = map[string]V{}
		l.ids = make([]string, maxPlans)
	}
	old = l.byID[l.ids[l.next]]
	delete(l.byID, l.ids[l.next])
	l.ids[l.next] = id
	l.next = (l.next + 1) % maxPlans
	l.byID[id] = v
	return old
}

// take returns a value once. It is the zero value if there is none.
func (l *latest[V]) take(id string) (v V, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok = l.byID[id]
	delete(l.byID, id)
	return v, ok
}

// takeAll returns all values.
func (l *latest[V]) takeAll() []V {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Collect(maps.Values(l.byID))
	clear(l.byID)
	return all
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
	r.plan, _ = s.plans.take(id)
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

// Attempt is one attempt of the relay: a request to a decode worker.
type Attempt struct {
	Address string
	Body    *prefill.Body
	Set     []envoynames.Header
	// Leg is the request to the prefill worker beside it; nil for none. If it fails before the answer has begun,
	// the attempt is to be stopped.
	Leg *prefill.Leg
	// Source is the request to the prefill worker from which the prompt is fetched: Leg, or one that came before; nil for none. If the
	// prompt is lost there before the answer has begun, the attempt is to be stopped, too.
	Source *prefill.Leg

	// Stream is set if the stream of the answer may be continued.
	Stream *migrate.Request

	relayed  *Relayed
	decision *decision.Decision
}

// Next returns the next attempt, or the answer to the client if there is none. ctx ends when the client
// leaves, or the attempt has failed.
func (r *Relayed) Next(ctx context.Context, now time.Time) (*Attempt, *Answer) {
	d, a := r.decide(now)
	if a != nil {
		return nil, a
	}
	if !d.Split && d.Transfer == fleet.TransferBootstrap {
		r.svc.router.End(d.ID, now)
		return nil, NoAnswer()
	}
	r.attempts++
	attempt := r.newAttempt(d)
	if !d.Split {
		body := r.body
		if pulled := r.exchange.pulled(d, r.body, nil); pulled != nil {
			body = pulled
		}
		attempt.setBody(body)
		return attempt, nil
	}

	ask := r.exchange.toPrefill(d, r.body)
	ask.Tried = slices.Clone(r.prefills)
	if !handoff.IsConcurrent(d.Transfer) {
		ask.Broke = r.broke
		body, _ := r.svc.prefills.Compute(ctx, ask)
		attempt.setBody(body)
		attempt.Source = ask.Source
		r.broke = ask.Broke
		if ask.IsPoison() {
			r.svc.router.End(d.ID, now)
			return nil, NoAnswer()
		}
		return attempt, nil
	}
	attempt.begin(ctx, ask)
	if attempt.Leg == nil && d.Transfer == fleet.TransferBootstrap {
		return r.again(ctx, attempt, ask, now)
	}
	return attempt, nil
}

// newAttempt returns an attempt at the worker of a decision, without its body.
func (r *Relayed) newAttempt(d *decision.Decision) *Attempt {
	// Envoy may report the end of the answer before Answered does.
	if k, ok := r.svc.router.Booking(d.ID); ok {
		r.svc.lastBookings.add(r.exchange.booking, k)
	}
	a := &Attempt{Address: d.Address, relayed: r, decision: d}
	if d.Ranks > 1 {
		a.Set = append(a.Set, envoynames.Header{Key: prefill.HeaderRank, Value: strconv.Itoa(d.Rank)})
	}
	if r.stream != nil && engines.Of(d.Engine).TokenIDs {
		a.Stream = r.stream
	}
	return a
}

// setBody sets the body of the attempt. That of a stream which may be continued asks for token ids.
func (a *Attempt) setBody(body []byte) {
	if a.Stream != nil {
		body = a.Stream.WithIDs(body)
	}
	a.Body = prefill.NewBody(body)
}

// begin begins the leg to a prefill worker, if there is one.
func (a *Attempt) begin(ctx context.Context, ask *prefill.Request) {
	leg, body := a.relayed.svc.prefills.Begin(ctx, ask)
	a.Leg, a.Source = leg, leg
	a.setBody(body)
}

// Begun records that the answer of the attempt has begun, with a status. No attempt follows, so that the body is not needed any more. The
// turn must get the answer as the client does, and is nil for most requests.
func (a *Attempt) Begun(status int, stream bool) *speculate.Turn {
	turn := a.relayed.beginTurn(status, stream)
	a.relayed.body = nil
	a.relayed.exchange.reading = request.Reading{}
	a.Body.Forget()
	if a.Leg != nil {
		a.Leg.Forget()
	}
	return turn
}

// again sends the request to a prefill worker that has failed, because there is no other one, and SGLang's decode workers compute
// no prompts.
func (r *Relayed) again(ctx context.Context, a *Attempt, ask *prefill.Request, now time.Time) (*Attempt, *Answer) {
	ask.Tried = nil
	a.begin(ctx, ask)
	if a.Leg != nil {
		return a, nil
	}
	r.svc.router.End(a.decision.ID, now)
	return nil, NoAnswer()
}

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

// MayRetry reports whether another worker may have a better answer than one with this status.
func (a *Attempt) MayRetry(status int) bool {
	others := slices.DeleteFunc(slices.Clone(a.relayed.broke), func(w string) bool { return w == a.decision.Worker })
	if a.Last() || len(others) >= prefill.MaxBroken-1 {
		return false
	}
	cannotFetch := a.Source != nil && a.decision.Transfer == fleet.TransferContext && status == http.StatusBadRequest
	return status >= http.StatusInternalServerError && status <= http.StatusGatewayTimeout || cannotFetch
}

// Last reports whether no attempt follows this one.
func (a *Attempt) Last() bool { return a.relayed.attempts == maxAttempts }

// PrefillFailed ends an attempt that was stopped because its prefill worker has failed. The request to the decode worker has ended
// with this error, because of that or by itself.
func (a *Attempt) PrefillFailed(err error, now time.Time) {
	a.relayed.prefills = append(a.relayed.prefills, a.Source.Worker())
	a.endLeg()
	if !errors.Is(err, context.Canceled) && prefill.HasReceived(err) {
		a.relayed.hasBroken(a.decision.Worker)
	}
	a.relayed.svc.router.End(a.decision.ID, now)
}

// endLeg waits for the end of the request to the prefill worker, which was stopped.
func (a *Attempt) endLeg() {
	if a.Leg == nil {
		return
	}
	<-a.Leg.Done()
	if a.Leg.Broke() {
		a.relayed.hasBroken(a.Leg.Worker())
	}
}

// ErrStalled is the error of an attempt that was stopped because its worker is down and sent nothing. The request has not ended the worker.
var ErrStalled = errors.New("the worker is down, and its connection is silent")

// Failed ends an attempt whose decode worker has failed before its answer began: with this error, or nil for an answer that is an
// error. The context of Next has ended.
func (a *Attempt) Failed(err error, now time.Time) {
	a.endLeg()
	if err == nil || prefill.HasReceived(err) && !errors.Is(err, ErrStalled) {
		a.relayed.hasBroken(a.decision.Worker)
	}
	a.relayed.answered = a.relayed.answered || err == nil
	a.relayed.tried = append(a.relayed.tried, a.decision.Worker)
	a.relayed.svc.router.Ended(route.Ending{ID: a.decision.ID, Tried: a.decision.Address, Failed: true}, now)
}

// Answered ends an attempt whose answer was sent to the client: with its status, and whether it broke off.
func (a *Attempt) Answered(status int, cutOff bool, now time.Time) {
	k, ok := a.relayed.svc.router.Ended(route.Ending{
		ID: a.decision.ID, Served: a.decision.Address, CutOff: cutOff,
		Failed: cutOff || status >= http.StatusInternalServerError, Refused: status >= 400 && status < 500,
	}, now)
	if ok { // others may have taken its place since the answer began
		a.relayed.svc.lastBookings.add(a.relayed.exchange.booking, k)
	}
}

// Answered records that the answer to a request, by the id of its decision, has ended regularly: with tokens, or without any.
func (s *Service) Answered(id string, isEmpty bool, now time.Time) {
	s.prefills.Answered(id, isEmpty, now)
}

// LastBooking returns once the booking of the worker to which the relay has sent a request last, by the id of its first decision.
func (s *Service) LastBooking(id string) (pick.Booking, bool) { return s.lastBookings.take(id) }

// Left ends an attempt whose client has left before the answer began.
func (a *Attempt) Left(now time.Time) {
	a.relayed.svc.router.Ended(route.Ending{ID: a.decision.ID, Left: true}, now)
}
