package stream

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
)

// head holds the headers of a request that matter here.
type head struct {
	method, path    string
	contentEncoding string
	contentLength   string
	session         string
	role, tenant    string // as Envoy's own authentication has set them
	hintHeaders     []messages.Header
	requestID       string // in mode FullDuplex only
	noBody          bool   // the request ends with its headers
}

// reply is the response to a message of Envoy. The zero value lets the request continue unchanged.
type reply struct {
	// booking is the id under which a later pick will be booked.
	booking string
	// pick is the decision of a picked request.
	pick *route.Decision
	// header sets the pick as a header too, which the endpoint picker protocol requires. An Envoy
	// configured by package xds reads the metadata only, and would have to remove the header.
	header bool
	// body replaces the request's body; nil keeps it.
	body []byte
	// answer is sent to the client, and the request reaches no worker.
	answer *answer
	// queued is set for a queued request. All other fields are empty then.
	queued *queued
	// last means that nothing more depends on the stream. silent means that Envoy expects no reply.
	last, silent bool
}

// answer is a response to the client that this package makes.
type answer struct {
	status     int
	body       []byte
	retryAfter time.Duration
	allow      string // the methods of a 405
	// detail is the reason in logs and metrics: one of outcomes.
	detail string
}

// phase is the message that Envoy sends next. The package comment has a table.
type phase uint8

const (
	wantHeaders phase = iota
	wantBody
	finished
)

// exchange is the state of one request. Each event is a method that returns the reply.
type exchange struct {
	srv             *Server
	source          string          // the name of the Envoy
	done            <-chan struct{} // closed when the stream ends
	configured      bool            // the Envoy has its configuration from package xds
	trustedListener bool            // the request came on Envoy's listener for trusted clients

	phase    phase
	head     head
	target   target
	booking  string          // empty for a request without a body, which is not booked
	mode     messages.Mode   // how Envoy sends bodies
	unread   bool            // the body does not arrive, or not all of it
	gathered []byte          // the body so far, in mode FullDuplex
	held     int             // bytes of it that count in the budget
	trailers bool            // the request has trailers, in mode FullDuplex
	decision *route.Decision // memory to give back when the reply was sent; nil for none
}

// onHeaders handles the first message.
func (x *exchange) onHeaders(h head, now time.Time) reply {
	x.head = h
	x.target = x.srv.settings.Load().classify(h.method, h.path)
	x.phase = finished

	if x.target.local != nil {
		return x.answerWith(x.target.local(x.srv, h))
	}
	if a := x.refuseEarly(); a != nil {
		return x.answerWith(a)
	}
	if h.noBody {
		return x.decide(nil, now) // its booking would have no id in Envoy's access log
	}

	if x.mode == messages.None || x.mode == messages.Streamed {
		return x.decideUnread(now)
	}

	x.phase = wantBody
	x.booking = x.newID()
	return reply{booking: x.booking, silent: x.mode == messages.FullDuplex}
}

// newID returns the id of the booking to come. In mode FullDuplex Envoy learns it after the decision. If its client leaves at
// that moment, Envoy's access log has the id of the request alone, so that the id of the booking follows from it.
func (x *exchange) newID() string {
	if x.head.requestID != "" {
		if id := x.srv.router.IDFor(x.source, x.head.requestID); !x.srv.router.IsBooked(id) {
			return id
		}
	}
	return x.srv.router.NewID()
}

// refuseEarly returns the refusal of a request whose headers are wrong; nil if they are not. Envoy does not
// send the body then.
func (x *exchange) refuseEarly() *answer {
	set := x.srv.settings.Load()
	if x.target.known && x.head.method != http.MethodPost {
		a := refusal(&openai.Error{Status: http.StatusMethodNotAllowed, Type: openai.InvalidRequest,
			Message: "This path accepts POST, not " + clip(x.head.method) + "."}, "method")
		a.allow = http.MethodPost
		return a
	}
	if !x.target.known && !x.target.passed {
		return refusal(&openai.Error{Status: http.StatusNotFound, Type: openai.InvalidRequest, Code: "unknown_url",
			Message: "Unknown request URL: " + clip(x.head.method+" "+x.head.path) + ". See /openapi.json for the paths; the " +
				"operator can let others pass with gateway.passPaths."}, "unknown_path")
	}
	if x.head.contentLength != "" { // parsing an empty text would allocate an error
		n, err := strconv.ParseInt(x.head.contentLength, 10, 64)
		if err == nil && n > set.BodyBytes {
			return tooLarge(set.BodyBytes)
		}
	}
	if x.target.known && !isIdentity(x.head.contentEncoding) {
		return encoded(x.head.contentEncoding)
	}
	return nil
}

