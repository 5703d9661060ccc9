package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/goleak"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/test/doors"
)

// withQueue returns a world whose two workers are busy while they compute one prompt each.
func withQueue(t testing.TB, wait time.Duration) (*world, extprocv3.ExternalProcessorClient) {
	w, client := served(t)
	err := w.Router.SetModels(map[string]*serving.Config{"sim": {
		Prompt: doors.Letters{}, BlockSize: 4, Busy: serving.Busy{PrefillTokens: 1}, Queue: &queue.Config{}, MaxWait: wait,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return w, client
}

// fill makes both workers busy and returns the ids of the decisions.
func (w *world) fill(t testing.TB, client extprocv3.ExternalProcessorClient) (ids []string) {
	for range 2 {
		s := open(t, client)
		ids = append(ids, bookingOf(ask(t, s, completionHeaders(false))))
		if ask(t, s, bodyMessage(true, fresh())).GetRequestBody() == nil {
			t.Fatal("not picked")
		}
	}
	return ids
}

var prompts atomic.Int64

// fresh returns a body whose prompt shares no block with another's.
func fresh() string {
	return fmt.Sprintf(`{"model": "sim", "prompt": "%08d is the number of this prompt"}`, prompts.Add(1))
}

func bookingOf(m *extprocv3.ProcessingResponse) string {
	return m.GetDynamicMetadata().GetFields()["stator"].GetStructValue().GetFields()["booking"].GetStringValue()
}

// enqueue sends a request that is queued, and returns its stream.
func enqueue(t testing.TB, client extprocv3.ExternalProcessorClient, ctx context.Context, wait time.Duration) extprocv3.ExternalProcessor_ProcessClient {
	t.Helper()
	s, err := client.Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ask(t, s, completionHeaders(false))
	m := ask(t, s, bodyMessage(true, fresh()))
	if got := m.GetOverrideMessageTimeout().AsDuration(); m.GetResponse() != nil || got <= wait || got > wait+envoyPatience {
		t.Fatalf("%v, want a timeout slightly longer than %v", m, wait)
	}
	return s
}

// waiting polls until n requests are queued.
func (w *world) waiting(t testing.TB, n int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); w.Router.Stats().Waiting != n; {
		if time.Now().After(deadline) {
			t.Fatalf("%d are queued, want %d", w.Router.Stats().Waiting, n)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestQueuedRequestIsPicked: if all workers are busy Envoy receives a longer timeout, once, and the pick when a
// worker is free.
func TestQueuedRequestIsPicked(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) }) // after the server has stopped
	w, client := withQueue(t, time.Minute)
	ids := w.fill(t, client)
	s := enqueue(t, client, t.Context(), time.Minute)
	w.waiting(t, 1)
	w.Router.PrefillDone(ids[1], time.Now())
	m, err := s.Recv()
	if err != nil || m.GetRequestBody() == nil || m.GetOverrideMessageTimeout() != nil {
		t.Fatalf("%v, %v", m, err)
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("after the answer: %v", err)
	}
	id := m.GetDynamicMetadata().GetFields()["stator"].GetStructValue().GetFields()["decision"].GetStringValue()
	d, _ := w.Router.Explain(id)
	if d == nil || d.Wait == nil || !strings.Contains(d.String(), "waited ") {
		t.Errorf("%s", d)
	}
	for _, id := range append(ids, id) {
		if !w.Router.End(id, time.Now()) {
			t.Errorf("%s is not booked", id)
		}
	}
	w.idle(t)
}

// TestQueuedTooLong: at the end of the longest wait the request is refused, with a time to retry after.
func TestQueuedTooLong(t *testing.T) {
	w, client := withQueue(t, 50*time.Millisecond)
	ids := w.fill(t, client)
	m, err := enqueue(t, client, t.Context(), 50*time.Millisecond).Recv()
	a := m.GetImmediateResponse()
	if err != nil || a.GetStatus().GetCode() != 503 || a.GetDetails() != "stator_waited_too_long" {
		t.Fatalf("%v, %v", m, err)
	}
	retry := ""
	for _, h := range a.GetHeaders().GetSetHeaders() {
		if h.GetHeader().GetKey() == "retry-after" {
			retry = string(h.GetHeader().GetRawValue())
		}
	}
	if retry != "1" || w.outcomes("waited_too_long") != 1 {
		t.Errorf("retry-after %q, %d counted", retry, w.outcomes("waited_too_long"))
	}
	for _, id := range ids {
		w.Router.End(id, time.Now())
	}
	w.idle(t)
}

// TestCancelledWhileQueued: clients cancel while their requests are queued, or at the moment of the decision.
// No ticket and no booking is left.
func TestCancelledWhileQueued(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) }) // after the server has stopped
	w, client := withQueue(t, time.Minute)
	const clients = 40
	for round := range 5 {
		ids := w.fill(t, client)
		var cancels []context.CancelFunc
		for range clients {
			ctx, cancel := context.WithCancel(t.Context())
			enqueue(t, client, ctx, time.Minute)
			cancels = append(cancels, cancel)
		}
		w.waiting(t, clients)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for _, id := range ids {
				w.Router.PrefillDone(id, time.Now()) // some are decided while they are cancelled
				w.Router.End(id, time.Now())
			}
		}()
		for i := range cancels {
			cancels[(i*7+round)%clients]()
		}
		<-done
		w.idle(t)
		if s := w.Router.Stats(); s.Waiting != 0 || s.Bookings.Open != 0 {
			// The access log would end the bookings of requests that were picked before they were cancelled.
			w.Router.EndBefore("bufconn", time.Now().Add(time.Hour))
			if s := w.Router.Stats(); s.Waiting != 0 || s.Bookings.Open != 0 {
				t.Fatalf("%d queued, %d booked", s.Waiting, s.Bookings.Open)
			}
		}
	}
	for _, r := range w.Fleet.Snapshot().Ranks {
		if b := r.Load.Booked(); b != (fleet.Amount{}) {
			t.Errorf("%s: %+v", r.Worker.Name, b)
		}
	}
	if w.outcomes("cancelled") == 0 {
		t.Error("no cancelled request was counted")
	}
}
