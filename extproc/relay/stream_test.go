package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

// greedy is a stream that is promised. Token i of its answer has the id 100+i and the text "i ".
const greedy = `{"model":"m","stream":true,"temperature":0,"messages":[{"role":"user","content":"abc"}],"max_tokens":6,` +
	`"stream_options":{"include_usage":true}}`

// streamOf returns an engine's stream from a token on: of a chat, or of the completion that continues it.
func streamOf(r *http.Request, body []byte) string {
	var asks struct {
		Prompt []int
		Most   int  `json:"max_tokens"`
		IDs    bool `json:"return_token_ids"`
	}
	_ = json.Unmarshal(body, &asks)
	from := 0
	for _, id := range asks.Prompt {
		if id >= 100 {
			from++
		}
	}

	var b strings.Builder
	isChat := strings.HasSuffix(r.URL.Path, "/chat/completions")
	event := func(choices, more string) {
		fmt.Fprintf(&b, `data: {"id":"from-%d","object":"o","created":1,"model":"m","choices":[%s]%s}`+"\n\n", from, choices, more)
	}
	if isChat {
		event(`{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}`, `,"prompt_token_ids":[1,2,3]`)
	}
	for i := from; i < from+asks.Most; i++ {
		finish, ids := "null", ""
		if i == from+asks.Most-1 {
			finish = `"length"`
		}
		if asks.IDs {
			ids = fmt.Sprintf(`,"token_ids":[%d]`, 100+i)
		}
		text := fmt.Sprintf(`"text":"%d "`, i)
		if isChat {
			text = fmt.Sprintf(`"delta":{"content":"%d "}`, i)
		}
		event(fmt.Sprintf(`{"index":0,%s,"finish_reason":%s%s}`, text, finish, ids), "")
	}
	event("", fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}`, 3+from, 3+from+asks.Most, asks.Most))
	return b.String() + "data: [DONE]\n\n"
}

// breaking is an engine that ends the connection of its first request after so many bytes of its stream.
func breaking(after *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		text := streamOf(r, body)
		n := after.Swap(-1)
		w.Header().Set("content-type", "text/event-stream; charset=utf-8")
		w.WriteHeader(http.StatusOK)
		if n < 0 {
			_, _ = io.WriteString(w, text)
			return
		}
		_, _ = io.WriteString(w, text[:min(int(n), len(text))])
		_ = http.NewResponseController(w).Flush()
		if int(n) < len(text) {
			panic(http.ErrAbortHandler)
		}
	}
}

// migrating is a world of engines that return token ids, without roles.
func migrating(t *testing.T, engines ...http.HandlerFunc) *world {
	w := newWorld(t)
	w.transfer, w.kind = fleet.NoTransfer, "vllm"
	for i, handle := range engines {
		w.engine("w"+strconv.Itoa(i), fleet.Aggregated, handle)
	}
	return w
}

// ask has the request decided as the stream's door does, and sends it to the relay as Envoy does.
func (w *world) ask(ctx context.Context, path, body string) (*http.Response, error) {
	w.t.Helper()
	x := w.requests.Begin(exchange.Origin{Source: "edge"})
	x.OnHeaders(exchange.Head{Method: http.MethodPost, Path: path}, time.Now())
	reply := x.OnBody([]byte(body), true, time.Now())
	if reply.Answer != nil || !strings.HasPrefix(reply.Destinations, "127.0.0.1:1,") {
		w.t.Fatalf("the stream goes to %q, %+v", reply.Destinations, reply.Answer)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, h := range reply.Set {
		if h.Key == envoynames.HeaderDecision {
			r.Header.Set(h.Key, h.Value)
		}
	}
	return http.DefaultClient.Do(r)
}

// read returns the status and the body of an answer.
func (w *world) read(path, body string) (int, string) {
	w.t.Helper()
	response, err := w.ask(w.t.Context(), path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatalf("%v after %q", err, text)
	}
	return response.StatusCode, string(text)
}

func (w *world) migrations(outcome string) float64 {
	return testutil.ToFloat64(w.handler.migrations.WithLabelValues(outcome))
}

const chats = "/v1/chat/completions"

// TestBreaksAtEveryByte: an engine breaks after every number of bytes of its stream. The client gets the stream of an engine that does not
// break, byte for byte, and nothing stays booked.
func TestBreaksAtEveryByte(t *testing.T) {
	var after atomic.Int64
	engine := breaking(&after)
	w := migrating(t, engine, engine, engine)
	after.Store(-1)
	status, want := w.read(chats, greedy)
	if status != http.StatusOK || !strings.Contains(want, `"content":"5 "`) || strings.Contains(want, "token_ids") {
		t.Fatalf("%d %s", status, want)
	}
	asked, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, chats, nil)
	length := len(streamOf(asked, []byte(`{"max_tokens":6,"return_token_ids":true}`)))
	for n := range length + 1 {
		after.Store(int64(n))
		if status, got := w.read(chats, greedy); status != http.StatusOK || got != want {
			t.Fatalf("broken after %d bytes: %d\n%s\nwant\n%s", n, status, got, want)
		}
		for i := range 3 { // the worker that has broken is in doubt
			rank := w.fleet.Snapshot().Ranks[i]
			rank.Load.Health().ObserveServed(time.Now())
		}
	}
	if w.migrations(continued) == 0 || w.migrations(completed) == 0 {
		t.Errorf("%g streams were continued, %g completed", w.migrations(continued), w.migrations(completed))
	}
	w.assertNothingBooked()
	if used := w.handler.requests.StreamBudget().Used(); used != 0 {
		t.Errorf("%d bytes of streams are held", used)
	}
}

// TestStreamsThatEnd: a stream that cannot be continued ends with an error event.
func TestStreamsThatEnd(t *testing.T) {
	const first = `data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1]}` + "\n\n" +
		`data: {"id":"a","choices":[{"index":0,"delta":{"content":"x"},"token_ids":[100]}]}` + "\n\n"
	breaks := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("content-type", "text/event-stream")
			_, _ = io.WriteString(w, text)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}
	const more = `data: {"id":"b","choices":[{"index":0,"text":"y","token_ids":[7]}]}` + "\n\n"
	good := breaks(first)
	adds := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == completions {
				breaks(text)(w, r)
			}
			good(w, r)
		}
	}
	goesOn, stops := adds(more), adds("")
	refuses := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == completions {
				answers(status, "{}")(w, r)
				return
			}
			good(w, r)
		}
	}
	sampled := strings.Replace(greedy, `"temperature":0`, `"temperature":1`, 1)
	for _, c := range []struct {
		name, body string
		engines    []http.HandlerFunc
		outcome    string
	}{
		{"not promised", sampled, []http.HandlerFunc{good, good}, notPromised},
		{"no other worker", greedy, []http.HandlerFunc{good}, noWorker},
		{"two that add nothing", greedy, []http.HandlerFunc{stops, stops, stops, stops}, noWorker},
		{"the limit", greedy, []http.HandlerFunc{goesOn, goesOn, goesOn, goesOn, goesOn}, limitMet},
		{"a refusal", greedy, []http.HandlerFunc{refuses(400), refuses(400)}, refused},
		{"other workers are full", greedy, []http.HandlerFunc{refuses(503), refuses(503)}, noWorker},
		{"ids are missing", greedy, []http.HandlerFunc{breaks(`data: {"choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n")}, notPromised},
		{"NUL", greedy, []http.HandlerFunc{breaks("data: {\"choices\":[\x00]}\n\n")}, notPromised},
		{"a large event", greedy, []http.HandlerFunc{breaks("data: " + strings.Repeat("a", 100_000) + "\n\n")}, notPromised},
		{"a wrong type", greedy, []http.HandlerFunc{breaks(strings.ReplaceAll(first, "[100]", `{"a":1}`))}, notPromised},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := migrating(t, c.engines...)
			status, got := w.read(chats, c.body)
			if status != http.StatusOK || !strings.Contains(got, `data: {"error":{`) || !strings.HasSuffix(got, "\n\n") || strings.Contains(got, "[DONE]") {
				t.Errorf("%d %.500s", status, got)
			}
			if w.migrations(c.outcome) != 1 {
				t.Errorf("the outcome %s has %g streams", c.outcome, w.migrations(c.outcome))
			}
			w.assertNothingBooked()
			if used := w.handler.requests.StreamBudget().Used(); used != 0 {
				t.Errorf("%d bytes of streams are held", used)
			}
		})
	}
}

