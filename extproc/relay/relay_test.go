package relay

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/test/doors"
	"github.com/stator-project/stator/test/testkit"
)

// world is a relay before engines, whose answers tests choose.
type world struct {
	t        *testing.T
	transfer fleet.Transfer
	kind     string // of engines
	requests *exchange.Service
	handler  *Handler
	router   *route.Router
	fleet    *fleet.Fleet
	url      string
}

func newWorld(t *testing.T) *world {
	f := fleet.New(fleet.Hooks{})
	router := route.New(route.Config{Seed: 1, Relayed: true}, f, kvindex.New(kvindex.Config{}))
	if err := router.SetModels(map[string]*serving.Config{"m": {Prompt: doors.Letters{}, BlockSize: 4, Prefill: serving.PrefillRemote}}); err != nil {
		t.Fatal(err)
	}
	log, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	requests := exchange.New(exchange.Settings{BodyBytes: 1 << 10, BodiesBytes: 2 << 10, DefaultModel: "m",
		Migrations: map[string]exchange.Migration{"m": {Limit: 3}}}, exchange.Config{
		Prefills: prefill.New(prefill.Config{Router: router, Log: log, Metrics: reg}),
		Router:   router, Started: time.Now(), Log: log, Metrics: reg, Relay: "127.0.0.1:1",
	})
	w := &world{t: t, transfer: fleet.TransferP2P, router: router, fleet: f, requests: requests, handler: New(Config{Requests: requests, Log: log, Metrics: reg})}

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.url = "http://" + ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.handler.Serve(ctx, ln, time.Second, context.Background()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w
}

// engine adds a worker that answers with handle.
func (w *world) engine(name string, role fleet.Role, handle http.HandlerFunc) {
	server := httptest.NewServer(handle)
	w.t.Cleanup(server.Close)
	worker := fleet.Worker{
		Name: name, Model: "m", Role: role, Address: strings.TrimPrefix(server.URL, "http://"), Ranks: 1, State: fleet.Ready,
		Engine: w.kind, Transfer: w.transfer,
	}
	if w.transfer.HasAddress() {
		worker.TransferAt = "10.0.0.9:25710"
	}
	if _, err := w.fleet.Put(worker); err != nil {
		w.t.Fatal(err)
	}
}

// post sends a completion to the relay.
func (w *world) post(body string, headers ...string) (status int, answer string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	if isFailure, final := response.StatusCode >= 500, response.Header.Get(headerNotRetried) != ""; isFailure != final {
		w.t.Errorf("an answer with status %d: that Envoy does not retry it is %v", response.StatusCode, final)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return response.StatusCode, err.Error()
	}
	return response.StatusCode, string(text)
}

func (w *world) count(outcome string) float64 {
	return testutil.ToFloat64(w.handler.outcomes.WithLabelValues(outcome))
}

func answers(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

const completion = `{"model":"m","prompt":"a prompt","seed":9007199254740993}`

// TestAttempts: an attempt that fails before its answer is followed by another one, and the client gets the answer of the last one.
func TestAttempts(t *testing.T) {
	die := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	good := answers(http.StatusOK, "good")
	for _, c := range []struct {
		name             string
		prefill          http.HandlerFunc
		decode           []http.HandlerFunc
		status           int
		answer           string
		failed, prefills float64
	}{
		{"both answer", good, []http.HandlerFunc{good}, 200, "good", 0, 0},
		{"one decode worker fails", good, []http.HandlerFunc{die, good}, 200, "good", 1, 0},
		{"one decode worker answers 500", good, []http.HandlerFunc{answers(500, "bad"), good}, 200, "good", 1, 0},
		{"the client's fault", good, []http.HandlerFunc{answers(400, "your fault"), answers(400, "your fault")}, 400, "your fault", 0, 0},
		{"no worker is left", good, []http.HandlerFunc{die}, 503, "have failed", 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.engine("p", fleet.Prefill, c.prefill)
			for i, handle := range c.decode {
				w.engine(fmt.Sprintf("d%d", i), fleet.Decode, handle)
			}
			status, answer := w.post(completion)
			if status != c.status || !strings.Contains(answer, c.answer) {
				t.Errorf("%d %s", status, answer)
			}
			if w.count(workerFailed) > c.failed || w.count(prefillFailed) != c.prefills {
				t.Errorf("%g workers failed, and %g prefills", w.count(workerFailed), w.count(prefillFailed))
			}
			w.assertNothingBooked()
		})
	}
}

// assertNothingBooked waits for the legs to prefill workers, which end after the answers.
func (w *world) assertNothingBooked() {
	w.t.Helper()
	testkit.Eventually(w.t, "nothing is booked", func() bool { return w.router.Bookings() == 0 })
}

// TestPoison: a body that ends engines reaches two of them, whichever they are and however they fail.
func TestPoison(t *testing.T) {
	die := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	good := answers(http.StatusOK, "{}")
	for _, c := range []struct {
		name            string
		prefill, decode http.HandlerFunc
	}{
		{"decode workers die", good, die},
		{"decode workers answer 500", good, answers(500, "dead")},
		{"prefill workers die", die, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{"all die", die, die},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			var mu sync.Mutex
			broken := map[string]bool{}
			count := func(name string, handle http.HandlerFunc) http.HandlerFunc {
				return func(out http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					defer func() {
						cause := recover()
						mu.Lock()
						broken[name] = broken[name] || cause != nil || name[0] == 'd' && strings.Contains(c.name, "500")
						mu.Unlock()
						if cause != nil {
							panic(cause)
						}
					}()
					handle(out, r)
				}
			}
			for i := range 4 {
				for role, handle := range map[fleet.Role]http.HandlerFunc{fleet.Prefill: c.prefill, fleet.Decode: c.decode} {
					name := fmt.Sprintf("%s%d", role, i)
					w.engine(name, role, count(name, handle))
				}
			}

			status, _ := w.post(completion)
			w.assertNothingBooked()
			mu.Lock()
			defer mu.Unlock()
			n := 0
			for _, is := range broken {
				if is {
					n++
				}
			}
			most := 2
			if c.name == "all die" {
				most = 4 // the second one of a pair may die after the first one was seen to
			}
			if n == 0 || n > most || status < http.StatusInternalServerError {
				t.Errorf("status %d, and %d workers are broken: %v", status, n, broken)
			}
		})
	}
}

