package stream

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/stator-project/stator/test/testkit"
)

// first is the message with the headers of a filter in this mode.
func first(mode filterv3.ProcessingMode_BodySendMode) *extprocv3.ProcessingRequest {
	m := completionHeaders(false)
	m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: mode}
	return m
}

var trailers = &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}}

// all sends messages and returns all replies until the server ends the stream.
func all(t *testing.T, c extprocv3.ExternalProcessorClient, list ...*extprocv3.ProcessingRequest) (replies []*extprocv3.ProcessingResponse) {
	t.Helper()
	s := open(t, c)
	for _, m := range list {
		if err := s.Send(m); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return replies
		}
		if err != nil {
			t.Fatal(err)
		}
		replies = append(replies, m)
	}
}

// echo puts the pieces of a body together that were sent back. It is as long as Envoy expects: the last piece ends it,
// unless trailers follow.
func echo(t *testing.T, replies []*extprocv3.ProcessingResponse, withTrailers bool) string {
	t.Helper()
	var body bytes.Buffer
	ended := false
	for i, m := range replies {
		if m.GetRequestTrailers() != nil {
			if !withTrailers || i != len(replies)-1 {
				t.Errorf("reply %d is to trailers", i)
			}
			continue
		}
		piece := m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if piece == nil || ended || len(piece.GetBody()) > 64<<10 {
			t.Fatalf("reply %d: %d bytes, nil %v, after the end %v", i, len(piece.GetBody()), piece == nil, ended)
		}
		body.Write(piece.GetBody())
		ended = piece.GetEndOfStream()
	}
	if ended == withTrailers {
		t.Errorf("the end of the body is marked: %v", ended)
	}
	return body.String()
}

// TestFullDuplex gathers the pieces of a body, decides, and sends the body back after the reply to the headers, which has
// the pick and the id of its booking.
func TestFullDuplex(t *testing.T) {
	long := `{"model": "sim", "prompt": "` + strings.Repeat("x", 300_000) + `"}`
	for name, tt := range map[string]struct {
		pieces   []string
		trailers bool
	}{
		"one piece":    {[]string{hello}, false},
		"two pieces":   {[]string{hello[:10], hello[10:]}, false},
		"an empty end": {[]string{hello, ""}, false},
		"trailers":     {[]string{hello}, true},
		"a long body":  {[]string{long[:100_000], long[100_000:]}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w, client := served(t)
			list := []*extprocv3.ProcessingRequest{first(filterv3.ProcessingMode_FULL_DUPLEX_STREAMED)}
			for i, p := range tt.pieces {
				list = append(list, bodyMessage(!tt.trailers && i == len(tt.pieces)-1, p))
			}
			if tt.trailers {
				list = append(list, trailers)
			}

			replies := all(t, client, list...)
			facts := replies[0].GetDynamicMetadata().GetFields()["stator"].GetStructValue().GetFields()
			id := facts["booking"].GetStringValue()
			if replies[0].GetRequestHeaders() == nil || id == "" || facts["decision"].GetStringValue() != id {
				t.Fatalf("the first reply is %v", replies[0])
			}
			body := strings.Join(tt.pieces, "")
			if echo(t, replies[1:], tt.trailers) != body {
				t.Error("the body has changed")
			}
			d, ok := w.Router.Explain(id)
			if !ok || d.PromptTokens != strings.Count(body, "x")+len("hello")*strings.Count(body, "hello") {
				t.Errorf("decision %+v", d)
			}
			w.idle(t)
			if !w.Router.End(id, time.Now()) || w.bodyBytes() != 0 {
				t.Errorf("%d bytes are held, or the booking is missing", w.bodyBytes())
			}
		})
	}
}

