package messages

import (
	"bytes"
	"cmp"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	aiv3 "github.com/envoyproxy/go-control-plane/envoy/data/ai/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stator-project/stator/internal/envoynames"
)

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// headers returns the first message of a request, with pairs of keys and values.
func headers(end bool, pairs ...string) *extprocv3.ProcessingRequest {
	m := &extprocv3.HttpHeaders{EndOfStream: end, Headers: &corev3.HeaderMap{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.Headers.Headers = append(m.Headers.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return &extprocv3.ProcessingRequest{
		Request:        &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: m},
		Attributes:     map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_BUFFERED},
	}
}

func duplex(pairs ...string) *extprocv3.ProcessingRequest {
	m := headers(false, pairs...)
	m.ProtocolConfig.RequestBodyMode = filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	return m
}

func body(end bool, b string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: end},
	}}
}

// generated returns a request as the generated code decodes it.
func generated(m *extprocv3.ProcessingRequest, affinity string) Request {
	r := Request{Names: Names{Sessions: []string{affinity}}, Observed: m.GetObservabilityMode()}
	if c := m.GetProtocolConfig(); c != nil {
		r.Mode, r.ResponseMode = modeOf(int32(c.GetRequestBodyMode())), modeOf(int32(c.GetResponseBodyMode()))
	}
	switch q := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		r.Kind, r.Field, r.EndOfStream = Headers, 2, q.RequestHeaders.GetEndOfStream()
		for _, h := range q.RequestHeaders.GetHeaders().GetHeaders() {
			value := string(h.GetRawValue())
			if value == "" {
				value = h.GetValue()
			}
			switch h.GetKey() {
			case ":method":
				r.Method = value
			case ":path":
				r.Path = value
			case "content-encoding":
				r.ContentEncoding = value
			case "content-length":
				r.ContentLength = value
			case "x-request-id":
				if r.Mode == FullDuplex {
					r.RequestID = value
				}
			case affinity:
				if value != "" {
					r.Session = value
				}
			}
		}
	case *extprocv3.ProcessingRequest_RequestBody:
		r.Kind, r.Field, r.EndOfStream, r.Body = Body, 4, q.RequestBody.GetEndOfStream(), q.RequestBody.GetBody()
	case *extprocv3.ProcessingRequest_RequestTrailers:
		r.Kind, r.Field = Trailers, 6
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		r.Kind, r.Field, r.EndOfStream = ResponseHeaders, 3, q.ResponseHeaders.GetEndOfStream()
		for _, h := range q.ResponseHeaders.GetHeaders().GetHeaders() {
			value := cmp.Or(string(h.GetRawValue()), h.GetValue())
			switch h.GetKey() {
			case ":status":
				n, _ := strconv.ParseUint(value, 10, 16)
				r.Status = uint32(n)
			case "content-type":
				r.EventStream = strings.HasPrefix(value, "text/event-stream")
			}
		}
	case *extprocv3.ProcessingRequest_ResponseBody:
		r.Kind, r.Field, r.EndOfStream, r.Body = ResponseBody, 5, q.ResponseBody.GetEndOfStream(), q.ResponseBody.GetBody()
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		r.Kind, r.Field = ResponseTrailers, 7
	}
	return r
}

// answered is the first message of a response.
func answered(status, contentType string) *extprocv3.ProcessingRequest {
	m := headers(false, ":status", status, "content-type", contentType)
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: m.GetRequestHeaders()}}
}

