package stream

import (
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/route/sessionid"
)

// headOf returns the headers of a first message.
func headOf(m *messages.Request) exchange.Head {
	h := exchange.Head{
		Method: m.Method, Path: m.Path, ContentEncoding: m.ContentEncoding, ContentLength: m.ContentLength,
		Session: sessionid.Name{Text: m.Session, At: m.SessionAt}, Role: m.Role, Tenant: m.Tenant, Hints: m.Hints, RequestID: m.RequestID,
		Authorization: m.Authorization, Trace: m.Trace, Subset: m.Subset, WithoutBody: m.EndOfStream,
	}
	switch m.Mode {
	case messages.None, messages.Streamed:
		h.Unread = unreadReasons[m.Mode]
	case messages.FullDuplex:
		h.Pieces = true
		h.DerivedID = true
	}
	return h
}

// toMessage returns a reply as a message to Envoy, in response to the event of that phase. inLB is [messages.Response.InLB].
func toMessage(r exchange.Reply, answered exchange.Phase, inLB bool) any {
	if r.Answer != nil {
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
			ImmediateResponse: immediate(r.Answer),
		}}
	}
	m := &messages.Response{
		To: messages.Body, Booking: r.Booking, Picked: r.Destinations, InLB: inLB, Set: r.Set, Remove: r.Remove,
		ClearRoute: r.ClearRoute, NewBody: r.Body,
	}
	if answered == exchange.WantHeaders {
		m.To = messages.Headers
	}

	if r.Pick != nil {
		m.Decision = r.Pick.ID
		if r.Cached >= 0 {
			m.Cached = strconv.Itoa(r.Cached)
		}
		if r.Logged {
			m.Facts = []envoynames.Header{
				{Key: envoynames.Model, Value: r.Pick.Model}, {Key: envoynames.Worker, Value: r.Pick.Worker},
				{Key: envoynames.PromptTokens, Value: strconv.Itoa(r.Pick.PromptTokens)},
				{Key: envoynames.Overlap, Value: strconv.Itoa(r.Pick.Cached)},
			}
		}
	}
	if r.Body != nil {
		m.Set = append(m.Set, envoynames.Header{Key: "content-length", Value: strconv.Itoa(len(r.Body))})
	}
	return m
}

// setHeader returns a header that replaces an existing one.
func setHeader(key, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: key, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// immediate returns an answer to the client as a message to Envoy.
func immediate(a *exchange.Answer) *extprocv3.ImmediateResponse {
	headers := []*corev3.HeaderValueOption{setHeader("content-type", "application/json")}
	if seconds := a.RetrySeconds(); seconds != "" {
		headers = append(headers, setHeader("retry-after", seconds))
	}
	if a.Allow != "" {
		headers = append(headers, setHeader("allow", a.Allow))
	}
	return &extprocv3.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: typev3.StatusCode(a.Status)},
		Headers: &extprocv3.HeaderMutation{SetHeaders: headers},
		Body:    a.Body,
		Details: envoynames.DetailPrefix + a.Detail,
	}
}
