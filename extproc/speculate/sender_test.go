package speculate

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/test/testkit"
)

// budget is a Memory that counts.
type budget struct {
	room int64
	used atomic.Int64
}

func (b *budget) Reserve(n int) bool {
	if b.used.Add(int64(n)) > b.room {
		b.Free(n)
		return false
	}
	return true
}

func (b *budget) Free(n int) { b.used.Add(-int64(n)) }

// world is a sender with one worker, whose engine is a handler.
type world struct {
	*Sender
	t      *testing.T
	router *route.Router
	memory *budget
}

func newWorld(t *testing.T, engine http.HandlerFunc) *world {
	t.Helper()
	server := httptest.NewServer(engine)
	t.Cleanup(server.Close)
	f := fleet.New(fleet.Hooks{})
	w := fleet.Worker{Name: "a", Model: "m", Address: strings.TrimPrefix(server.URL, "http://"), Ranks: 1, State: fleet.Ready}
	if _, err := f.Put(w); err != nil {
		t.Fatal(err)
	}
	var s *Sender
	r := route.New(route.Config{Seed: 1, Counted: func(d *decision.Decision) { s.Decided(d) }}, f, kvindex.New(kvindex.Config{}))
	if err := r.SetModels(map[string]*serving.Config{"m": {Prompt: load(t, ""), BlockSize: 4}}); err != nil {
		t.Fatal(err)
	}
	s = New(Config{Router: r, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		s.Run(ctx)
		close(ended)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return &world{Sender: s, t: t, router: r, memory: &budget{room: 1 << 20}}
}

// await waits until a result was counted, and nothing is booked or reserved.
func (w *world) await(result string) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if testutil.ToFloat64(w.results.WithLabelValues("m", result)) == 1 && w.live.Load() == 0 && w.router.Bookings() == 0 {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s is not counted; %d turns live, %d bookings", result, w.live.Load(), w.router.Bookings())
		}
	}
}

// turn ends a turn of a session.
func (w *world) turn(session string) {
	w.t.Helper()
	t := w.Begin(Request{Model: "m", Session: session, Authorization: "Bearer key",
		Body: []byte(`{"model":"m","cache_salt":"s","messages":[{"role":"user","content":"hi"}]}`)}, true, w.memory)
	if t == nil {
		return
	}
	t.Write([]byte(chunk(`"reasoning":"well"`, "") + chunk(`"content":"an answer of some words"`, ends)))
	t.End()
}

// TestSend sends the prefix as token ids with the client's salt and key. The same prefix is not sent twice.
func TestSend(t *testing.T) {
	type sent struct {
		Model  string
		Prompt []uint32
		Salt   string `json:"cache_salt"`
		Tokens int    `json:"max_tokens"`
	}
	bodies := make(chan sent, 2)
	w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) {
		var body sent
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.URL.Path != "/v1/completions" || r.Header.Get("Authorization") != "Bearer key" ||
			r.Header.Get("X-Session-Id") != "one" {
			t.Errorf("%v: %s %v", err, r.URL, r.Header)
		}
		bodies <- body
	})
	w.turn("one")
	w.await(done)
	body := <-bodies
	if body.Model != "m" || body.Salt != "s" || body.Tokens != 1 || len(body.Prompt) < 8 || len(body.Prompt)%4 != 0 {
		t.Errorf("%+v", body)
	}
	testkit.Eventually(t, "memory is free", func() bool { return w.memory.used.Load() == 0 })
	if n := testutil.ToFloat64(w.tokens.WithLabelValues("m")); int(n) != len(body.Prompt) {
		t.Errorf("%g tokens are counted", n)
	}
	w.turn("one")
	w.await(cached)
}

// TestOthersGoFirst: a request of a client that is picked for the rank stops the prefill there.
func TestOthersGoFirst(t *testing.T) {
	began := make(chan struct{})
	w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a server sees that its client has left when it has the body
		close(began)
		<-r.Context().Done()
	})
	w.turn("one")
	<-began
	ask := request.Request{ID: "other", Endpoint: prompt.Completions, Known: true, Body: []byte(`{"model":"m","prompt":"of another client"}`)}
	d := w.router.Decide(&ask, time.Now())
	if d.Outcome != decision.Picked {
		t.Fatal(d)
	}
	w.router.End("other", time.Now())
	w.await(cancelled)
}

// TestResults counts turns for which nothing is computed.
func TestResults(t *testing.T) {
	refuses := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) }
	w := newWorld(t, refuses)
	w.turn("one")
	w.await(failed)

	w = newWorld(t, refuses)
	ask := request.Request{ID: "other", Endpoint: prompt.Completions, Known: true, Body: []byte(`{"model":"m","prompt":"x"}`)}
	w.router.Decide(&ask, time.Now())
	w.turn("one")
	for testutil.ToFloat64(w.results.WithLabelValues("m", busy)) == 0 {
		time.Sleep(time.Millisecond)
	}
	w.router.End("other", time.Now())
	w.await(busy)

	w.memory.room = 100
	w.turn("one")
	w.await(noRoom)

	w.memory.room = 1 << 20
	broken := w.Begin(Request{Model: "m", Body: []byte(`{}`)}, true, w.memory)
	broken.Write([]byte(chunk(`"content":"half an ans"`, "")))
	broken.End()
	none := (*Turn)(nil)
	none.Write([]byte("x"))
	none.End()
	testkit.Eventually(t, "memory is free", func() bool { return w.memory.used.Load() == 0 })
	if n := testutil.CollectAndCount(w.results); n != 2 {
		t.Errorf("%d results", n)
	}
}

// waiting returns a turn of a session whose answer has ended.
func (w *world) waiting(session string) *Turn {
	t := w.Begin(Request{Model: "m", Session: session, Body: []byte(`{"model":"m","messages":[{"role":"user","content":"hi"}]}`)}, true, w.memory)
	t.Write([]byte(chunk(`"content":"an answer of some words"`, ends)))
	t.answer.end()
	return t
}

// TestNextRequestComesFirst: a turn that waits is dropped when its session's next request is decided.
func TestNextRequestComesFirst(t *testing.T) {
	w := newWorld(t, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })
	waits := w.waiting("one")
	w.live.Add(1)
	w.sessions["one"] = waits
	w.Decided(&decision.Decision{Client: decision.Client{Session: "two"}})
	if waits.dropped {
		t.Error("another session's request has dropped it")
	}
	w.Decided(&decision.Decision{Client: decision.Client{Session: "one"}})
	if result := w.serve(t.Context(), waits); result != dropped {
		t.Errorf("it is %s", result)
	}

	// The same after it was booked, when the request is decided for another rank.
	again := w.waiting("one")
	w.live.Add(1)
	w.sessions["one"] = again
	ask, err := w.ask(again)
	if err != nil {
		t.Fatal(err)
	}
	d, made := w.router.Speculate(ask, time.Now())
	if made != route.SpeculationBooked {
		t.Fatal(made)
	}
	w.Decided(&decision.Decision{Client: decision.Client{Session: "one"}, Outcome: decision.Picked, Placement: decision.Placement{Worker: "b"}})
	if result := w.begin(again, d, func() {}); result != dropped || len(w.sent) != 0 {
		t.Errorf("it is %q, and %d are sent", result, len(w.sent))
	}
	w.forget(again)
	w.forget(waits)
	if len(w.sessions) != 0 || w.live.Load() != 0 {
		t.Errorf("%d sessions, %d live", len(w.sessions), w.live.Load())
	}
}
