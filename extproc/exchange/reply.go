package exchange

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/extproc/spans"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/decision"
)

// Reply is the response to an event. The zero value lets the request continue unchanged.
type Reply struct {
	// Booking is the id under which a later pick will be booked. Envoy keeps it as metadata.
	Booking string
	// Pick is the decision of a picked request. It is valid until [Exchange.Recycle].
	Pick *decision.Decision
	// Destinations is the picked address, followed by the addresses to try after a failure. Envoy's load
	// balancer reads it as metadata.
	Destinations string
	// Cached is the number of tokens of the prompt that the prefill worker of a pick had in its cache; -1 if it is not known.
	Cached int
	// Logged means that Envoy writes facts of the pick into its access log.
	Logged bool
	// Set are headers to set on the request or to replace. ClearRoute makes Envoy choose the route again by them.
	Set        []envoynames.Header
	ClearRoute bool
	// Remove are names of headers to remove from the request.
	Remove []string
	// Body replaces the request's body; nil keeps it.
	Body []byte
	// Answer is sent to the client, and the request reaches no worker.
	Answer *Answer
	// Queued is set for a request whose reply takes time, and which [Exchange.Await] returns. All other fields but Body are empty
	// then.
	Queued *Queued
	// Follow means that the door keeps the request after the decision, and reports its response and its end. In the
	// reply to the headers it means that it may have to.
	Follow bool
	// Last means that no decision follows. Silent means that Envoy gets no reply to this event.
	Last, Silent bool
}

// Answer is a response to the client that this package makes. Its content type is application/json.
type Answer struct {
	Status     int
	Body       []byte
	RetryAfter time.Duration
	Allow      string // the methods of a 405
	// Detail is the reason in logs and metrics: one of [Outcomes].
	Detail string

	err *openai.Error // of which Body is the text; nil for a page
	// decision is the refusal; nil for an answer without one. It is valid until [Exchange.Recycle].
	decision *decision.Decision
}

// For returns the answer in the form of the API that has the path: errors of Anthropic's have another form. The path has no query.
func (a *Answer) For(path string) *Answer {
	isAnthropic := path == "/v1/messages" || strings.HasPrefix(path, "/v1/messages/")
	if a.err == nil || !isAnthropic {
		return a
	}
	b := *a
	b.Body = a.err.AnthropicJSON()
	return &b
}

// RetrySeconds returns the value of the header retry-after; empty for none.
func (a *Answer) RetrySeconds() string {
	if a.RetryAfter <= 0 {
		return ""
	}
	return strconv.Itoa(int(a.RetryAfter.Seconds()))
}

// headerRetryOn is Envoy's header by which the answer of a worker with one of these statuses is a failure that is retried.
const headerRetryOn = "x-envoy-retriable-status-codes"

// pick returns the reply with a decision: the address, and the changes of the request's headers.
func (x *Exchange) pick(d *decision.Decision, body []byte) Reply {
	r := Reply{Pick: d, Destinations: x.destinations(d), Body: body, Cached: x.prefilled.cached, Last: true}
	r.Logged = x.svc.Settings().AccessLog
	set := func(key, value string) { r.Set = append(r.Set, envoynames.Header{Key: key, Value: value}) }

	// The endpoint picker protocol requires the pick as a header too. An Envoy that reads the metadata would have to
	// remove the header. The header has the first address alone: a pool of type ORIGINAL_DST, which reads it, takes one, and
	// answers 503 to a list.
	if !x.origin.ReadsMetadata {
		first, _, _ := strings.Cut(r.Destinations, ",")
		set(envoynames.HeaderDestination, first)
	}
	// With several pools Envoy has chosen a route that answers 503, which is right for a request without a
	// decision. The header selects the route of the pool. An Envoy that the control plane configures may know of a
	// second pool earlier than this router.
	if x.svc.Settings().SeveralPools || x.origin.Configured {
		set(envoynames.HeaderModel, d.Pool)
		r.ClearRoute = true
	}
	if d.Split && x.head.RequestID == "" {
		set(prefill.HeaderRequestID, x.requestID())
	}
	if x.prefilled.named != "" {
		set(envoynames.HeaderPrefiller, x.prefilled.named)
	} else if x.svc.Settings().Sidecars {
		r.Remove = []string{envoynames.HeaderPrefiller} // a client would have the sidecar send its prompt anywhere
	}
	if isRelayed := x.isRelayed(d); (d.Split || isRelayed) && x.usesRelay() {
		x.svc.relay.plans.add(d.ID, newPlan(d, isRelayed, x.prefilled.broke, x.migration(d)))
		set(envoynames.HeaderDecision, d.ID)
		if d.Split {
			set(headerRetryOn, x.retriable(d.Transfer))
		}
	}
	if name := x.sessionForEngine(d); name != "" {
		set(envoynames.HeaderSession, name)
	}
	if own := x.span.Own(); own.IsValid() {
		set(spans.Header, own.String())
	}
	if d.Ranks > 1 {
		set(prefill.HeaderRank, strconv.Itoa(d.Rank))
	}
	return r
}

