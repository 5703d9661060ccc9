package exchange

import (
	"net/http"
	"strconv"
	"time"

	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/extproc/spans"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/handoff"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/sessionid"
)

// Head holds the headers of a request that matter here.
type Head struct {
	Method, Path    string
	ContentEncoding string
	ContentLength   string
	Session         sessionid.Name // by a header
	Role, Tenant    string         // as Envoy's own authentication has set them
	Hints           []envoynames.Header
	// RequestID is the header x-request-id, if Envoy sends it. DerivedID is set if Envoy learns the id of the booking
	// with the pick only; see "No booking is lost".
	RequestID string
	DerivedID bool
	// Authorization is the header of that name, if Envoy sends it. Prefill workers get it, as the workers that answer do.
	Authorization string
	// Trace is the trace context of the header traceparent; the zero value is none.
	Trace spans.Context
	// Subset are the endpoints that may take the request, as [request.Request.Only].
	Subset []string
	// WithoutBody means that the request ends with its headers.
	WithoutBody bool
	// Unread is the reason why the body does not arrive before the request goes to a worker, with the setting to
	// change; empty if it arrives.
	Unread string
	// Pieces means that the body arrives in pieces, and that Envoy keeps the headers until the decision.
	Pieces bool
}

// Phase is the event that comes next. The package comment has a table.
type Phase uint8

// The phases.
const (
	WantHeaders Phase = iota
	WantBody
	Following // the response
	Finished
)

// Exchange is the state of one request. Each event is a method that returns the reply. Create it with [Service.Begin].
type Exchange struct {
	svc    *Service
	origin Origin

	phase    Phase
	head     Head
	target   target
	booking  string             // empty for a request without a body, which is not booked
	unread   bool               // the body does not arrive, or not all of it
	gathered []byte             // the body so far, if it arrives in pieces
	held     int                // bytes of it that count in the budget
	size     int                // bytes of the client's body, which the door or held counts in the budget
	decision *decision.Decision // memory to give back when the reply was delivered; nil for none
	envelope *handoff.Envelope  // of a body that is not parsed; nil before it was read, and for a body that is no JSON
	reading  request.Reading    // of the prompt, for the prefill worker; empty for a request with one leg

	prefilled  prefilled
	migrations prompt.Override // the limit that the client has given
	began      time.Time       // when the headers arrived
	span       *spans.Span     // nil without a tracer, and when it was handed over
	steps      *request.Steps  // for span; nil without one
	following
}

// Phase returns the event that comes next.
func (x *Exchange) Phase() Phase { return x.phase }

// Source returns the name of the Envoy.
func (x *Exchange) Source() string { return x.origin.Source }

// Booking returns the id of the booking to come; empty if there will be none.
func (x *Exchange) Booking() string { return x.booking }

// Unread reports whether the request goes to a worker, or is refused, without its body being read.
func (x *Exchange) Unread() bool { return x.unread }

// Gathered returns the pieces of the body so far.
func (x *Exchange) Gathered() []byte { return x.gathered }

// OnHeaders handles the headers of the request.
func (x *Exchange) OnHeaders(h Head, now time.Time) Reply {
	x.beginSpan(h.Trace, now)
	return x.observed(x.onHeaders(h, now), now)
}

func (x *Exchange) onHeaders(h Head, now time.Time) Reply {
	x.head = h
	x.target = x.svc.Settings().classify(h.Method, h.Path)
	x.phase = Finished

	if x.target.local != nil {
		return answerWith(x.target.local(x.svc, h))
	}
	if a := x.refuseEarly(); a != nil {
		return answerWith(a)
	}
	if a := x.overLimit(now); a != nil {
		return answerWith(a)
	}
	if h.WithoutBody {
		return x.decide(nil, now) // its booking would have no id in Envoy's access log
	}
	if h.Unread != "" {
		return x.decideUnread(now)
	}

	x.phase = WantBody
	x.booking = x.newID()
	x.began = now
	x.wanted = x.svc.feedback != nil && x.svc.feedback.Wanted(x.origin.Source)
	return Reply{Booking: x.booking, Silent: h.Pieces, Follow: x.wanted}
}

