package stream

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
)

// head is what we ask Envoy for of a request's headers. The strings belong to the message
// they came in.
type head struct {
	method, path    string
	contentEncoding string
	contentLength   string
	session         string
	hintHeaders     []messages.Header
	noBody          bool // the request ends with its headers
}

// reply is what to tell Envoy. The zero value lets the request go on unchanged.
type reply struct {
	// booking is the id under which a later pick will be booked.
	booking string
	// pick is the decision, for a request that was picked.
	pick *route.Decision
	// header says the pick in a header too, as the endpoint picker protocol asks. An Envoy that
	// we configured reads the metadata alone and would remove the header again.
	header bool
	// body replaces the request's body, which was compressed; nil leaves it.
	body []byte
	// answer goes to the client at once, instead of a worker's.
	answer *answer
	// parked is the place in the queue of a request that has to wait. Nothing else is said of it yet.
	parked *parked
	// last says that nothing more depends on the stream.
	last bool
}

// answer is a response of ours.
type answer struct {
	status     int
	body       []byte
	retryAfter time.Duration
	allow      string // the methods of a 405
	// detail names the reason in logs and metrics: one of a closed set.
	detail string
}

// phase says what Envoy sends next.
type phase uint8

const (
	wantHeaders phase = iota
	wantBody
	finished
)

// exchange is the state of one request. Its methods are the events; each returns the reply.
type exchange struct {
	srv     *Server
	source  string // names the Envoy
	ours    bool   // we configured it
	phase   phase
	head    head
	target  target
	booking string
	whole   bool // Envoy has said that it sends bodies in one piece
}

// onHeaders answers the first message.
func (x *exchange) onHeaders(h head, now time.Time) reply {
	x.head = h
	x.target = classify(h.path)
	x.phase = finished
	if x.target.local != nil {
		return x.say(x.target.local(x.srv, h))
	}
	if a := x.refuseEarly(); a != nil {
		return x.say(a)
	}
	if h.noBody {
		return x.decide(nil, now)
	}
	x.phase = wantBody
	x.booking = x.srv.router.NewID()
	return reply{booking: x.booking}
}

// refuseEarly spares Envoy the body of a request that the headers already condemn.
func (x *exchange) refuseEarly() *answer {
	set := x.srv.settings.Load()
	if x.target.known && x.head.method != http.MethodPost {
		a := refusal(&openai.Error{Status: http.StatusMethodNotAllowed, Type: openai.InvalidRequest,
			Message: "This path takes POST, not " + clip(x.head.method) + "."}, "method")
		a.allow = http.MethodPost
		return a
	}
	if !x.target.known && set.RejectUnknown {
		return refusal(&openai.Error{Status: http.StatusNotFound, Type: openai.InvalidRequest, Code: "unknown_url",
			Message: "Unknown request URL: " + clip(x.head.method+" "+x.head.path) + ". See /openapi.json for what is served."}, "unknown_path")
	}
	if n, err := strconv.ParseInt(x.head.contentLength, 10, 64); err == nil && n > set.BodyBytes {
		return tooLarge(set.BodyBytes)
	}
	return nil
}

// onBody answers the message that carries the whole body.
func (x *exchange) onBody(body []byte, now time.Time) reply {
	x.phase = finished
	return x.decide(body, now)
}

// decide asks the router. The body is only read.
func (x *exchange) decide(raw []byte, now time.Time) reply {
	encoding := x.head.contentEncoding
	if !x.target.known {
		encoding = "" // a body that we do not read is not ours to open
	}
	body, a := decompress(raw, encoding, x.srv.settings.Load().BodyBytes)
	if a != nil {
		return x.say(a)
	}
	req := route.Request{
		ID: x.booking, Endpoint: x.target.endpoint, Known: x.target.known, Body: body,
		Session: x.head.session, Source: x.source,
	}
	if a := x.applyHints(&req); a != nil {
		return x.say(a)
	}
	if !x.target.known {
		req.Model = x.srv.settings.Load().DefaultModel
	}
	if encoding == "" || len(raw) == 0 || identity(encoding) {
		body = nil // else it takes the place of the request's: engines do not decompress
	}
	var told chan *route.Decision
	if x.srv.router.QueueEnabled() {
		final := make(chan *route.Decision, 1)
		told, req.Ready = final, func(d *route.Decision) { final <- d }
	}
	d := x.srv.router.Decide(&req, now)
	if d.Outcome == route.Queued {
		return reply{parked: &parked{ticket: d.Ticket, told: told, body: body}}
	}
	return x.conclude(d, body, now)
}

// conclude says a final decision. body takes the place of the request's where it is not nil.
func (x *exchange) conclude(d *route.Decision, body []byte, now time.Time) reply {
	if d.Outcome != route.Picked {
		a := refusal(d.Err, string(d.Reason))
		a.retryAfter = d.RetryAfter
		return x.say(a)
	}
	if x.booking == "" {
		x.srv.router.End(d.ID, now) // see "No booking is lost"
	}
	return reply{pick: d, header: !x.ours, body: body, last: true}
}

func (x *exchange) say(a *answer) reply {
	x.phase = finished
	return reply{answer: a, last: true}
}

// refusal puts an error into an answer.
func refusal(e *prompt.Error, detail string) *answer {
	return &answer{status: e.Status, body: e.JSON(), detail: detail}
}

// clip bounds what of a request is said back.
func clip(s string) string {
	if len(s) > 128 {
		s = s[:128] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}
