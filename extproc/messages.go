package extproc

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/wire"
)

// headerRank pins a data-parallel rank, as vLLM reads it.
const headerRank = "x-data-parallel-rank"

// readHead finds our headers among those that Envoy sent.
func readHead(m *extprocv3.HttpHeaders, affinity string) head {
	h := head{noBody: m.GetEndOfStream()}
	for _, v := range m.GetHeaders().GetHeaders() {
		value := string(v.GetRawValue())
		if value == "" {
			value = v.GetValue()
		}
		switch v.GetKey() {
		case ":method":
			h.method = value
		case ":path":
			h.path = value
		case "content-encoding":
			h.contentEncoding = value
		case "content-length":
			h.contentLength = value
		case affinity:
			h.session = value
		}
	}
	return h
}

// toResponse puts a reply into Envoy's words, as the answer to the message of that phase.
func (s *Server) toResponse(r reply, answered phase) *extprocv3.ProcessingResponse {
	if r.answer != nil {
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
			ImmediateResponse: immediate(r.answer),
		}}
	}
	resp := &extprocv3.ProcessingResponse{DynamicMetadata: facts(r)}
	common := s.mutation(r)
	if answered == wantHeaders {
		resp.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: common}}
	} else {
		resp.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}}
	}
	return resp
}

// facts are the pick and the ids, as dynamic metadata.
func facts(r reply) *structpb.Struct {
	fields := map[string]*structpb.Value{}
	switch {
	case r.booking != "":
		fields[wire.Namespace] = one(wire.Booking, r.booking)
	case r.pick != nil:
		fields[wire.NamespaceLB] = one(wire.Picked, destinations(r.pick))
		fields[wire.Namespace] = one(wire.Decision, r.pick.ID)
	default:
		return nil
	}
	return &structpb.Struct{Fields: fields}
}

func one(key, value string) *structpb.Value {
	return structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{key: structpb.NewStringValue(value)}})
}

// destinations lists the picked address and those to try after it. A pick of one rank among
// several names no other worker: the rank's number would be wrong there.
func destinations(d *route.Decision) string {
	if len(d.Others) == 0 || d.Ranks > 1 {
		return d.Address
	}
	return d.Address + "," + strings.Join(d.Others, ",")
}

// mutation is what changes in the request itself; nil where nothing does.
func (s *Server) mutation(r reply) *extprocv3.CommonResponse {
	if r.pick == nil {
		return nil
	}
	c, h := &extprocv3.CommonResponse{}, &extprocv3.HeaderMutation{}
	if r.header {
		h.SetHeaders = append(h.SetHeaders, set(wire.Picked, destinations(r.pick)))
	}
	if pool, other := s.otherPool(r.pick.Model); other {
		h.SetHeaders = append(h.SetHeaders, set(wire.HeaderModel, pool))
		c.ClearRouteCache = true
	}
	if r.pick.Ranks > 1 {
		h.SetHeaders = append(h.SetHeaders, set(headerRank, strconv.Itoa(r.pick.Rank)))
	}
	if r.body != nil {
		c.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: r.body}}
		h.SetHeaders = append(h.SetHeaders, set("content-length", strconv.Itoa(len(r.body))))
		h.RemoveHeaders = []string{"content-encoding"}
	}
	if len(h.SetHeaders) == 0 {
		return nil
	}
	c.HeaderMutation = h
	return c
}

func set(key, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: key, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

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
		Details: wire.DetailPrefix + a.detail,
	}
}