// TestSubset: the endpoints that a request may go to, as gateways send them. Nil means every one.
func TestSubset(t *testing.T) {
	list := func(texts ...any) *structpb.Value {
		l, err := structpb.NewList(texts)
		if err != nil {
			t.Fatal(err)
		}
		return structpb.NewListValue(l)
	}
	many := make([]any, 2*maxSubset)
	for i := range many {
		many[i] = "10.0.0.1:" + strconv.Itoa(i)
	}

	for _, tt := range []struct {
		namespace, key string
		value          *structpb.Value
		want           string // joined; "none" means an empty list
	}{
		{namespaceSubset, keySubset, list("10.0.0.2:80", "10.0.0.1"), "10.0.0.1 10.0.0.2:80"},
		{namespaceSubset, keySubset, structpb.NewStringValue(" [fd00::1]:80,10.0.0.1:80 ,"), "10.0.0.1:80 [fd00::1]:80"},
		{namespaceSubset, keySubset, list("10.0.0.1:80, 10.0.0.3:80", 7), "10.0.0.1:80 10.0.0.3:80"},
		{namespaceSubset, keySubset, list(), "none"},
		{namespaceSubset, keySubset, structpb.NewStringValue(""), "none"},
		{namespaceSubset, keySubset, structpb.NewNumberValue(1), "none"},
		{namespaceSubset, keySubset, list([]any{"10.0.0.1:80"}), "none"},
		{namespaceSubset, "other", list("10.0.0.1:80"), ""},
		{"envoy.lb", keySubset, list("10.0.0.1:80"), ""},
	} {
		m := headers(false, ":method", "POST")
		m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			tt.namespace: {Fields: map[string]*structpb.Value{tt.key: tt.value}},
		}}
		var r Request
		err := r.Read(marshal(t, m))
		got := strings.Join(r.Subset, " ")
		if r.Subset != nil && got == "" {
			got = "none"
		}
		if err != nil || got != tt.want || r.Method != "POST" {
			t.Errorf("%v: subset %q, %v; want %q", tt.value, got, err, tt.want)
		}
	}

	m := headers(false)
	m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespaceSubset: {Fields: map[string]*structpb.Value{keySubset: list(many...)}}}}
	var r Request
	if err := r.Read(marshal(t, m)); err != nil || len(r.Subset) != maxSubset {
		t.Errorf("%d endpoints were kept, %v", len(r.Subset), err)
	}
}

// TestServedWorker: the worker that answered is named by an attribute, or by the load balancer's metadata.
func TestServedWorker(t *testing.T) {
	texts := func(key, value string) *structpb.Struct {
		return &structpb.Struct{Fields: map[string]*structpb.Value{"response.code": structpb.NewNumberValue(200), key: structpb.NewStringValue(value)}}
	}
	byAttribute, byMetadata := answered("200", "text/event-stream; charset=utf-8"), answered("503", "text/plain")
	byAttribute.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": texts("upstream.address", "10.0.0.1:80")}
	byMetadata.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"other":    texts(envoynames.HeaderDestinationServed, "10.0.0.9:80"),
		"envoy.lb": texts(envoynames.HeaderDestinationServed, "10.0.0.2:80"),
	}}
	for _, tt := range []struct {
		m           *extprocv3.ProcessingRequest
		served      string
		status      uint32
		eventStream bool
	}{
		{byAttribute, "10.0.0.1:80", 200, true},
		{byMetadata, "10.0.0.2:80", 503, false},
		{answered("none", ""), "", 0, false},
	} {
		var r Request
		if err := r.Read(marshal(t, tt.m)); err != nil || r.Served != tt.served || r.Status != tt.status || r.EventStream != tt.eventStream {
			t.Errorf("served %q, %d, %v, %v; want %+v", r.Served, r.Status, r.EventStream, err, tt)
		}
	}
}

func same(a, b Request) bool {
	x, y := a.Body, b.Body
	a.Body, b.Body = nil, nil
	if a.Kind == Other { // the generated code names the rest by types
		a.Field = 0
	}
	return bytes.Equal(x, y) && slices.Equal(a.Names.Sessions, b.Names.Sessions) && a.Kind == b.Kind && a.Field == b.Field && a.EndOfStream == b.EndOfStream &&
		a.Mode == b.Mode && a.Observed == b.Observed && a.Method == b.Method && a.Path == b.Path && a.ContentEncoding == b.ContentEncoding &&
		a.ContentLength == b.ContentLength && a.Session == b.Session && a.RequestID == b.RequestID &&
		a.ResponseMode == b.ResponseMode && a.Status == b.Status && a.EventStream == b.EventStream
}