// TestBreaksBeforeTheFirstEvent: another worker gets the request if the first one dies between its headers and its first event, unless
// bodies use more than half of their budget: then they are not kept for so long.
func TestBreaksBeforeTheFirstEvent(t *testing.T) {
	for _, used := range []int{0, 1200} { // of 2,048 bytes
		var after atomic.Int64
		engine := breaking(&after)
		w := migrating(t, engine, engine)
		if !w.requests.RelayBudget().Reserve(used) {
			t.Fatal("there is no room")
		}
		status, got := w.read(chats, greedy)
		isWhole := strings.HasSuffix(got, "data: [DONE]\n\n")
		if status != http.StatusOK || isWhole != (used == 0) || !isWhole && !strings.Contains(got, "stream_broken") {
			t.Errorf("with %d bytes of bodies: %d %s", used, status, got)
		}
		w.requests.RelayBudget().Free(used)
	}
}

// TestOneLiveBooking: a stream has one booking at a time, and the last one is found by the id of its first decision.
func TestOneLiveBooking(t *testing.T) {
	var after atomic.Int64
	after.Store(450)
	var booked sync.Map
	var w *world
	engine := func(out http.ResponseWriter, r *http.Request) {
		booked.Store(r.URL.Path, w.router.Bookings())
		breaking(&after)(out, r)
	}
	w = migrating(t, engine, engine)
	response, err := w.ask(t.Context(), chats, greedy)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	for _, path := range []string{chats, completions} {
		if n, _ := booked.Load(path); n != 1 {
			t.Errorf("%v bookings when %s came", n, path)
		}
	}
	id := response.Request.Header.Get(envoynames.HeaderDecision)
	_, ok := w.requests.LastBooking(id)
	if !ok || w.migrations(continued) != 1 {
		t.Errorf("the last booking of %s: %t, %g streams were continued", id, ok, w.migrations(continued))
	}
	w.assertNothingBooked()
}

