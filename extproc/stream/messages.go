package stream

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/route"
)

// headerRank is the header by which vLLM selects a data-parallel rank.
const headerRank = "x-data-parallel-rank"

// headOf returns the headers of a first message.
func headOf(m *messages.Request) head {
	return head{
		method: m.Method, path: m.Path, contentEncoding: m.ContentEncoding, contentLength: m.ContentLength,
		session: m.Session, role: m.Role, tenant: m.Tenant, hintHeaders: m.Hints, requestID: m.RequestID, noBody: m.EndOfStream,
	}
}

// toMessage returns a reply as a message to Envoy, in response to the message of that phase.
func (s *Server) toMessage(r reply, answered phase) any {
	if r.answer != nil {
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
			ImmediateResponse: immediate(r.answer),
		}}
	}
	m := &messages.Response{To: messages.Body, Booking: r.booking}
	if answered == wantHeaders {
		m.To = messages.Headers
	}

	if r.pick != nil {
		m.Picked, m.Decision = destinations(r.pick), r.pick.ID
		s.changeRequest(m, r)
	}
	return m
}

// destinations returns the picked address, followed by those to try after a failure.
func destinations(d *route.Decision) string {
	if len(d.Others) == 0 {
		return d.Address
	}
	return d.Address + "," + strings.Join(d.Others, ",")
}

// changeRequest adds the changes of the request's headers and body to m: the pick, the pool of another model, the
// rank, and a new body.
func (s *Server) changeRequest(m *messages.Response, r reply) {
	set := func(key, value string) { m.Set = append(m.Set, messages.Header{Key: key, Value: value}) }
	if r.header {
		set(envoynames.HeaderDestination, m.Picked)
	}
	// With several pools Envoy has chosen a route that answers 503, which is right for a request without a
	// decision. The header selects the route of the pool.
	if s.settings.Load().SeveralPools {
		set(envoynames.HeaderModel, r.pick.Pool)
		m.ClearRoute = true
	}
	if r.pick.Ranks > 1 {
		set(headerRank, strconv.Itoa(r.pick.Rank))
	}
	if r.body != nil {
		m.NewBody = r.body
		set("content-length", strconv.Itoa(len(r.body)))
	}
}

// set returns a header that replaces an existing one.
func set(key, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: key, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// immediate returns an answer to the client as a message to Envoy.
func immediate(a *answer) *extprocv3.ImmediateResponse {
	headers := []*corev3.HeaderValueOption{set("content-type", "application/json")}
	if a.retryAfter > 0 {
		headers = append(headers, set("retry-after", strconv.Itoa(int(a.retryAfter.Seconds()))))
	}
	if a.allow != "" {
		headers = append(headers, set("allow", a.allow))
	}
	return &extprocv3.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: typev3.StatusCode(a.status)},
		Headers: &extprocv3.HeaderMutation{SetHeaders: headers},
		Body:    a.body,
		Details: envoynames.DetailPrefix + a.detail,
	}
}