// retriable are the statuses with which a decode worker answers when it cannot fetch a prompt: vLLM's is 500. TensorRT-LLM has
// 400 for all faults. Without a transfer it is the client's fault, which a second worker would find too.
func (x *Exchange) retriable(t fleet.Transfer) string {
	if t == fleet.TransferContext && x.prefilled.transferred {
		return "400,500"
	}
	return "500"
}

// usesRelay reports whether further attempts of split requests go to the relay. A sidecar makes them by itself.
func (x *Exchange) usesRelay() bool { return x.svc.relay.address != "" && !x.svc.Settings().Sidecars }

// destinations returns the picked address, followed by the addresses to try after a failure. For a split request that is the relay alone. A
// stream that goes to the relay has its worker next, for a relay that is away, and no others: the relay has tried them.
func (x *Exchange) destinations(d *decision.Decision) string {
	relay := x.svc.relay.address
	switch {
	case d.Split && x.usesRelay() && x.isRelayed(d):
		return relay
	case d.Split && x.usesRelay():
		return d.Address + "," + relay
	case x.isRelayed(d):
		return relay + "," + d.Address
	case len(d.Others) == 0:
		return d.Address
	}
	return d.Address + "," + strings.Join(d.Others, ",")
}

// refusal returns the answer for an error.
func refusal(e *prompt.Error, detail string) *Answer {
	return &Answer{Status: e.Status, Body: e.JSON(), Detail: detail, err: e}
}

// refused returns the answer to a request that the router has refused.
func refused(d *decision.Decision) *Answer {
	a := refusal(d.Err, string(d.Reason))
	a.RetryAfter = d.RetryAfter
	a.decision = d
	return a
}

// TooLarge returns the refusal of a body above the limit.
func TooLarge(limit int64) *Answer {
	return refusal(&openai.Error{Status: http.StatusRequestEntityTooLarge, Type: openai.InvalidRequest, Code: "request_too_large",
		Message: fmt.Sprintf("The request body is larger than the limit of %d bytes. Send a shorter one.", limit)}, "body_too_large")
}

// Incomplete returns the refusal of a request whose body has not arrived as a whole.
func Incomplete() *Answer {
	return refusal(&openai.Error{Status: http.StatusBadRequest, Type: openai.InvalidRequest,
		Message: "The request's body ended early. Send it again."}, string(decision.ReasonBadRequest))
}

// NoAnswer returns the answer to a request for which all attempts have failed.
func NoAnswer() *Answer {
	return refusal(&openai.Error{Status: http.StatusServiceUnavailable, Type: openai.ServerError, Code: "no_answer",
		Message: "The workers that were asked have failed before their answer began. Try again."}, "no_answer")
}

// noDecision returns the refusal of a request whose body is unread for that reason, if its model must be known.
func noDecision(reason string) *Answer {
	return refusal(&openai.Error{Status: http.StatusServiceUnavailable, Type: openai.ServerError, Code: "no_decision",
		Message: "The gateway cannot read which model is asked for: " + reason + "."}, outcomeUnread)
}

// mustBeRead returns the refusal of a request whose body is unread for that reason, if it must be read. The reason is empty for a body of
// which only the first part has arrived.
func mustBeRead(reason string) *Answer {
	if reason == "" {
		reason = "only its first part arrives. The operator must set request_body_mode to BUFFERED or FULL_DUPLEX_STREAMED"
	}
	return refusal(&openai.Error{Status: http.StatusServiceUnavailable, Type: openai.ServerError, Code: "no_decision",
		Message: "The gateway must read the request's body, for its engines or tenants, and cannot: " + reason + "."}, outcomeUnread)
}

// isIdentity reports whether a content encoding leaves a body as it is.
func isIdentity(encoding string) bool {
	return encoding == "" || strings.EqualFold(strings.TrimSpace(encoding), "identity")
}

// encoded returns the refusal of a body that is still compressed. An Envoy that package xds has configured
// decompresses gzip before this service sees the body.
func encoded(encoding string) *Answer {
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