// TestFullDuplexRefusals: a wrong body, one that is too large, and one beyond the budget get an answer before any reply to
// the headers.
func TestFullDuplexRefusals(t *testing.T) {
	half := strings.Repeat(" ", 600<<10)
	for name, tt := range map[string]struct {
		bodies int64
		pieces []string
		status int
	}{
		"wrong":             {4 << 20, []string{"{"}, 400},
		"too large":         {4 << 20, []string{half, half}, 413},
		"beyond the budget": {1 << 20, []string{half, hello}, 503},
	} {
		w, client := served(t)
		w.Settings.BodiesBytes = tt.bodies
		w.Requests.Reload(w.Settings)
		list := []*extprocv3.ProcessingRequest{first(filterv3.ProcessingMode_FULL_DUPLEX_STREAMED)}
		for i, p := range tt.pieces {
			list = append(list, bodyMessage(i == len(tt.pieces)-1, p))
		}
		replies := all(t, client, list...)
		if n := replies[0].GetImmediateResponse().GetStatus().GetCode(); len(replies) != 1 || int(n) != tt.status {
			t.Errorf("%s: %d replies, %d, want %d", name, len(replies), n, tt.status)
		}
		w.idle(t)
		if w.Router.Bookings() != 0 || w.bodyBytes() != 0 {
			t.Errorf("%s: %d booked, %d bytes held", name, w.Router.Bookings(), w.bodyBytes())
		}
	}
}

// TestUnreadBodies: if no body arrives before Envoy forwards the headers, or only a part of it, requests go by load. The log names the
// setting once, and a metric counts them.
func TestUnreadBodies(t *testing.T) {
	cut := bodyMessage(false, hello[:len(hello)-2])
	for name, tt := range map[string]struct {
		mode   filterv3.ProcessingMode_BodySendMode
		rest   []*extprocv3.ProcessingRequest
		booked int // with an id that Envoy has
	}{
		"NONE":             {filterv3.ProcessingMode_NONE, nil, 0},
		"STREAMED":         {filterv3.ProcessingMode_STREAMED, []*extprocv3.ProcessingRequest{cut, bodyMessage(true, "}")}, 0},
		"BUFFERED_PARTIAL": {filterv3.ProcessingMode_BUFFERED_PARTIAL, []*extprocv3.ProcessingRequest{cut}, 1},
	} {
		w, client := served(t)
		for range 2 {
			replies := all(t, client, append([]*extprocv3.ProcessingRequest{first(tt.mode)}, tt.rest...)...)
			isPick := func(m *extprocv3.ProcessingResponse) bool {
				return m.GetDynamicMetadata().GetFields()["envoy.lb"] != nil
			}
			if len(replies) > 1+len(tt.rest) || !slices.ContainsFunc(replies, isPick) {
				t.Errorf("%s: not picked: %v", name, replies)
			}
		}
		w.idle(t)
		if n := testutil.ToFloat64(w.server.metrics.unread.WithLabelValues(name)); n != 2 || w.Log.Count("set request_body_mode") != 1 {
			t.Errorf("%s: %v counted; log: %s", name, n, &w.Log)
		}
		if w.Router.Bookings() != 2*tt.booked || w.outcomes("picked") != 2 {
			t.Errorf("%s: %d booked", name, w.Router.Bookings())
		}
	}
}

// TestIDOfALostReply: in mode FULL_DUPLEX_STREAMED the id of a booking follows from the request's id,
// unless another booking has it.
func TestIDOfALostReply(t *testing.T) {
	w, client := served(t)
	for i, same := range []bool{true, false} {
		m := headersMessage(false, ":method", "POST", ":path", "/v1/completions", "x-request-id", "r1")
		m.ProtocolConfig = first(filterv3.ProcessingMode_FULL_DUPLEX_STREAMED).GetProtocolConfig()
		replies := all(t, client, m, bodyMessage(true, hello))
		id := replies[0].GetDynamicMetadata().GetFields()["stator"].GetStructValue().GetFields()["booking"].GetStringValue()
		if want := w.Router.IDFor("bufconn", "r1"); (id == want) != same || id == "" {
			t.Errorf("request %d has the id %s; that of its request is %s", i, id, want)
		}
	}
	if w.Router.Bookings() != 2 {
		t.Errorf("%d booked", w.Router.Bookings())
	}
}

