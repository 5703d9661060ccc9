package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/grpcserve"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/test/doors"
)

// serve runs a world's server on an in-memory connection and returns Envoy's end of it.
func serve(t testing.TB, w *world) extprocv3.ExternalProcessorClient {
	ln := bufconn.Listen(1 << 20)
	var endings grpcserve.Endings
	srv := grpc.NewServer(append(Options(w.Settings.BodyBytes), endings.Option())...)
	Register(srv, w.server)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(endings.Listener(ln)) }()
	conn, err := grpc.NewClient("passthrough:///envoy",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		srv.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it served
			t.Error(err)
		}
	})
	return extprocv3.NewExternalProcessorClient(conn)
}

// served returns a world with two workers and one model, and Envoy's end of a connection to it.
func served(t testing.TB) (*world, extprocv3.ExternalProcessorClient) {
	w := servedBy(t, newWorld())
	return w, serve(t, w)
}

// servedBy gives a world two workers and one model.
func servedBy(t testing.TB, w *world) *world {
	w.Settings.DefaultModel = "sim"
	w.Requests.Reload(w.Settings)
	if err := w.Router.SetModels(map[string]*serving.Config{"sim": {Prompt: doors.Letters{}, BlockSize: 4}}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if _, err := w.Fleet.Put(fleet.Worker{
			Name: fmt.Sprintf("w%d", i), Model: "sim", Address: fmt.Sprintf("10.0.0.%d:8000", i+1), Ranks: 1, State: fleet.Ready,
		}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func bodyMessage(end bool, body string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: end},
	}}
}

// ask sends a message and returns the answer.
func ask(t testing.TB, s extprocv3.ExternalProcessor_ProcessClient, m *extprocv3.ProcessingRequest) *extprocv3.ProcessingResponse {
	t.Helper()
	if err := s.Send(m); err != nil {
		t.Fatal(err)
	}
	resp, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func open(t testing.TB, c extprocv3.ExternalProcessorClient) extprocv3.ExternalProcessor_ProcessClient {
	t.Helper()
	s, err := c.Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// idle waits until no handler runs.
func (w *world) idle(t testing.TB) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); testutil.ToFloat64(w.server.metrics.streams) != 0; {
		if time.Now().After(deadline) {
			t.Fatal("a handler did not return")
		}
		time.Sleep(time.Millisecond)
	}
}

// outcomes returns the number of requests that had an outcome, and bodyBytes the sum of the bodies under decision.
func (w *world) outcomes(outcome string) int {
	return w.metric("stator_extproc_requests_total", outcome)
}
func (w *world) bodyBytes() int { return w.metric("stator_extproc_body_bytes", "") }

// metric returns the value of a metric with that label.
func (w *world) metric(name, label string) int {
	families, err := w.Registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return int(m.GetCounter().GetValue() + m.GetGauge().GetValue())
			}
		}
	}
	return -1
}

const hello = `{"model": "sim", "prompt": "hello"}`

func completionHeaders(end bool) *extprocv3.ProcessingRequest {
	return headersMessage(end, ":method", "POST", ":path", "/v1/completions", "x-session-id", "s1")
}

// TestStreamEndsWithLastReply: the handler returns with its last reply, although Envoy has not closed its end.
func TestStreamEndsWithLastReply(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for name, messages := range map[string][]*extprocv3.ProcessingRequest{
		"picked":  {completionHeaders(false), bodyMessage(true, hello)},
		"refused": {completionHeaders(false), bodyMessage(true, `{`)},
		"local":   {headersMessage(true, ":method", "GET", ":path", "/v1/models")},
		"no body": {headersMessage(true, ":method", "GET", ":path", "/unknown")},
	} {
		t.Run(name, func(t *testing.T) {
			w, client := served(t)
			s := open(t, client)
			for _, m := range messages {
				ask(t, s, m)
			}
			if m, err := s.Recv(); !errors.Is(err, io.EOF) {
				t.Fatalf("after the last answer came %v, %v", m, err)
			}
			w.idle(t)
			if want := map[string]int{"picked": 1}[name]; w.Router.Bookings() != want {
				t.Errorf("%d booked, want %d", w.Router.Bookings(), want)
			}
		})
	}
}

// TestDecisionHasTheAnnouncedID: the decision has the session of the headers, and the id of the first reply.
func TestDecisionHasTheAnnouncedID(t *testing.T) {
	w, client := served(t)
	s := open(t, client)
	first := ask(t, s, completionHeaders(false))
	id := first.GetDynamicMetadata().GetFields()["stator"].GetStructValue().GetFields()["booking"].GetStringValue()
	ask(t, s, bodyMessage(true, hello))
	d, ok := w.Router.Explain(id)
	if !ok || d.Session != "s1" || d.Source != "bufconn" || d.PromptTokens != len("hello") {
		t.Fatalf("decision %+v, known %v", d, ok)
	}
	if !w.Router.End(id, time.Now()) {
		t.Error("the announced id is not booked")
	}
}

