package relay

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

// TestStalledWorkers: the first worker of a stream sends a part of it and stalls. Once the worker is down, another one continues the stream:
// the client gets the same bytes as from a worker that does not stall. A worker that is ready is waited for.
func TestStalledWorkers(t *testing.T) {
	for _, after := range []int{-1, 0, 100, 500} { // bytes of the stream; -1 sends not even the headers
		var stalled atomic.Bool // a worker has stalled
		engine := func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			text := streamOf(r, body)
			isFirst := stalled.CompareAndSwap(false, true)
			if isFirst && after < 0 {
				<-r.Context().Done()
				return
			}
			w.Header().Set("content-type", "text/event-stream; charset=utf-8")
			if !isFirst {
				_, _ = io.WriteString(w, text)
				return
			}
			_, _ = io.WriteString(w, text[:after])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
		w := migrating(t, engine, engine)
		stalled.Store(true)
		_, want := w.read(chats, greedy)

		stalled.Store(false)
		answer := make(chan string, 1)
		go func() {
			_, text := w.read(chats, greedy)
			answer <- text
		}()
		testkit.Eventually(t, "the worker has the request", stalled.Load)
		select {
		case text := <-answer:
			t.Errorf("after %d bytes: a ready worker was not waited for: %s", after, text)
		case <-time.After(downSilence + 3*stallLook):
		}
		for _, worker := range w.fleet.Snapshot().Workers {
			if w.isBooked(worker) {
				down := *worker
				down.State = fleet.Down
				if _, err := w.fleet.Put(down); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := <-answer; got != want {
			t.Errorf("after %d bytes:\n%s\nwant\n%s", after, got, want)
		}
		w.assertNothingBooked()
	}
}

// isBooked reports whether a worker has a booked request.
func (w *world) isBooked(worker *fleet.Worker) bool {
	for _, r := range w.fleet.Snapshot().Ranks {
		if r.Worker.Name == worker.Name {
			return r.Load.Booked().Requests > 0
		}
	}
	return false
}

// TestStallOfGoneWorkers: the response of a worker that has left the fleet goes on for longer than the response of one that is down, and a
// relay that does not read makes no silence.
func TestStallOfGoneWorkers(t *testing.T) {
	w := migrating(t, func(http.ResponseWriter, *http.Request) {})
	x := w.requests.Begin(exchange.Origin{})
	x.OnHeaders(exchange.Head{Method: http.MethodPost, Path: chats}, time.Now())
	reply := x.OnBody([]byte(greedy), true, time.Now())
	head := exchange.Head{Method: http.MethodPost, Path: chats}
	relayed, _ := w.requests.Relay(t.Context(), head, reply.Pick.ID, []byte(greedy))
	a, answer := relayed.Next(t.Context(), time.Now())
	if answer != nil {
		t.Fatal(string(answer.Body))
	}
	w.fleet.Remove("w0")
	for _, c := range []struct {
		heard   time.Duration
		reading bool
		cut     bool
	}{{2 * downSilence, true, false}, {2 * goneSilence, true, true}, {2 * goneSilence, false, false}} {
		s := &stall{}
		s.heard.Store(time.Now().Add(-c.heard).UnixNano())
		s.reading.Store(c.reading)
		ctx, stop := context.WithTimeout(t.Context(), 3*stallLook)
		cut := false
		s.watch(ctx, a, func() { cut = true })
		stop()
		if cut != c.cut {
			t.Errorf("%+v: cut %t", c, cut)
		}
	}
	a.Left(time.Now())
}