// TestClientsLeaveStreams: the worker's request ends when the client leaves, also that of a continuation, and nothing stays booked.
func TestClientsLeaveStreams(t *testing.T) {
	var after atomic.Int64
	for _, cut := range []int64{-1, 450} {
		after.Store(cut)
		hangs, ended := make(chan struct{}), make(chan struct{})
		engine := func(w http.ResponseWriter, r *http.Request) {
			if after.Load() >= 0 {
				breaking(&after)(w, r)
			}
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("content-type", "text/event-stream")
			_, _ = io.WriteString(w, streamOf(r, body)[:450])
			_ = http.NewResponseController(w).Flush()
			close(hangs)
			<-r.Context().Done()
			close(ended)
		}
		w := migrating(t, engine, engine)
		ctx, leave := context.WithCancel(t.Context())
		response, err := w.ask(ctx, chats, greedy)
		if err != nil {
			t.Fatal(err)
		}
		<-hangs
		leave()
		<-ended
		_ = response.Body.Close()
		w.assertNothingBooked()
		testkit.Eventually(t, "the client that has left is counted", func() bool { return w.count(clientLeft) == 1 })
	}
}

// TestSlowClients: while a client reads nothing, the relay reads no more from the worker than buffers hold.
func TestSlowClients(t *testing.T) {
	var written atomic.Int64
	full := make(chan struct{})
	engine := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("content-type", "text/event-stream")
		event := []byte(`data: {"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("a", 1000) + `"},"token_ids":[1]}],"prompt_token_ids":[1]}` + "\n\n")
		control := http.NewResponseController(w)
		for r.Context().Err() == nil {
			_ = control.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
			n, err := w.Write(event)
			written.Add(int64(n))
			if err != nil {
				close(full)
				return
			}
		}
	}
	w := migrating(t, engine)
	response, err := w.ask(t.Context(), chats, greedy)
	if err != nil {
		t.Fatal(err)
	}
	<-full // the worker could not write any more, because the relay does not read
	if used := w.handler.requests.StreamBudget().Used(); used > 64<<20 || written.Load() > 64<<20 {
		t.Errorf("%d bytes are held, and %d were written", used, written.Load())
	}
	_ = response.Body.Close()
	w.assertNothingBooked()
}