var requests = []*extprocv3.ProcessingRequest{
	headers(false, ":method", "POST", ":path", "/v1/completions", "content-length", "12", "x-s", "s1", "cookie", "secret"),
	headers(true, ":method", "GET", ":path", "/v1/models", "content-encoding", "gzip", ":path", "/health"),
	headers(false),
	body(true, `{"model": "m"}`),
	body(false, strings.Repeat("x", 70_000)),
	body(true, ""),
	{},
	{ProtocolConfig: &extprocv3.ProtocolConfiguration{}, ObservabilityMode: true},
	duplex(":method", "POST", "x-request-id", "r1"),
	{ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED}},
	{ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_GRPC}},
	{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{}}},
	answered("200", "text/event-stream"),
	{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte("data"), EndOfStream: true}}},
	{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}},
	{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}},
	{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{
		Headers: []*corev3.HeaderValue{{Key: ":method", Value: "PUT"}, {Key: ":path", Value: "/"}, {Key: "content-length", Value: "1", RawValue: []byte("2")}},
	}}}},
}

// FuzzRequest: both decoders return the same fields. A message that is refused is also refused by the generated
// code, or has a message field twice.
func FuzzRequest(f *testing.F) {
	for _, m := range requests {
		f.Add(marshal(f, m))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		var m extprocv3.ProcessingRequest
		theirs := proto.Unmarshal(message, &m)
		r := Request{Names: Names{Sessions: []string{"x-s"}}}
		err := r.Read(message)
		switch {
		case errors.Is(err, errTwice):
		case theirs == nil && err != nil:
			t.Fatalf("%q is refused: %v", message, err)
		case theirs == nil:
			if want := generated(&m, "x-s"); !same(r, want) {
				t.Fatalf("%q is read as %+v, want %+v", message, r, want)
			}
		}
	})
}

