package exchange

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/stator-project/stator/extproc/migrate"
	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/extproc/speculate"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/handoff"
	"github.com/stator-project/stator/internal/route/request"
)

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
		attempt.setBody(r.exchange.pulled(d, r.body, r.body))
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
		r.svc.relay.lastBookings.add(r.exchange.booking, k)
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
		a.relayed.svc.relay.lastBookings.add(a.relayed.exchange.booking, k)
	}
}

// Left ends an attempt whose client has left before the answer began.
func (a *Attempt) Left(now time.Time) {
	a.relayed.svc.router.Ended(route.Ending{ID: a.decision.ID, Left: true}, now)
}