// TestPrefillFails: a leg to a prefill worker that fails stops the decode leg, which waits for it, and the last attempt has one leg.
func TestPrefillFails(t *testing.T) {
	w := newWorld(t)
	arrived, stopped := make(chan struct{}), make(chan struct{})
	w.engine("p", fleet.Prefill, func(out http.ResponseWriter, _ *http.Request) {
		<-arrived
		out.WriteHeader(http.StatusInternalServerError)
	})
	w.engine("d", fleet.Decode, func(out http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if bytes.Contains(body, []byte("remote_prefiller")) {
			close(arrived)
			<-r.Context().Done()
			close(stopped)
			return
		}
		_, _ = out.Write(body)
	})
	status, answer := w.post(completion)
	<-stopped
	if status != http.StatusOK || answer != completion || w.count(prefillFailed) != 1 {
		t.Errorf("%d %s, %g prefills failed", status, answer, w.count(prefillFailed))
	}
	// The client has its answer before the handler returns.
	testkit.Eventually(t, "the answer is counted", func() bool { return w.count(answered) == 1 })
	w.assertNothingBooked()
}

// TestFaultOfTheClient: if a prefill worker finds a fault in a request first, the client gets its answer, and no other worker is asked.
// Faults of the worker are followed by other attempts.
func TestFaultOfTheClient(t *testing.T) {
	for _, transfer := range []fleet.Transfer{fleet.TransferP2P, fleet.TransferBootstrap} {
		for status, prefills := range map[int]int32{400: 1, 413: 1, 422: 1, 404: 3, 429: 3, 500: 3} {
			t.Run(fmt.Sprintf("%s %d", transfer, status), func(t *testing.T) {
				w := newWorld(t)
				w.transfer = transfer
				var asked, decoding atomic.Int32
				for i := range 3 {
					w.engine(fmt.Sprintf("p%d", i), fleet.Prefill, func(out http.ResponseWriter, r *http.Request) {
						_, _ = io.Copy(io.Discard, r.Body)
						asked.Add(1)
						answers(status, "your fault")(out, r)
					})
					w.engine(fmt.Sprintf("d%d", i), fleet.Decode, func(out http.ResponseWriter, r *http.Request) {
						body, _ := io.ReadAll(r.Body)
						decoding.Add(1)
						if bytes.Contains(body, []byte("bootstrap_room")) || bytes.Contains(body, []byte("remote_prefiller")) {
							<-r.Context().Done()
						}
					})
				}
				got, answer := w.post(completion)
				if prefills == 1 && (got != status || answer != "your fault" || decoding.Load() > 1) || asked.Load() > prefills {
					t.Errorf("%d %q after %d requests to prefill workers and %d to decode workers", got, answer, asked.Load(), decoding.Load())
				}
				if prefills == 1 && asked.Load() != 1 || prefills > 1 && got == status {
					t.Errorf("%d after %d requests to prefill workers", got, asked.Load())
				}
				w.assertNothingBooked()
			})
		}
	}
}