// newID returns the id of the booking to come. If Envoy learns it with the pick, its client may leave at that moment:
// then Envoy's access log has the id of the request alone, so that the id of the booking follows from it.
func (x *Exchange) newID() string {
	if x.head.DerivedID && x.head.RequestID != "" {
		if id := x.svc.router.IDFor(x.origin.Source, x.head.RequestID); !x.svc.router.IsBooked(id) {
			return id
		}
	}
	return x.svc.router.NewID()
}

// refuseEarly returns the refusal of a request whose headers are wrong; nil if they are not. Envoy does not
// send the body then.
func (x *Exchange) refuseEarly() *Answer {
	set := x.svc.Settings()
	if x.target.known && x.head.Method != http.MethodPost {
		return notPost(x.head.Method)
	}
	if !x.target.known && !x.target.passed {
		return refusal(&openai.Error{Status: http.StatusNotFound, Type: openai.InvalidRequest, Code: "unknown_url",
			Message: "Unknown request URL: " + clip(x.head.Method+" "+x.head.Path) + ". See /openapi.json for the paths; the " +
				"operator can let others pass with gateway.passPaths."}, "unknown_path")
	}
	if x.head.ContentLength != "" { // parsing an empty text would allocate an error
		n, err := strconv.ParseInt(x.head.ContentLength, 10, 64)
		if err == nil && n > set.BodyBytes {
			return TooLarge(set.BodyBytes)
		}
	}
	if !isIdentity(x.head.ContentEncoding) {
		return encoded(x.head.ContentEncoding)
	}
	return nil
}

// notPost returns the refusal of a method that is not POST.
func notPost(method string) *Answer {
	a := refusal(&openai.Error{Status: http.StatusMethodNotAllowed, Type: openai.InvalidRequest,
		Message: "This path accepts POST, not " + clip(method) + "."}, "method")
	a.Allow = http.MethodPost
	return a
}

// decideUnread returns the decision about a request whose body does not arrive before its headers go to a worker. It goes by
// load alone. With several pools no one knows which of them has its model.
func (x *Exchange) decideUnread(now time.Time) Reply {
	x.unread = true
	if x.svc.Settings().SeveralPools {
		return answerWith(noDecision(x.head.Unread))
	}
	return x.decide(nil, now) // its booking would have no id in Envoy's access log
}

// OnBody handles the body. whole means that nothing of it is missing; otherwise the request goes by load.
func (x *Exchange) OnBody(body []byte, whole bool, now time.Time) Reply {
	x.phase = Finished
	x.unread = !whole
	return x.observed(x.decide(body, now), now)
}

// OnPiece handles a piece of the body, and the whole body with the last one. Envoy forgets the pieces, so the door sends
// all of them back after the decision: see [Exchange.Gathered].
func (x *Exchange) OnPiece(piece []byte, end bool, now time.Time) Reply {
	limit := x.svc.Settings().BodyBytes
	if int64(len(x.gathered)+len(piece)) > limit {
		x.phase = Finished
		return x.observed(answerWith(TooLarge(limit)), now)
	}
	if !x.svc.bodies.Reserve(len(piece)) {
		return x.OnOverload(now)
	}
	x.held += len(piece)
	x.gathered = append(x.gathered, piece...)
	if !end {
		return Reply{Silent: true}
	}
	return x.OnBody(x.gathered, true, now)
}

// OnOverload handles a body for which the budget has no room.
func (x *Exchange) OnOverload(now time.Time) Reply {
	x.phase = Finished
	return x.observed(answerWith(Overloaded()), now)
}