// TestResponseIsReadByGeneratedCode: the generated code decodes each response to the same values.
func TestResponseIsReadByGeneratedCode(t *testing.T) {
	long := strings.Repeat("10.0.0.1:8000,", 40)
	for _, r := range []Response{
		{To: Headers, Booking: "0123456789abcdef"},
		{To: Body, Decision: "d", Picked: long},
		{To: Body, Decision: "d", Facts: []envoynames.Header{{Key: envoynames.Model, Value: long}, {Key: envoynames.Overlap, Value: "3"}}},
		{To: Headers},
		{To: Headers, Booking: "b", Decision: "d", Picked: "10.0.0.1:8000"},
		{To: Headers, Booking: "b", Decision: "d", Picked: "10.0.0.1:8000", InLB: true},
		{To: Headers, Booking: "b", InLB: true},
		{To: Body, Decision: "d", Picked: "10.0.0.1:8000", Set: []envoynames.Header{{Key: envoynames.HeaderDestination, Value: "10.0.0.1:8000"}, {Key: "content-length", Value: "3"}}, Remove: []string{"content-encoding"},
			NewBody: []byte("new"), ClearRoute: true},
		{To: Body, NewBody: []byte{}},
		{To: Body, NewBody: []byte("piece"), Piece: true},
		{To: Body, NewBody: []byte{}, Piece: true, EndOfStream: true},
		{To: Trailers},
		{To: Headers, Booking: "b", SkipResponse: BufferedPartial},
		{To: ResponseHeaders},
		{To: ResponseBody},
		{To: ResponseBody, NewBody: []byte("piece"), Piece: true, EndOfStream: true},
		{To: ResponseTrailers},
	} {
		var m extprocv3.ProcessingResponse
		if err := proto.Unmarshal(r.Append(nil), &m); err != nil {
			t.Fatal(err)
		}
		common := m.GetRequestHeaders().GetResponse()
		switch r.To {
		case Body:
			common = m.GetRequestBody().GetResponse()
		case ResponseBody:
			common = m.GetResponseBody().GetResponse()
		}
		answers := map[Kind]bool{
			Headers: m.GetRequestHeaders() != nil, Body: m.GetRequestBody() != nil, Trailers: m.GetRequestTrailers() != nil,
			ResponseHeaders: m.GetResponseHeaders() != nil, ResponseBody: m.GetResponseBody() != nil, ResponseTrailers: m.GetResponseTrailers() != nil,
		}
		if mode := m.GetModeOverride(); modeOf(int32(mode.GetRequestBodyMode())) != max(r.SkipResponse, None) || mode.GetResponseBodyMode() != 0 {
			t.Errorf("%+v has the mode %v", r, mode)
		}
		if !answers[r.To] {
			t.Errorf("%+v answers %T", r, m.GetResponse())
		}
		facts := func(namespace, key string) string {
			return m.GetDynamicMetadata().GetFields()[namespace].GetStructValue().GetFields()[key].GetStringValue()
		}
		got := Response{To: r.To, Booking: facts(envoynames.Namespace, envoynames.Booking), Decision: facts(envoynames.Namespace, envoynames.Decision),
			Picked: facts(envoynames.NamespaceLB, envoynames.HeaderDestination), ClearRoute: common.GetClearRouteCache(), Remove: common.GetHeaderMutation().GetRemoveHeaders()}
		for _, f := range r.Facts {
			if got := facts(envoynames.Namespace, f.Key); got != f.Value {
				t.Errorf("%+v has %s %q", r, f.Key, got)
			}
		}
		for own, key := range map[string]string{envoynames.Booking: envoynames.BookingLB, envoynames.Decision: envoynames.DecisionLB} {
			want := ""
			if r.InLB {
				want = facts(envoynames.Namespace, own)
			}
			if again := facts(envoynames.NamespaceLB, key); again != want {
				t.Errorf("%+v has %s %q, want %q", r, key, again, want)
			}
		}
		for _, h := range common.GetHeaderMutation().GetSetHeaders() {
			if h.GetAppendAction() != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
				t.Errorf("header %s: %s", h.GetHeader().GetKey(), h.GetAppendAction())
			}
			got.Set = append(got.Set, envoynames.Header{Key: h.GetHeader().GetKey(), Value: string(h.GetHeader().GetRawValue())})
		}
		if common.GetBodyMutation() != nil {
			got.NewBody = common.GetBodyMutation().GetBody()
		}
		if piece := common.GetBodyMutation().GetStreamedResponse(); piece != nil {
			got.Piece, got.EndOfStream, got.NewBody = true, piece.GetEndOfStream(), append([]byte{}, piece.GetBody()...)
		}
		if got.Booking != r.Booking || got.Decision != r.Decision || got.Picked != r.Picked || got.ClearRoute != r.ClearRoute ||
			!slices.Equal(got.Set, r.Set) || !slices.Equal(got.Remove, r.Remove) || !bytes.Equal(got.NewBody, r.NewBody) || (got.NewBody == nil) != (r.NewBody == nil) ||
			got.Piece != r.Piece || got.EndOfStream != r.EndOfStream {
			t.Errorf("%+v reads back as %+v", r, got)
		}
		if again := marshal(t, &m); proto.Size(&m) != len(r.Append(nil)) {
			t.Errorf("%d bytes, the generated code writes %d", len(r.Append(nil)), len(again))
		}
	}
}

// logOf returns a message of the access log.
func logOf(entries ...*datav3.HTTPAccessLogEntry) *alsv3.StreamAccessLogsMessage {
	return &alsv3.StreamAccessLogsMessage{
		Identifier: &alsv3.StreamAccessLogsMessage_Identifier{LogName: "gateway", Node: &corev3.Node{Id: "envoy-a"}},
		LogEntries: &alsv3.StreamAccessLogsMessage_HttpLogs{HttpLogs: &alsv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: entries}},
	}
}

func texts(pairs ...string) *structpb.Struct {
	s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		s.Fields[pairs[i]] = structpb.NewStringValue(pairs[i+1])
	}
	return s
}