// TestOtherKinds: a kind of engine that returns no token ids is not asked for them, and its stream is not promised.
func TestOtherKinds(t *testing.T) {
	w := newWorld(t)
	w.transfer, w.kind = fleet.NoTransfer, "sglang"
	w.engine("w", fleet.Aggregated, func(out http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); bytes.Contains(body, []byte("return_token_ids")) {
			t.Errorf("%s", body)
		}
		out.Header().Set("content-type", "text/event-stream")
		_, _ = io.WriteString(out, "data: {}\n\ndata: [DONE]\n\nand more")
	})
	if status, got := w.read(chats, greedy); status != http.StatusOK || got != "data: {}\n\ndata: [DONE]\n\nand more" {
		t.Errorf("%d %s", status, got)
	}
	if n := testutil.ToFloat64(w.handler.streams.WithLabelValues("engine")); n != 1 {
		t.Errorf("%g streams", n)
	}
}

// TestRanksOfContinuations: a continuation names its rank to the engine, and has the client's headers.
func TestRanksOfContinuations(t *testing.T) {
	var after atomic.Int64
	after.Store(450)
	ranks := make(chan string, 4)
	w := migrating(t)
	for i := range 2 {
		server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			ranks <- r.Header.Get(prefill.HeaderRank)
			breaking(&after)(out, r)
		}))
		t.Cleanup(server.Close)
		worker := fleet.Worker{Name: "w" + strconv.Itoa(i), Model: "m", Address: strings.TrimPrefix(server.URL, "http://"), Ranks: 2,
			State: fleet.Ready, Engine: "vllm"}
		if _, err := w.fleet.Put(worker); err != nil {
			t.Fatal(err)
		}
	}
	if status, got := w.read(chats, greedy); status != http.StatusOK || !strings.Contains(got, "[DONE]") {
		t.Errorf("%d %s", status, got)
	}
	for range 2 {
		if rank := <-ranks; rank != "0" && rank != "1" {
			t.Errorf("rank %q", rank)
		}
	}
	w.assertNothingBooked()
}

// TestStopGoesOn: a relay that is asked to end goes on with its streams, and accepts no other connections.
func TestStopGoesOn(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	w := migrating(t, func(out http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		text := streamOf(r, body)
		out.Header().Set("content-type", "text/event-stream")
		_, _ = io.WriteString(out, text[:450])
		_ = http.NewResponseController(out).Flush()
		close(begun)
		<-end
		_, _ = io.WriteString(out, text[450:])
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.url = "http://" + ln.Addr().String()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.handler.Serve(ctx, ln, time.Minute, context.Background()) }()

	response, err := w.ask(t.Context(), chats, greedy)
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	stop()
	testkit.Eventually(t, "no connection is accepted", func() bool {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	close(end)
	text, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil || !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
		t.Errorf("%q, %v", text, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	w.assertNothingBooked()
}

// TestErrorsOfOtherAPIs: a stream of Messages or Responses that breaks off ends with an error of its API.
func TestErrorsOfOtherAPIs(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/messages":  "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":",
		"/v1/responses": "event: error\ndata: {\"type\":\"error\",\"code\":\"stream_broken\",",
	} {
		w := migrating(t, func(out http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			out.Header().Set("content-type", "text/event-stream")
			_, _ = io.WriteString(out, "event: a\ndata: {}\n\nevent: b\nda")
			_ = http.NewResponseController(out).Flush()
			panic(http.ErrAbortHandler)
		})
		body := `{"model":"m","stream":true,"max_tokens":5,"input":"a","messages":[{"role":"user","content":"a"}]}`
		response, err := http.Post(w.url+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if rest, ok := strings.CutPrefix(string(text), "event: a\ndata: {}\n\n"); err != nil || !ok || !strings.HasPrefix(rest, want) {
			t.Errorf("%s: %q, %v", path, text, err)
		}
		w.assertNothingBooked()
	}
}