// decide returns the router's decision. It does not change the body.
func (x *Exchange) decide(body []byte, now time.Time) Reply {
	set := x.svc.Settings()
	if int64(len(body)) > set.BodyBytes {
		return answerWith(TooLarge(set.BodyBytes))
	}

	x.size = len(body)
	if x.unread && x.svc.mustRead() {
		return answerWith(mustBeRead(x.head.Unread))
	}

	known := x.target.known && !x.unread
	clean, a := x.readEnvelope(body, known)
	if a != nil {
		return answerWith(a)
	}
	req := request.Request{
		ID: x.booking, Endpoint: x.target.endpoint, Known: known, Body: body,
		Session: x.head.Session.Text, Source: x.origin.Source, Done: x.origin.Context.Done(), Reading: &x.reading,
		Workers: request.Workers{Only: x.head.Subset}, Splits: !x.unread && x.splits(), Steps: x.steps,
		Tenant: x.tenant(), Salting: x.svc.salting(set, &x.target),
	}
	if a := x.applyHints(&req); a != nil {
		return answerWith(a)
	}
	if !known {
		req.Model = x.model()
	}

	// Ready runs in the goroutine of another request's end, so it must not block: the channel has room.
	var decided chan *decision.Decision
	if x.svc.router.QueueEnabled() {
		decided = make(chan *decision.Decision, 1)
		req.Ready = func(d *decision.Decision) { decided <- d }
	}
	x.decision = x.svc.decisions.Get().(*decision.Decision)
	d := x.svc.router.DecideInto(x.decision, &req, now)
	if x.svc.shadow && d.Outcome == decision.Picked {
		r := Reply{Pick: d, Last: true}
		x.follow(&r)
		return r
	}
	if d.Outcome == decision.Refused {
		return x.conclude(d, nil, now)
	}

	if d.Legs.Why == decision.LegsNoPrefill || d.Legs.Why == decision.LegsNoPartner {
		x.svc.prefills.Count(prefill.NoWorker)
	}
	sent := forwarded(body, clean, d)
	if d.Split && sent == nil {
		sent = body // it is needed after the wait
	}
	switch {
	case d.Outcome == decision.Queued:
		return Reply{Queued: &Queued{ticket: req.Ticket, decided: decided, split: d.Split}, Body: sent}
	case d.Split && !x.isRelayed(d):
		return Reply{Queued: &Queued{picked: d, split: true, began: now}, Body: sent}
	}
	return x.conclude(d, x.pulled(d, body, sent), now)
}

// pulled returns the body for a worker that is to fetch the beginning of the prompt from another one's cache; the given one if nothing is
// to be fetched.
func (x *Exchange) pulled(d *decision.Decision, body, sent []byte) []byte {
	if d.Outcome != decision.Picked || d.Pull.Tokens == 0 {
		return sent
	}
	if sent != nil {
		body = sent
	}
	pull, err := handoff.Pull(nil, body, d.Pull.At, prefill.NewTransferID())
	if err != nil { // an address that the fleet has accepted, and a body that was parsed
		return sent
	}
	return pull
}

// conclude returns the reply of a final decision: the pick, or the refusal with its reason and the time to retry
// after. A body that is not nil replaces the request's.
func (x *Exchange) conclude(d *decision.Decision, body []byte, now time.Time) Reply {
	if d.Outcome != decision.Picked {
		return answerWith(refused(d))
	}
	x.charge(d.PromptTokens, now)
	if x.booking == "" {
		x.svc.router.End(d.ID, now) // see "No booking is lost" in the package comment
	}
	r := x.pick(d, body)
	x.follow(&r)
	return r
}

// answerWith returns the reply with an answer to the client.
func answerWith(a *Answer) Reply { return Reply{Answer: a, Last: true} }

// Gone reports whether Envoy takes no more replies.
func (x *Exchange) Gone() bool { return x.origin.Context.Err() != nil }

// OnUndelivered handles a pick that Envoy has not read: it may have no id that would end the booking.
func (x *Exchange) OnUndelivered(pick *decision.Decision, now time.Time) {
	x.OnEnd(true, now) // first, so that the end of a followed request is counted
	x.svc.router.End(pick.ID, now)
}

// Recycle gives the memory of the decision back, after the reply was delivered.
func (x *Exchange) Recycle() {
	if x.decision != nil {
		x.svc.decisions.Put(x.decision)
		x.decision = nil
	}
}

// Drop forgets the pieces of the body.
func (x *Exchange) Drop() {
	x.svc.bodies.Free(x.held)
	x.held, x.gathered = 0, nil
}