// TestAnswerBreaksOff: the client sees that the end of an answer is missing.
func TestAnswerBreaksOff(t *testing.T) {
	w := newWorld(t)
	w.engine("p", fleet.Prefill, answers(http.StatusOK, "{}"))
	w.engine("d", fleet.Decode, func(out http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(out, "the beginning")
		_ = http.NewResponseController(out).Flush()
		panic(http.ErrAbortHandler)
	})
	if status, answer := w.post(completion); status != http.StatusOK || !strings.Contains(answer, "EOF") || w.count(brokeOff) != 1 {
		t.Errorf("%d %s", status, answer)
	}
	w.assertNothingBooked()
}

// TestRefusals: requests that are not for engines reach none.
func TestRefusals(t *testing.T) {
	w := newWorld(t)
	w.engine("d", fleet.Decode, func(http.ResponseWriter, *http.Request) { t.Error("a request has come") })
	if status, _ := w.post(strings.Repeat(" ", 2000)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a large body: %d", status)
	}
	if status, _ := w.post(`{"kv_transfer_params":{},"a":`); status != http.StatusBadRequest {
		t.Errorf("a body that is cut off: %d", status)
	}
	response, err := http.Get(w.url + "/metrics")
	if err != nil || response.StatusCode != http.StatusNotFound {
		t.Errorf("%v, %v", response, err)
	}
	_ = response.Body.Close()
}

// TestHeadersOfLegs: engines get the client's headers, without the headers of the connection and of the decision.
func TestHeadersOfLegs(t *testing.T) {
	w := newWorld(t)
	w.engine("d", fleet.Decode, func(out http.ResponseWriter, r *http.Request) {
		if r.Header.Get("x-client") != "a" || r.Header.Get("x-stator-decision") != "" || r.Header.Get("te") != "" {
			t.Errorf("headers %v", r.Header)
		}
		out.Header().Set("x-engine", "b")
	})
	if status, answer := w.post(completion, "x-client", "a", "x-stator-decision", "none", "te", "trailers"); status != http.StatusOK {
		t.Errorf("%d %s", status, answer)
	}
}

// TestStripsTransfers: a member that names the source of a cache does not reach an engine by this way either.
func TestStripsTransfers(t *testing.T) {
	w := newWorld(t)
	w.engine("d", fleet.Decode, func(out http.ResponseWriter, r *http.Request) { _, _ = io.Copy(out, r.Body) })
	_, answer := w.post(`{"model":"m","prompt":"a","kv_transfer_params":{"do_remote_prefill":true}}`)
	if answer != `{"model":"m","prompt":"a"}` {
		t.Errorf("%s", answer)
	}
}

// TestDecodeFails: the leg to the prefill worker ends with its attempt, and does not wait for a decode worker that is gone.
func TestDecodeFails(t *testing.T) {
	w := newWorld(t)
	arrived, stopped := make(chan struct{}, 4), make(chan struct{}, 4)
	w.engine("p", fleet.Prefill, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		arrived <- struct{}{}
		<-r.Context().Done()
		stopped <- struct{}{}
	})
	var first sync.Once
	decode := func(out http.ResponseWriter, _ *http.Request) {
		first.Do(func() {
			<-arrived
			panic(http.ErrAbortHandler)
		})
		<-stopped
		_, _ = io.WriteString(out, "good")
	}
	w.engine("d0", fleet.Decode, decode)
	w.engine("d1", fleet.Decode, decode)
	if status, answer := w.post(completion); status != http.StatusOK || answer != "good" {
		t.Errorf("%d %s", status, answer)
	}
	w.assertNothingBooked()
}
