package exchange

import (
	"context"
	"time"

	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/handoff"
	"github.com/stator-project/stator/internal/route/request"
)

// Prefills has prefill workers compute prompts. A *prefill.Sender is one.
type Prefills interface {
	// Compute returns the body for the decode worker, and the tokens of the prompt that were in the prefill worker's cache.
	Compute(ctx context.Context, r *prefill.Request) (body []byte, cached int)
	// Name books a prefill worker for the sidecar of the decode worker, and returns its address; empty for none.
	Name(ctx context.Context, r *prefill.Request) (address string)
	// Begin sends the request to a prefill worker without waiting for its answer.
	Begin(ctx context.Context, r *prefill.Request) (leg *prefill.Leg, body []byte)
	// Answered records that the answer to a request has ended regularly: with tokens, or without any.
	Answered(id string, isEmpty bool, now time.Time)
	// Count counts a prompt that goes to no prefill worker.
	Count(o prefill.Outcome)
	Close()
}

// shapes are the paths whose prompts prefill workers can compute, without a slash at the end.
var shapes = map[string]handoff.Endpoint{
	"/v1/chat/completions":   handoff.Chat,
	"/v1/completions":        handoff.Completions,
	"/v1/responses":          handoff.Responses,
	"/v1/messages":           handoff.Messages,
	"/inference/v1/generate": handoff.Generate,
}

// splits reports whether engines can compute the prompt of the body, even if it is not read, on one worker, and decode on another.
func (x *Exchange) splits() bool {
	if x.target.known {
		return x.target.endpoint == prompt.Messages || x.target.endpoint == prompt.Responses
	}
	return x.target.splits && x.envelope != nil && x.envelope.IsSingle
}

// isRelayed reports whether the request of a picked worker goes to the relay: if both workers need their requests at
// once, the relay sends both, because it can stop one of them when the other one fails. It also reads streams that it may continue, and
// answers after which the next turn is computed.
func (x *Exchange) isRelayed(d *decision.Decision) bool {
	return d.Split && handoff.IsConcurrent(d.Transfer) && !x.svc.Settings().Sidecars || x.migration(d).Limit > 0 ||
		x.speculates(d)
}

// prefilled is the result of prefill.
type prefilled struct {
	broke       []string // prefill workers that the body has broken
	transferred bool     // the decode worker's body has the members of a transfer
	cached      int      // tokens of the prompt that the prefill worker had; -1 if not known
	named       string   // the address of the prefill worker for a sidecar; empty for none
}

// prefill has a prefill worker compute the prompt of a picked request. It returns the body for the decode worker: the given one if no
// prefill worker has computed it. False means that the body has broken prefill workers, and must go to no other worker.
//
// Meanwhile the body counts in the budget of prefill workers. If that has no room, they are so slow that the
// decode worker computes the prompt.
func (x *Exchange) prefill(d *decision.Decision, body []byte) (decode []byte, ok bool) {
	s, size := x.svc, x.size
	if s.Settings().Sidecars {
		x.prefilled.named = s.prefills.Name(x.origin.Context, x.toPrefill(d, body))
		x.reading = request.Reading{}
		return body, true
	}
	if !s.bodies.lend(size, &s.prefilling) {
		s.prefills.Count(prefill.NoWorker)
		return body, true
	}
	defer func() { s.bodies.takeBack(size, &s.prefilling) }()

	ask := x.toPrefill(d, body)
	decode, x.prefilled.cached = s.prefills.Compute(x.origin.Context, ask)
	x.steps.End(request.Prefilled)
	x.prefilled.broke = ask.Broke
	x.prefilled.transferred = ask.Source != nil
	x.reading = request.Reading{} // it is not needed during the answer
	return decode, !ask.IsPoison()
}

// toPrefill returns the request to prefill workers, for a request whose decode worker is picked.
func (x *Exchange) toPrefill(d *decision.Decision, body []byte) *prefill.Request {
	return &prefill.Request{
		Decision: d, Ask: x.prefillRequest(body), Endpoint: x.target.shape, Path: x.target.path, Body: body,
		RequestID: x.requestID(), Authorization: x.head.Authorization, Traceparent: x.traceparent(),
	}
}

// prefillRequest returns the request by which prefill workers are chosen.
func (x *Exchange) prefillRequest(body []byte) request.Request {
	known := x.target.known
	r := request.Request{
		Endpoint: x.target.endpoint, Known: known, Body: body, Done: x.origin.Context.Done(), Reading: &x.reading,
		Workers: request.Workers{Only: x.head.Subset},
	}
	if !known {
		r.Model = x.model()
	}
	return r
}

// requestID returns the id that both engines receive: Envoy's, if Envoy has sent it, or else the decision's.
func (x *Exchange) requestID() string {
	if x.head.RequestID != "" {
		return x.head.RequestID
	}
	return x.booking
}
