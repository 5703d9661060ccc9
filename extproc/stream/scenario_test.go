package stream

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/extproc/spans"
	"github.com/stator-project/stator/test/doors"
)

// TestExchange runs testdata/exchange/*.txt: Envoy's messages and the replies. Each byte of a chat's contents or
// of a prompt is a token, and a block has four. Verbs, beside those of [doors.World]:
//
//	request METHOD PATH [end] [trusted] [ours] [HEADER=VALUE]...
//	                                                     headers; end: there is no body; trusted: on the listener of
//	                                                     trusted clients; ours: Envoy has its configuration from xds
//	body [repeat=N] [go]                                 text: the whole body, N times; go: as a Go string has it
//	end                                                  the access-log entry ends the booking
//
// A line in brackets shows the phase of the exchange and the number of bookings.
func TestExchange(t *testing.T) {
	datadriven.Walk(t, "testdata/exchange", func(t *testing.T, file string) {
		w := newWorld()
		datadriven.RunTest(t, file, w.act)
	})
}

// world is a server with a real router over a small fleet.
type world struct {
	*doors.World
	server *Server
	door   *door
}

var start = doors.Start

func newWorld() *world { return newTracedWorld(nil) }

func newTracedWorld(tracer *spans.Tracer) *world {
	w := &world{World: doors.New("", tracer)}
	w.server = NewServer(w.Requests, w.Logger, w.Registry)
	return w
}

func (w *world) act(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "request":
		return w.request(d)
	case "body":
		return w.reply(exchange.WantBody, w.door.OnBody(doors.Body(t, d), true, start))
	case "end":
		return fmt.Sprintf("%v\n%s", w.Router.End(w.door.Booking(), start), w.state())
	}
	if !w.Act(t, d) {
		d.Fatalf(t, "unknown verb %s", d.Cmd)
	}
	return ""
}

func (w *world) request(d *datadriven.TestData) string {
	headers := []string{":method", d.CmdArgs[0].Key, ":path", doors.Path(d)}
	for _, a := range d.CmdArgs[2:] {
		if len(a.Vals) > 0 && !strings.HasPrefix(a.Key, "subset") {
			headers = append(headers, a.Key, a.Vals[0])
		}
	}
	ours := d.HasArg("ours") || d.HasArg("snippet")
	w.door = &door{srv: w.server, foreign: !ours, Exchange: w.Requests.Begin(exchange.Origin{
		Source: "envoy-a", TrustedListener: d.HasArg("trusted"), Configured: d.HasArg("ours"), ReadsMetadata: ours,
	})}
	message := headersMessage(d.HasArg("end"), headers...)
	message.MetadataContext = subset(d)
	m := w.read(message)
	return w.reply(exchange.WantHeaders, w.door.onHeaders(m, start))
}

// read decodes a message of Envoy as the server does.
func (w *world) read(m *extprocv3.ProcessingRequest) *messages.Request {
	raw, err := proto.Marshal(m)
	r := &messages.Request{Names: headerNames(&w.Settings)}
	if err == nil {
		err = r.Read(raw)
	}
	if err != nil {
		panic(err)
	}
	return r
}

// subset returns the metadata of a proxy that restricts a request to some endpoints: the arguments subset, a list, and subset-text, one
// text with commas.
func subset(d *datadriven.TestData) *corev3.Metadata {
	var value *structpb.Value
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "subset":
			list := &structpb.ListValue{}
			for _, v := range a.Vals {
				list.Values = append(list.Values, structpb.NewStringValue(v))
			}
			value = structpb.NewListValue(list)
		case "subset-text":
			value = structpb.NewStringValue(strings.Join(a.Vals, ", "))
		}
	}
	if value == nil {
		return nil
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"envoy.lb.subset_hint": {Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint-subset": value}},
	}}
}

func headersMessage(end bool, pairs ...string) *extprocv3.ProcessingRequest {
	m := &extprocv3.HttpHeaders{EndOfStream: end, Headers: &corev3.HeaderMap{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.Headers.Headers = append(m.Headers.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: m}}
}

// reply prints the reply to a message of that phase.
func (w *world) reply(answered exchange.Phase, r exchange.Reply) string {
	if r.Answer != nil && !slices.Contains(exchange.Outcomes(), r.Answer.Detail) {
		return "the detail " + r.Answer.Detail + " is none of the outcomes"
	}
	return printResponse(sent(toMessage(r, answered, w.door.foreign))) + w.state()
}

func (w *world) state() string {
	next := [...]string{"wants headers", "wants body", "follows", "finished"}[w.door.Phase()]
	return fmt.Sprintf("[%s; %d booked]\n", next, w.Router.Bookings())
}

// sent decodes a message of the server as Envoy does.
func sent(m any) *extprocv3.ProcessingResponse {
	raw, err := messages.Codec().Marshal(m)
	resp := &extprocv3.ProcessingResponse{}
	if err == nil {
		err = proto.Unmarshal(raw.Materialize(), resp)
	}
	if err != nil {
		panic(err)
	}
	return resp
}

// printResponse prints every field of a response that is set.
func printResponse(m *extprocv3.ProcessingResponse) string {
	var b strings.Builder
	switch r := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		fmt.Fprintf(&b, "answer %d %s\n", r.ImmediateResponse.GetStatus().GetCode(), r.ImmediateResponse.GetDetails())
		printMutation(&b, r.ImmediateResponse.GetHeaders())
		fmt.Fprintf(&b, "  body %s\n", shorten(r.ImmediateResponse.GetBody()))
	case *extprocv3.ProcessingResponse_RequestHeaders:
		b.WriteString("headers: continue\n")
		printCommon(&b, r.RequestHeaders.GetResponse())
	case *extprocv3.ProcessingResponse_RequestBody:
		b.WriteString("body: continue\n")
		printCommon(&b, r.RequestBody.GetResponse())
	}
	printMetadata(&b, m.GetDynamicMetadata())
	return b.String()
}

func printCommon(b *strings.Builder, c *extprocv3.CommonResponse) {
	printMutation(b, c.GetHeaderMutation())
	if c.GetClearRouteCache() {
		b.WriteString("  choose the route again\n")
	}
	if m := c.GetBodyMutation(); m != nil {
		fmt.Fprintf(b, "  body %s\n", shorten(m.GetBody()))
	}
}

func printMutation(b *strings.Builder, m *extprocv3.HeaderMutation) {
	for _, h := range m.GetSetHeaders() {
		fmt.Fprintf(b, "  set %s: %s\n", h.GetHeader().GetKey(), h.GetHeader().GetRawValue())
	}
	for _, h := range m.GetRemoveHeaders() {
		fmt.Fprintf(b, "  remove %s\n", h)
	}
}

func printMetadata(b *strings.Builder, m *structpb.Struct) {
	var lines []string
	for namespace, v := range m.GetFields() {
		for key, v := range v.GetStructValue().GetFields() {
			lines = append(lines, fmt.Sprintf("  metadata %s %s = %s\n", namespace, key, v.GetStringValue()))
		}
	}
	slices.Sort(lines)
	b.WriteString(strings.Join(lines, ""))
}

func shorten(body []byte) string {
	if len(body) > 512 {
		return fmt.Sprintf("of %d bytes: %s…", len(body), bytes.ReplaceAll(body[:48], []byte("\n"), nil))
	}
	return string(body)
}
