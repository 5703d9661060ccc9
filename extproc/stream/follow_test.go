package stream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/test/doors"
	"github.com/stator-project/stator/test/testkit"
)

// ends is an exchange.Feedback that wants all ends, and ends their bookings.
type ends struct {
	w   *world
	mu  sync.Mutex
	got []exchange.Ending // guarded by mu
}

func (e *ends) Wanted(string) bool         { return true }
func (e *ends) Follow(string, string) bool { return true }

func (e *ends) Ended(_ string, ending exchange.Ending, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.got = append(e.got, ending)
	if !ending.Unseen {
		e.w.Router.End(ending.Booking, now)
	}
}

// one waits for the end of the only request.
func (e *ends) one(t *testing.T) (ending exchange.Ending) {
	t.Helper()
	testkit.Eventually(t, "the request has ended", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.got) > 0 {
			ending = e.got[0]
		}
		return len(e.got) == 1
	})
	return ending
}

// following is a world whose requests are followed to their ends.
func following(t *testing.T) (*world, *ends, extprocv3.ExternalProcessorClient) {
	t.Helper()
	return followingAs(t, false)
}

// followingAs is following. Its router may be a shadow.
func followingAs(t *testing.T, shadow bool) (*world, *ends, extprocv3.ExternalProcessorClient) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) }) // after the server has stopped
	w, _ := served(t)
	e := &ends{w: w}
	log := slog.New(slog.NewTextHandler(&w.Log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	w.Registry = prometheus.NewRegistry()
	w.Requests = exchange.New(w.Settings, exchange.Config{
		Prefills: prefill.New(prefill.Config{Router: w.Router, Log: log, Metrics: w.Registry}),
		Router:   w.Router, Started: start, TenantKey: doors.FixedKey, Feedback: e, Log: log, Metrics: w.Registry,
		Shadow: shadow,
	})
	w.server = NewServer(w.Requests, log, w.Registry)
	return w, e, serve(t, w)
}

// in is the first message of a filter in these modes.
func in(request, response filterv3.ProcessingMode_BodySendMode) *extprocv3.ProcessingRequest {
	m := first(request)
	m.ProtocolConfig.ResponseBodyMode = response
	return m
}

const (
	none       = filterv3.ProcessingMode_NONE
	buffered   = filterv3.ProcessingMode_BUFFERED
	streamed   = filterv3.ProcessingMode_STREAMED
	fullDuplex = filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
)

// picked opens a stream in these modes and waits for its pick.
func picked(t *testing.T, c extprocv3.ExternalProcessorClient, request, response filterv3.ProcessingMode_BodySendMode) (
	s extprocv3.ExternalProcessor_ProcessClient, reset func(),
) {
	t.Helper()
	ctx, reset := context.WithCancel(t.Context())
	t.Cleanup(reset)
	s, err := c.Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if request == fullDuplex {
		if err := s.Send(in(request, response)); err != nil {
			t.Fatal(err)
		}
		ask(t, s, bodyMessage(true, hello)) // the reply to the headers
		if _, err := s.Recv(); err != nil { // the body
			t.Fatal(err)
		}
		return s, reset
	}
	ask(t, s, in(request, response))
	ask(t, s, bodyMessage(true, hello))
	return s, reset
}

// responseHeaders is the first message of a response.
func responseHeaders(end bool, pairs ...string) *extprocv3.ProcessingRequest {
	m := headersMessage(end, pairs...).GetRequestHeaders()
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: m}}
}

func responseBody(end bool, body string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: end},
	}}
}

var (
	responseTrailers = &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{
		ResponseTrailers: &extprocv3.HttpTrailers{},
	}}
	eventStream = responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
)