// onBody handles the whole body. The stream may end while it decides; Process and wait handle that.
func (x *exchange) onBody(body []byte, now time.Time) reply {
	x.phase = finished
	return x.decide(body, now)
}

// decide returns the router's decision. It does not change the body.
func (x *exchange) decide(body []byte, now time.Time) reply {
	set := x.srv.settings.Load()
	if int64(len(body)) > set.BodyBytes {
		return x.answerWith(tooLarge(set.BodyBytes))
	}

	known := x.target.known && !x.unread
	req := route.Request{
		ID: x.booking, Endpoint: x.target.endpoint, Known: known, Body: body,
		Session: x.head.session, Source: x.source, Done: x.done,
		Tenant: x.tenant(), Isolate: set.TenantHeader != "",
	}
	if a := x.applyHints(&req); a != nil {
		return x.answerWith(a)
	}
	if !known {
		req.Model = x.srv.modelOf(body)
	}

	// Ready runs in the goroutine of another request's end, so it must not block: the channel has room.
	var decided chan *route.Decision
	if x.srv.router.QueueEnabled() {
		decided = make(chan *route.Decision, 1)
		req.Ready = func(d *route.Decision) { decided <- d }
	}
	x.decision = x.srv.decisions.Get().(*route.Decision)
	d := x.srv.router.DecideInto(x.decision, &req, now)
	if d.Outcome == route.Refused {
		return x.conclude(d, nil, now)
	}

	body = withSalt(body, d.CacheSalt)
	if d.Outcome == route.Queued {
		return reply{queued: &queued{ticket: d.Ticket, decided: decided, body: body}}
	}
	return x.conclude(d, body, now)
}

// conclude returns the reply of a final decision: the pick, or the refusal with its reason and the time to retry
// after. A body that is not nil replaces the request's.
func (x *exchange) conclude(d *route.Decision, body []byte, now time.Time) reply {
	if d.Outcome != route.Picked {
		a := refusal(d.Err, string(d.Reason))
		a.retryAfter = d.RetryAfter
		return x.answerWith(a)
	}
	if x.booking == "" {
		x.srv.router.End(d.ID, now) // see "No booking is lost" in the package comment
	}
	return reply{pick: d, header: !x.configured, body: body, last: true}
}

// answerWith ends the exchange with an answer to the client.
func (x *exchange) answerWith(a *answer) reply {
	x.phase = finished
	return reply{answer: a, last: true}
}

// refusal returns the answer for an error.
func refusal(e *prompt.Error, detail string) *answer {
	return &answer{status: e.Status, body: e.JSON(), detail: detail}
}

// tooLarge returns the refusal of a body above the limit.
func tooLarge(limit int64) *answer {
	return refusal(&openai.Error{Status: http.StatusRequestEntityTooLarge, Type: openai.InvalidRequest, Code: "request_too_large",
		Message: fmt.Sprintf("The request body is larger than the limit of %d bytes. Send a shorter one.", limit)}, "body_too_large")
}

// isIdentity reports whether a content encoding leaves a body as it is.
func isIdentity(encoding string) bool {
	return encoding == "" || strings.EqualFold(strings.TrimSpace(encoding), "identity")
}

// encoded returns the refusal of a body that is still compressed. An Envoy that package xds has configured
// decompresses gzip before this service sees the body.
func encoded(encoding string) *answer {
	remedy := "Send gzip, or the body uncompressed."
	if strings.EqualFold(strings.TrimSpace(encoding), "gzip") {
		remedy = "Send the body uncompressed."
	}
	return refusal(&openai.Error{Status: http.StatusUnsupportedMediaType, Type: openai.InvalidRequest,
		Message: "The gateway does not decompress content-encoding " + clip(encoding) + ". " + remedy}, "content_encoding")
}

// maxQuoted bounds the text of a request that is repeated in an answer or a log.
const maxQuoted = 128

// clip shortens text of a request to maxQuoted bytes of valid UTF-8.
func clip(s string) string {
	if len(s) > maxQuoted {
		s = s[:maxQuoted] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}