// TestProtocolErrors: messages in the wrong order, or of another processing mode, are refused with the setting
// to change. Envoy then forwards the request without a pick.
func TestProtocolErrors(t *testing.T) {
	headers, body := completionHeaders(false), bodyMessage(true, hello)
	for name, messages := range map[string][]*extprocv3.ProcessingRequest{
		"nothing":         {{}},
		"body first":      {body},
		"headers twice":   {headers, headers},
		"body in pieces":  {headers, bodyMessage(false, "{")},
		"trailers":        {headers, {Request: &extprocv3.ProcessingRequest_RequestTrailers{}}},
		"response header": {headers, {Request: &extprocv3.ProcessingRequest_ResponseHeaders{}}},
		"response body":   {{Request: &extprocv3.ProcessingRequest_ResponseBody{}}},
	} {
		t.Run(name, func(t *testing.T) {
			w, client := served(t)
			s := open(t, client)
			for _, m := range messages[:len(messages)-1] {
				ask(t, s, m)
			}
			if err := s.Send(messages[len(messages)-1]); err != nil {
				t.Fatal(err)
			}
			if m, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
				t.Fatalf("got %v, %v", m, err)
			}
			w.idle(t)
			if w.Router.Bookings() != 0 || w.outcomes("protocol_error") != 1 {
				t.Errorf("%d booked, %d errors", w.Router.Bookings(), w.outcomes("protocol_error"))
			}
		})
	}
}

// TestCancelledBeforeTheBody: a client that cancels between its headers and its body leaves no booking.
func TestCancelledBeforeTheBody(t *testing.T) {
	w, client := served(t)
	const clients = 50
	for range clients {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := client.Process(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ask(t, s, completionHeaders(false))
		cancel()
	}
	w.idle(t)
	if n := w.Router.Stats().Picked; n != 0 || w.Router.Bookings() != 0 {
		t.Errorf("%d picked, %d booked", n, w.Router.Bookings())
	}
}

// TestEnvoyClosesEarly: an Envoy that closes its end early, as after its timeout, is no error.
func TestEnvoyClosesEarly(t *testing.T) {
	w, client := served(t)
	s := open(t, client)
	ask(t, s, completionHeaders(false))
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if m, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("got %v, %v", m, err)
	}
	w.idle(t)
}

// TestLargestBodyFits: a body of the configured limit fits into a message.
func TestLargestBodyFits(t *testing.T) {
	w, client := served(t)
	body := make([]byte, w.Settings.BodyBytes)
	for i := range body {
		body[i] = ' '
	}
	copy(body, hello)
	s := open(t, client)
	ask(t, s, completionHeaders(false))
	if ask(t, s, bodyMessage(true, string(body))).GetRequestBody() == nil {
		t.Error("not picked")
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	w.Router.EndBefore("bufconn", time.Now().Add(time.Hour))
	if w.Router.Bookings() != 0 {
		t.Errorf("%d booked", w.Router.Bookings())
	}
}

// TestBodyBeforeTrailers: a request with trailers, which HTTP/2 allows, has a complete body without the end of
// the stream.
func TestBodyBeforeTrailers(t *testing.T) {
	w, client := served(t)
	s := open(t, client)
	first := completionHeaders(false)
	first.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_BUFFERED}
	ask(t, s, first)
	if ask(t, s, bodyMessage(false, hello)).GetRequestBody() == nil {
		t.Error("not picked")
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if w.outcomes("picked") != 1 {
		t.Error("not counted")
	}
}

// scripted is a stream with these messages of Envoy. Its context ends at a chosen moment.
type scripted struct {
	grpc.ServerStream
	ctx      context.Context
	messages []*extprocv3.ProcessingRequest
	received func(left int) // called with every message
	sent     func(left int) // called with every answer
}

func (s *scripted) Context() context.Context { return s.ctx }

func (s *scripted) SendMsg(any) error {
	if err := s.ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	s.sent(len(s.messages))
	return nil
}

func (s *scripted) RecvMsg(into any) error {
	if len(s.messages) == 0 {
		return status.FromContextError(s.ctx.Err()).Err()
	}
	raw, err := proto.Marshal(s.messages[0])
	if err != nil {
		return err
	}
	s.messages = s.messages[1:]
	s.received(len(s.messages))
	return into.(*messages.Request).Read(raw)
}

// TestResetDuringTheDecision: an Envoy that resets the stream during the decision ends the decision, so that no
// booking is made after its access-log entry. If it closes the stream after the reply
// it has read the pick, and the booking stays.
func TestResetDuringTheDecision(t *testing.T) {
	for _, c := range []struct {
		name              string
		atReceive, atSend bool
		picked, booked    int
	}{
		{"during the decision", true, false, 0, 0},
		{"upon the answer", false, true, 1, 1},
	} {
		w, _ := served(t)
		ctx, reset := context.WithCancel(t.Context())
		resetIf := func(yes bool) func(int) {
			return func(left int) {
				if yes && left == 0 {
					reset()
				}
			}
		}
		s := &scripted{
			ctx: ctx, messages: []*extprocv3.ProcessingRequest{completionHeaders(false), bodyMessage(true, hello)},
			received: resetIf(c.atReceive), sent: resetIf(c.atSend),
		}
		if err := w.server.Process(s); err != nil {
			t.Errorf("leaving %s: %v", c.name, err)
		}
		if n := int(w.Router.Stats().Picked); n != c.picked || w.Router.Bookings() != c.booked {
			t.Errorf("leaving %s: %d picked, %d booked; want %d and %d", c.name, n, w.Router.Bookings(), c.picked, c.booked)
		}
		reset()
	}
}