// TestStreamEndIsTheEnd: Envoy half-closes the stream with its request. If it resets the stream, the request is over in the modes in which
// Envoy would keep the stream, and goes on in the others.
func TestStreamEndIsTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		mode   filterv3.ProcessingMode_BodySendMode
		closes bool // its half; otherwise it resets the stream
		unseen bool
	}{
		"closed":                  {buffered, true, false},
		"closed, FULL_DUPLEX":     {fullDuplex, true, false},
		"reset":                   {buffered, false, false},
		"reset, BUFFERED_PARTIAL": {filterv3.ProcessingMode_BUFFERED_PARTIAL, false, false},
		"reset, FULL_DUPLEX":      {fullDuplex, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			w, e, client := following(t)
			s, reset := picked(t, client, c.mode, none)
			w.idle(t)
			if w.Router.Bookings() != 1 || w.bodyBytes() != 0 || len(e.got) != 0 {
				t.Errorf("%d booked, %d bytes held, %d ends", w.Router.Bookings(), w.bodyBytes(), len(e.got))
			}

			if c.closes {
				if err := s.CloseSend(); err != nil {
					t.Fatal(err)
				}
				if _, err := s.Recv(); !errors.Is(err, io.EOF) {
					t.Errorf("the stream ends with %v", err)
				}
			} else {
				reset()
			}
			if got := e.one(t); got.Unseen != c.unseen || got.Status != 0 || got.Picked == "" {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestResponsePhases: every phase of a response is answered at once and passes unchanged. Its end is the end of the request,
// and of the stream.
func TestResponsePhases(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for name, c := range map[string]struct {
		mode     filterv3.ProcessingMode_BodySendMode // of responses
		messages []*extprocv3.ProcessingRequest
		echo     string // the text that is sent back
		bytes    int
	}{
		"STREAMED": {streamed, []*extprocv3.ProcessingRequest{eventStream, responseBody(false, "one"), responseBody(true, "")}, "", 3},
		"BUFFERED": {buffered, []*extprocv3.ProcessingRequest{eventStream, responseBody(true, "all")}, "", 3},
		"trailers": {streamed, []*extprocv3.ProcessingRequest{eventStream, responseBody(false, "one"), responseTrailers}, "", 3},
		"no body":  {streamed, []*extprocv3.ProcessingRequest{responseHeaders(true, ":status", "200")}, "", 0},
		"FULL_DUPLEX": {fullDuplex, []*extprocv3.ProcessingRequest{eventStream, responseBody(false, "one"), responseBody(true, long)},
			"one" + long, 3 + len(long)},
		"FULL_DUPLEX, ending": {fullDuplex, []*extprocv3.ProcessingRequest{eventStream, responseBody(false, "one"), responseTrailers}, "one", 3},
	} {
		t.Run(name, func(t *testing.T) {
			w, e, client := following(t)
			request := buffered
			if c.mode == fullDuplex {
				request = fullDuplex
			}
			s, _ := picked(t, client, request, c.mode)
			for _, m := range c.messages {
				if err := s.Send(m); err != nil {
					t.Fatal(err)
				}
			}

			var echo strings.Builder
			var replies int
			var ended bool
			for {
				m, err := s.Recv()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				replies++
				change := m.GetResponseBody().GetResponse().GetBodyMutation()
				if change != nil && c.mode != fullDuplex || m.GetRequestBody() != nil || len(change.GetStreamedResponse().GetBody()) > 64<<10 {
					t.Fatalf("replied %v", m)
				}
				echo.Write(change.GetStreamedResponse().GetBody())
				ended = ended || change.GetStreamedResponse().GetEndOfStream()
			}
			hasTrailers := c.messages[len(c.messages)-1] == responseTrailers
			if replies < len(c.messages) || echo.String() != c.echo || ended != (c.mode == fullDuplex && !hasTrailers) {
				t.Errorf("%d replies to %d messages, %d bytes sent back, ended %v", replies, len(c.messages), echo.Len(), ended)
			}
			if got := e.one(t); got.Status != 200 || got.ResponseBytes != uint64(c.bytes) || got.Unseen || got.LastByte == 0 {
				t.Errorf("%+v", got)
			}
			if w.Router.Bookings() != 0 {
				t.Error("the booking is left")
			}
		})
	}
}

// TestEarlyEndOfDuplexStreams: with FULL_DUPLEX_STREAMED requests and no bodies of responses, Envoy resets the stream after the
// headers. A stream of events goes on then. Another response is complete when its headers come.
func TestEarlyEndOfDuplexStreams(t *testing.T) {
	for contentType, unseen := range map[string]bool{"text/event-stream": true, "application/json": false} {
		_, e, client := following(t)
		s, reset := picked(t, client, fullDuplex, none)
		if ask(t, s, responseHeaders(false, ":status", "200", "content-type", contentType)).GetResponseHeaders() == nil {
			t.Error("the headers are not answered")
		}
		reset()
		if got := e.one(t); got.Unseen != unseen || got.Status != 200 {
			t.Errorf("%s: %+v", contentType, got)
		}
	}
}

// TestServedIsReported: the filter's attribute names the worker that answered.
func TestServedIsReported(t *testing.T) {
	_, e, client := following(t)
	s, _ := picked(t, client, buffered, none)
	m := responseHeaders(true, ":status", "200")
	m.Attributes = attributes("upstream.address", "10.0.0.2:8000")
	ask(t, s, m)
	if got := e.one(t); got.Served != "10.0.0.2:8000" {
		t.Errorf("%+v", got)
	}
}

// TestResponseBodiesAreSkipped: Envoy is asked to send no bodies of responses if it can leave its mode.
func TestResponseBodiesAreSkipped(t *testing.T) {
	for _, c := range []struct {
		request, response filterv3.ProcessingMode_BodySendMode
		skipped           bool
	}{
		{buffered, streamed, true},
		{buffered, buffered, true},
		{filterv3.ProcessingMode_BUFFERED_PARTIAL, streamed, true},
		{buffered, none, false},
		{buffered, fullDuplex, false},
	} {
		_, _, client := following(t)
		s := open(t, client)
		mode := ask(t, s, in(c.request, c.response)).GetModeOverride()
		if (mode != nil) != c.skipped || c.skipped && (mode.GetRequestBodyMode() != c.request || mode.GetResponseBodyMode() != none) {
			t.Errorf("%v, %v: %v", c.request, c.response, mode)
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUnexpectedWhileFollowing: a message that does not belong to a response is an error, and the booking ends.
func TestUnexpectedWhileFollowing(t *testing.T) {
	w, e, client := following(t)
	s, _ := picked(t, client, buffered, none)
	if err := s.Send(completionHeaders(false)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	if e.one(t); w.Router.Bookings() != 0 {
		t.Error("the booking is left")
	}
}

// TestDrain: before the server stops it ends the streams without an error.
func TestDrain(t *testing.T) {
	w, e, client := following(t)
	s, _ := picked(t, client, buffered, none)
	w.idle(t)
	refused := 0
	for range 2 {
		w.server.Drain(t.Context(), func() { refused++ })
	}
	if refused != 1 {
		t.Errorf("new streams are refused %d times", refused)
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
	e.one(t)

	s, _ = picked(t, client, buffered, none)
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("a later stream ends with %v", err)
	}
}

// attributes returns a filter's attributes with one text.
func attributes(key, value string) map[string]*structpb.Struct {
	fields := map[string]*structpb.Value{key: structpb.NewStringValue(value)}
	return map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {Fields: fields}}
}
