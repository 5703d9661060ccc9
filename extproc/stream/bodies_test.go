package stream

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/test/doors"
)

// TestBodiesBeyondTheBudget: while the bodies under decision fill the budget, the next request is answered with
// 503 and the time to retry after. When they are done, requests are served again.
func TestBodiesBeyondTheBudget(t *testing.T) {
	w, client := served(t)
	w.Settings.BodiesBytes = 1000
	w.Requests.Reload(w.Settings)
	send := func() *extprocv3.ProcessingResponse {
		s := open(t, client)
		ask(t, s, completionHeaders(false))
		return ask(t, s, bodyMessage(true, hello))
	}

	if send().GetRequestBody() == nil {
		t.Fatal("refused below the budget")
	}
	w.idle(t)
	if !w.Requests.Reserve(900) {
		t.Fatal("the budget is not empty after the request")
	}
	s := open(t, client)
	ask(t, s, completionHeaders(false))
	refused := ask(t, s, bodyMessage(true, strings.Repeat(" ", 100)+hello)).GetImmediateResponse()
	if refused.GetStatus().GetCode() != http.StatusServiceUnavailable || !bytes.Contains(refused.GetBody(), []byte("overloaded")) {
		t.Errorf("answered %v", refused)
	}
	if h := refused.GetHeaders().GetSetHeaders(); len(h) != 2 || h[1].GetHeader().GetKey() != "retry-after" {
		t.Errorf("headers %v", h)
	}
	w.idle(t)
	if used := w.bodyBytes(); used != 900 {
		t.Errorf("%d bytes are reserved, want 900", used)
	}

	w.Requests.Free(900)
	if send().GetRequestBody() == nil {
		t.Error("refused although the budget is free")
	}
	w.idle(t)
	if w.outcomes("overloaded") != 1 || w.bodyBytes() != 0 {
		t.Errorf("%d overloaded, %d bytes reserved", w.outcomes("overloaded"), w.bodyBytes())
	}
}

// panicking is a model whose preparation panics.
type panicking struct{}

func (panicking) Prepare(*prompt.Request, *prompt.Prompt) error { panic("index out of range") }

// TestPanicFailsOpen: a panic during a decision lets that request go on without a pick. It is counted, its stack
// is logged once, it leaves no booking, and the next request is served.
func TestPanicFailsOpen(t *testing.T) {
	w, client := served(t)
	setModel := func(p serving.Preparer) {
		if err := w.Router.SetModels(map[string]*serving.Config{"sim": {Prompt: p, BlockSize: 4}}); err != nil {
			t.Fatal(err)
		}
	}

	setModel(panicking{})
	for range 3 {
		s := open(t, client)
		ask(t, s, completionHeaders(false))
		answer := ask(t, s, bodyMessage(true, hello))
		if answer.GetRequestBody() == nil || answer.GetDynamicMetadata() != nil {
			t.Fatalf("answered %v", answer)
		}
	}
	w.idle(t)
	if n := w.Log.Count("level=ERROR"); n != 1 || w.Log.Count("panicking.Prepare") != 1 {
		t.Errorf("%d stacks in the log:\n%s", n, &w.Log)
	}
	if w.outcomes("panic") != 3 || w.Router.Bookings() != 0 || w.bodyBytes() != 0 {
		t.Errorf("%d panics counted, %d booked, %d bytes reserved", w.outcomes("panic"), w.Router.Bookings(), w.bodyBytes())
	}

	setModel(doors.Letters{})
	s := open(t, client)
	ask(t, s, completionHeaders(false))
	if ask(t, s, bodyMessage(true, hello)).GetDynamicMetadata() == nil {
		t.Error("not picked after the panics")
	}
}

// received is a stream whose messages come through the codec, as from gRPC. It overwrites the memory of a message
// when the next one is received, and at the end.
type received struct {
	grpc.ServerStream
	ctx      context.Context
	messages []*extprocv3.ProcessingRequest
	answers  []*extprocv3.ProcessingResponse
}

func (s *received) Context() context.Context { return s.ctx }

func (s *received) SendMsg(m any) error {
	s.answers = append(s.answers, sent(m))
	return nil
}

func (s *received) RecvMsg(into any) error {
	raw, err := proto.Marshal(s.messages[0])
	if err != nil {
		return err
	}
	s.messages = s.messages[1:]
	return messages.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, into)
}

// TestNothingRefersToAFreedBody: the memory of a body is used for later requests, so a decision, its reasons and a
// refusal must not refer to it. Requests alternate in one buffer; then the first ones are compared.
func TestNothingRefersToAFreedBody(t *testing.T) {
	w, _ := served(t)
	w.Settings.TrustEveryone = true
	w.Requests.Reload(w.Settings)
	exchangeOf := func(body string) *extprocv3.ProcessingResponse {
		s := &received{ctx: t.Context(), messages: []*extprocv3.ProcessingRequest{completionHeaders(false), bodyMessage(true, body)}}
		if err := w.server.Process(s); err != nil {
			t.Fatal(err)
		}
		return s.answers[1]
	}

	bodies := []string{
		`{"model": "sim", "prompt": "hello", "user": "somebody", "nvext": {"router": {"class": "first", "worker": "w1"}}}`,
		`{"model": "not-there", "prompt": "hello"}`,
		`{"model": "sim", "prompt": "hello", "nvext": {"router": {"worker": "nobody"}}}`,
		`{"model": "sim", "prompt": 5}`,
		`{"model": "sim", "prompt": "hello", "nvext": {"routing_constraints": {"required_taints": ["zone=a"]}}}`,
	}
	for _, body := range bodies {
		exchangeOf(body)
	}
	var before []string
	for _, d := range w.Router.Recent(len(bodies)) {
		before = append(before, printDecision(d))
	}

	for range 20 {
		exchangeOf(`{"model": "sim", "prompt": "` + strings.Repeat("#", 200) + `"}`)
	}
	all := w.Router.Recent(20 + len(bodies))
	for i, d := range all[20:] {
		if got := printDecision(d); got != before[i] {
			t.Errorf("the decision changed when later requests came:\n%s\nwas\n%s", got, before[i])
		}
	}
}

func printDecision(d *decision.Decision) string {
	text := d.Model + " " + d.Worker + " " + string(d.Reason) + " " + d.Session
	if d.Err != nil {
		text += " " + string(d.Err.JSON())
	}
	return strings.Clone(text)
}