// TestWholePartialBodies: a body that fits into Envoy's buffer is read in mode BUFFERED_PARTIAL.
func TestWholePartialBodies(t *testing.T) {
	w, client := served(t)
	replies := all(t, client, first(filterv3.ProcessingMode_BUFFERED_PARTIAL), bodyMessage(true, hello))
	id := replies[0].GetDynamicMetadata().GetFields()["stator"].GetStructValue().GetFields()["booking"].GetStringValue()
	if d, ok := w.Router.Explain(id); !ok || d.PromptTokens != len("hello") {
		t.Errorf("decision %+v", d)
	}
}

// TestUnreadBodiesOfSeveralModels: without the body no one knows whose model is asked for, so the request is refused.
func TestUnreadBodiesOfSeveralModels(t *testing.T) {
	w, client := served(t)
	w.Settings.SeveralPools = true
	w.Requests.Reload(w.Settings)
	replies := all(t, client, first(filterv3.ProcessingMode_NONE))
	if n := replies[0].GetImmediateResponse().GetStatus().GetCode(); n != 503 || w.outcomes("unread") != 1 {
		t.Errorf("answered %d", n)
	}
}

// TestStreamedBodiesPass: in mode STREAMED the pick is made with the headers. The stream goes on until the request has arrived, and
// every message after the headers is answered without a change.
func TestStreamedBodiesPass(t *testing.T) {
	for name, rest := range map[string][]*extprocv3.ProcessingRequest{
		"pieces":               {bodyMessage(false, "{"), bodyMessage(false, `"a":1`), bodyMessage(true, "}")},
		"pieces and trailers":  {bodyMessage(false, "{"), bodyMessage(false, "}"), trailers},
		"an empty last piece":  {bodyMessage(false, "{}"), bodyMessage(true, "")},
		"nothing but trailers": {trailers},
	} {
		w, client := served(t)
		replies := all(t, client, append([]*extprocv3.ProcessingRequest{first(filterv3.ProcessingMode_STREAMED)}, rest...)...)
		if len(replies) != 1+len(rest) {
			t.Errorf("%s: %d replies to %d messages", name, len(replies), 1+len(rest))
		}
		for _, m := range replies[1:] {
			body, tail := m.GetRequestBody(), m.GetRequestTrailers()
			if body == nil && tail == nil || body.GetResponse() != nil && proto.Size(body.GetResponse()) > 0 {
				t.Errorf("%s: %v", name, m)
			}
		}
		w.idle(t)
	}
}

// TestWholeBodiesBeforeTrailers: in mode BUFFERED_PARTIAL a whole body that trailers follow has no mark at its end, and is read.
func TestWholeBodiesBeforeTrailers(t *testing.T) {
	w, client := served(t)
	all(t, client, first(filterv3.ProcessingMode_BUFFERED_PARTIAL), bodyMessage(false, hello))
	if n := testutil.ToFloat64(w.server.metrics.unread.WithLabelValues("BUFFERED_PARTIAL")); n != 0 {
		t.Errorf("%v bodies were not read", n)
	}
}

// TestObservers: a filter that ignores replies gets none, and nothing is booked for it.
func TestObservers(t *testing.T) {
	w, client := served(t)
	m := first(filterv3.ProcessingMode_STREAMED)
	m.ObservabilityMode = true
	if replies := all(t, client, m); len(replies) != 0 || w.Router.Bookings() != 0 || w.Log.Count("observability_mode") != 1 {
		t.Errorf("%d replies, %d booked; log: %s", len(replies), w.Router.Bookings(), &w.Log)
	}
}

// TestNoticesAreFew: a mistake is logged once for each Envoy, and not more often than the bound.
func TestNoticesAreFew(t *testing.T) {
	var log testkit.Log
	n := notices{log: log.Logger()}
	for i := range 2 * maxNotices {
		n.logOnce("envoy", "one mistake")
		n.logOnce(strings.Repeat("e", i), "a mistake of each")
	}
	if got := log.Count("level=WARN"); got != maxNotices {
		t.Errorf("%d lines", got)
	}
}

// TestMistakesAreLogged: a message that cannot be used is an error in the log too, once.
func TestMistakesAreLogged(t *testing.T) {
	w, client := served(t)
	for range 2 {
		s := open(t, client)
		if err := s.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Fatal(err)
		}
	}
	if w.Log.Count("set request_header_mode") != 1 {
		t.Errorf("log: %s", &w.Log)
	}
}