var finished = &datav3.HTTPAccessLogEntry{CommonProperties: &datav3.AccessLogCommon{
	SampleRate: 1, UpstreamRemoteAddress: socketAt("10.0.0.3", 8000), UpstreamRequestAttemptCount: 2, RouteName: "r",
	TimeToFirstUpstreamRxByte: durationpb.New(1500 * time.Millisecond), TimeToLastUpstreamRxByte: durationpb.New(3 * time.Second), CustomTags: map[string]string{"a": "b"},
	Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		envoynames.Namespace:   texts(envoynames.Booking, "b1", envoynames.Decision, "d1", "other", "x"),
		envoynames.NamespaceLB: texts(envoynames.HeaderDestination, "a,b", envoynames.HeaderDestinationServed, "a"),
		"envoy.other":          texts(envoynames.Booking, "no"),
	}},
	ResponseFlags: &datav3.ResponseFlags{UpstreamRemoteReset: true, DownstreamConnectionTermination: true, NoRouteFound: true},
}, Response: &datav3.HTTPResponseProperties{ResponseHeadersBytes: 7, ResponseBodyBytes: 12345, ResponseCode: wrapperspb.UInt32(503)}}

// socketAt returns the address of a worker.
func socketAt(ip string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: ip, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// theirs returns an entry as the generated code decodes it.
func theirs(m *datav3.HTTPAccessLogEntry) Entry {
	e := entryOf(m)
	if e.Booking == "" {
		e.RequestID = m.GetRequest().GetRequestId()
	}
	return e
}

func entryOf(m *datav3.HTTPAccessLogEntry) Entry {
	c := m.GetCommonProperties()
	flags := c.GetResponseFlags()
	fact := func(namespace, key string) string {
		return c.GetMetadata().GetFilterMetadata()[namespace].GetFields()[key].GetStringValue()
	}
	served := fact(envoynames.NamespaceLB, envoynames.HeaderDestinationServed)
	if at := c.GetUpstreamRemoteAddress().GetSocketAddress(); served == "" && at.GetAddress() != "" && at.GetPortValue() != 0 {
		served = net.JoinHostPort(at.GetAddress(), strconv.Itoa(int(at.GetPortValue())))
	}
	var firstToken time.Duration
	if us, err := strconv.ParseUint(c.GetCustomTags()[envoynames.TagFirstToken], 10, 32); err == nil {
		firstToken = time.Duration(us) * time.Microsecond
	}
	tokens, counted := usageOf(c.GetMetadata().GetTypedFilterMetadata()[envoynames.NamespaceUsage])
	return Entry{
		FirstToken: firstToken, AnswerTokens: tokens, Counted: counted,
		Booking:  cmp.Or(fact(envoynames.Namespace, envoynames.Booking), fact(envoynames.NamespaceLB, envoynames.BookingLB)),
		Decision: cmp.Or(fact(envoynames.Namespace, envoynames.Decision), fact(envoynames.NamespaceLB, envoynames.DecisionLB)),
		Picked:   fact(envoynames.NamespaceLB, envoynames.HeaderDestination), Served: served,
		Upstream: c.GetUpstreamRemoteAddress() != nil, Attempts: c.GetUpstreamRequestAttemptCount(),
		FirstByte: max(0, c.GetTimeToFirstUpstreamRxByte().AsDuration()), LastByte: max(0, c.GetTimeToLastUpstreamRxByte().AsDuration()),
		ResponseBytes: m.GetResponse().GetResponseBodyBytes(), Status: m.GetResponse().GetResponseCode().GetValue(),
		Broken: slices.Contains([]bool{
			flags.GetNoHealthyUpstream(), flags.GetUpstreamRequestTimeout(), flags.GetUpstreamRemoteReset(),
			flags.GetUpstreamConnectionFailure(), flags.GetUpstreamConnectionTermination(), flags.GetUpstreamOverflow(),
			flags.GetStreamIdleTimeout(), flags.GetUpstreamProtocolError(),
		}, true),
		Left: flags.GetDownstreamConnectionTermination() || flags.GetDownstreamRemoteReset(),
	}
}

// usageOf returns the tokens of an answer, and whether they are known.
func usageOf(packed *anypb.Any) (tokens uint64, counted bool) {
	var usage aiv3.TokenUsage
	if packed.GetTypeUrl() != envoynames.TypeUsage || proto.Unmarshal(packed.GetValue(), &usage) != nil || usage.OutputTokens == nil {
		return 0, false
	}
	return min(usage.GetOutputTokens().GetValue(), maxAnswerTokens), true
}

// withUsage returns an entry with a typed value of the usage's namespace.
func withUsage(m proto.Message) *datav3.HTTPAccessLogEntry {
	packed, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	return &datav3.HTTPAccessLogEntry{CommonProperties: &datav3.AccessLogCommon{Metadata: &corev3.Metadata{
		TypedFilterMetadata: map[string]*anypb.Any{envoynames.NamespaceUsage: packed, "other": packed},
	}}}
}

// FuzzLog: both decoders return the same entries.
func FuzzLog(f *testing.F) {
	left := &datav3.HTTPAccessLogEntry{Request: &datav3.HTTPRequestProperties{RequestId: "r1", Path: "/"}}
	f.Add(marshal(f, logOf(finished, &datav3.HTTPAccessLogEntry{}, left, finished)))
	f.Add(marshal(f, logOf()))
	f.Add(marshal(f, logOf(&datav3.HTTPAccessLogEntry{CommonProperties: &datav3.AccessLogCommon{Metadata: &corev3.Metadata{
		FilterMetadata: map[string]*structpb.Struct{envoynames.NamespaceLB: texts(envoynames.BookingLB, "b2", envoynames.DecisionLB, "d2")},
	}}})))
	for _, at := range []*corev3.Address{
		socketAt("10.0.0.3", 8000), socketAt("fd00::1", 65535), socketAt("", 1), socketAt("10.0.0.3", 0),
		{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/run/x"}}}, {},
	} {
		f.Add(marshal(f, logOf(&datav3.HTTPAccessLogEntry{CommonProperties: &datav3.AccessLogCommon{UpstreamRemoteAddress: at}})))
	}
	for _, us := range []string{"1500", "-", "-1", "99999999999", ""} {
		tags := map[string]string{"x": "1", envoynames.TagFirstToken: us}
		f.Add(marshal(f, logOf(&datav3.HTTPAccessLogEntry{CommonProperties: &datav3.AccessLogCommon{CustomTags: tags}})))
	}
	for _, m := range []proto.Message{
		&aiv3.TokenUsage{OutputTokens: wrapperspb.UInt64(50), InputTokens: wrapperspb.UInt64(17), Model: "m"},
		&aiv3.TokenUsage{OutputTokens: wrapperspb.UInt64(1 << 60)}, &aiv3.TokenUsage{InputTokens: wrapperspb.UInt64(17)}, texts("a", "b"),
	} {
		f.Add(marshal(f, logOf(withUsage(m))))
	}
	f.Add(marshal(f, &alsv3.StreamAccessLogsMessage{LogEntries: &alsv3.StreamAccessLogsMessage_TcpLogs{}}))
	f.Fuzz(func(t *testing.T, message []byte) {
		var m alsv3.StreamAccessLogsMessage
		bad := proto.Unmarshal(message, &m)
		var l Log
		err := l.Read(message)
		switch {
		case errors.Is(err, errTwice):
			return
		case bad == nil && err != nil:
			t.Fatalf("%q is refused: %v", message, err)
		case bad != nil || m.GetTcpLogs() != nil:
			return
		}
		want := m.GetHttpLogs().GetLogEntry()
		if len(l.Entries) != len(want) {
			t.Fatalf("%q: %d entries, want %d", message, len(l.Entries), len(want))
		}
		for i, e := range l.Entries {
			e.FirstByte, e.LastByte = max(0, e.FirstByte), max(0, e.LastByte)
			if e != theirs(want[i]) && utf8.Valid(message) {
				t.Fatalf("%q: %+v, want %+v", message, e, theirs(want[i]))
			}
		}
	})
}

// TestCodecHandlesBothKinds: the codec encodes and decodes the messages of this package and generated ones.
func TestCodecHandlesBothKinds(t *testing.T) {
	c := Codec()
	data := marshal(t, headers(false, ":method", "POST", ":path", "/v1/completions"))
	slices := mem.BufferSlice{mem.SliceBuffer(data[:7]), mem.SliceBuffer(data[7:])}
	r, m := &Request{Names: Names{Sessions: []string{"x-s"}}}, &extprocv3.ProcessingRequest{}
	for _, v := range []any{r, m} {
		if err := c.Unmarshal(slices, v); err != nil {
			t.Fatal(err)
		}
	}
	if r.Path != "/v1/completions" || !same(*r, generated(m, "x-s")) {
		t.Errorf("%+v", r)
	}
	clear(data) // nothing is kept of the buffers
	if r.Path != "/v1/completions" {
		t.Errorf("path %q", r.Path)
	}
	for _, v := range []any{&Response{To: Headers, Booking: "b"}, &extprocv3.ProcessingResponse{}} {
		if _, err := c.Marshal(v); err != nil {
			t.Error(err)
		}
	}
	if err := c.Unmarshal(slices, "text"); err == nil {
		t.Error("text was read into")
	}
}

// BenchmarkWire: how long do the messages of one request take, compared with the generated code? The headers are
// those that Envoy forwards, with a body of 1,000 bytes, two responses and one entry.
//
//	go test ./extproc/messages -run '^$' -bench Wire -count 10 | benchstat -col /code -
func BenchmarkWire(b *testing.B) {
	first := marshal(b, headers(false, ":method", "POST", ":path", "/v1/chat/completions", "content-length", "1000",
		"content-type", "application/json"))
	second := marshal(b, body(true, strings.Repeat("x", 1000)))
	entry := marshal(b, logOf(finished))
	b.Run("code=ours", func(b *testing.B) {
		b.ReportAllocs()
		var r Request
		var l Log
		for b.Loop() {
			for _, m := range [][]byte{first, second} {
				if err := r.Read(m); err != nil {
					b.Fatal(err)
				}
			}
			if err := l.Read(entry); err != nil {
				b.Fatal(err)
			}
			_ = (&Response{To: Headers, Booking: "0123456789abcdef"}).Append(make([]byte, 0, 256))
			_ = (&Response{To: Body, Decision: "0123456789abcdef", Picked: "10.0.0.1:8000,10.0.0.2:8000"}).Append(make([]byte, 0, 256))
		}
	})
	b.Run("code=generated", func(b *testing.B) {
		b.ReportAllocs()
		struct1 := func(key, value string) *structpb.Value { return structpb.NewStructValue(texts(key, value)) }
		for b.Loop() {
			for _, message := range [][]byte{first, second} {
				m := &extprocv3.ProcessingRequest{}
				if err := proto.Unmarshal(message, m); err != nil {
					b.Fatal(err)
				}
				_ = generated(m, "x-s")
			}
			m := &alsv3.StreamAccessLogsMessage{}
			if err := proto.Unmarshal(entry, m); err != nil {
				b.Fatal(err)
			}
			_ = theirs(m.GetHttpLogs().GetLogEntry()[0])
			marshal(b, &extprocv3.ProcessingResponse{
				Response:        &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}},
				DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{envoynames.Namespace: struct1(envoynames.Booking, "0123456789abcdef")}},
			})
			marshal(b, &extprocv3.ProcessingResponse{
				Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{}},
				DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
					envoynames.Namespace: struct1(envoynames.Decision, "0123456789abcdef"), envoynames.NamespaceLB: struct1(envoynames.HeaderDestination, "10.0.0.1:8000,10.0.0.2:8000"),
				}},
			})
		}
	})
}

// TestFirstSessionHeaderCounts: of several headers with a session the first one by Names counts, in any order, and an empty one does not.
func TestFirstSessionHeaderCounts(t *testing.T) {
	for want, message := range map[string]*extprocv3.ProcessingRequest{
		"1 one":   headers(false, "x-b", "two", "x-a", "one", "x-c", "three"),
		"1 again": headers(false, "x-a", "one", "x-b", "two", "x-a", "again"),
		"3 two":   headers(false, "x-c", "three", "x-b", "two", "x-a", ""),
		"0 ":      headers(false, "x-d", "four", "", "five"),
	} {
		r := Request{Names: Names{Sessions: []string{"", "x-a", "", "x-b", "x-c"}}}
		if err := r.Read(marshal(t, message)); err != nil {
			t.Fatal(err)
		}
		if got := strconv.Itoa(r.SessionAt) + " " + r.Session; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
