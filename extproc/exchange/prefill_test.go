package exchange

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/extproc/spans"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/serving"
)

const given = `{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r",` +
	`"remote_host":"10.0.0.9","remote_port":5600,"tp_size":1}`

// prefillWorker is an engine that answers prefill requests. It keeps the requests that it received.
type prefillWorker struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string // guarded by mu
	ids    []string // guarded by mu
	traces []string // guarded by mu; the headers traceparent
}

func newPrefillWorker(t *testing.T, answer http.HandlerFunc) *prefillWorker {
	w := &prefillWorker{}
	w.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.mu.Lock()
		w.bodies = append(w.bodies, string(body))
		w.ids = append(w.ids, r.Header.Get("X-Request-Id"))
		w.traces = append(w.traces, r.Header.Get("traceparent"))
		w.mu.Unlock()
		answer(out, r)
	}))
	t.Cleanup(w.Close)
	return w
}

// received returns the bodies that have arrived so far, and their request ids.
func (w *prefillWorker) received() (bodies, ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.bodies), slices.Clone(w.ids)
}

func answers(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// newSplit returns a service whose model has one decode worker, and prefill workers at these addresses.
func newSplit(t *testing.T, timeout time.Duration, prefillsAt ...string) (*Service, *route.Router, *prometheus.Registry) {
	return newSplitBy(t, fleet.TransferNixl, timeout, prefillsAt...)
}

// newSplitBy is newSplit for workers with this transfer. All are in one zone.
func newSplitBy(t *testing.T, kind fleet.Transfer, timeout time.Duration, prefillsAt ...string) (
	*Service, *route.Router, *prometheus.Registry,
) {
	f := fleet.New(fleet.Hooks{})
	router := route.New(route.Config{Seed: 1}, f, kvindex.New(kvindex.Config{}))
	at := ""
	if kind.HasAddress() {
		at = "10.0.0.1:8998"
	}
	put := func(name string, role fleet.Role, address string) {
		if _, err := f.Put(fleet.Worker{Name: name, Model: "sim", Role: role, Address: address, Ranks: 1, State: fleet.Ready,
			Transfer: kind, TransferAt: at, Taints: "zone=a,"}); err != nil {
			t.Fatal(err)
		}
	}
	put("d", fleet.Decode, "10.0.0.1:8000")
	for i, at := range prefillsAt {
		put(fmt.Sprintf("p%d", i), fleet.Prefill, strings.TrimPrefix(at, "http://"))
	}
	if err := router.SetModels(map[string]*serving.Config{"sim": {Prompt: letters{}, BlockSize: 4, Prefill: serving.PrefillRemote}}); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	s := New(Settings{BodyBytes: 1 << 20, BodiesBytes: 4 << 20, DefaultModel: "sim"}, Config{
		Router: router, Started: start, Log: slog.New(slog.DiscardHandler), Metrics: reg,
		Prefills: prefill.New(prefill.Config{Router: router, Log: slog.New(slog.DiscardHandler), Metrics: reg, Timeout: timeout}),
		Relay:    relayAt,
	})
	t.Cleanup(s.prefills.Close)
	return s, router, reg
}

const relayAt = "10.0.0.99:9004"

// prefillsOf returns the number of requests to prefill workers that had an outcome.
func prefillsOf(t *testing.T, reg *prometheus.Registry, o prefill.Outcome) float64 {
	t.Helper()
	return counterOf(t, reg, "stator_extproc_prefills_total", string(o))
}

// counterOf returns a counter whose first label has that value, or one without labels.
func counterOf(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("there is no counter %s of %q", name, label)
	return 0
}

// post sends a completion through an exchange. False means that the client has left.
func post(ctx context.Context, t *testing.T, s *Service, head Head, body string) (Reply, bool) {
	t.Helper()
	head.Method, head.Path = http.MethodPost, "/v1/completions"
	x := s.Begin(Origin{Source: "edge", Context: ctx})
	x.OnHeaders(head, time.Now())
	r := x.OnBody([]byte(body), true, time.Now())
	if r.Queued == nil {
		return r, true
	}
	if wait := time.Until(r.Queued.Until()); wait <= 0 || wait > route.PrefillTimeout {
		t.Errorf("Envoy is to wait for %s", wait)
	}
	return x.Await(r.Queued, r.Body)
}

// traceparent is the header of a trace.
const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

const completionOfClient = `{"model":"sim","prompt":"a prompt of some blocks","max_tokens":9,"seed":9007199254740993}`

// TestPrefillOutcomes: whatever prefill workers do, the request goes to the decode worker, with the parameters of the one that has computed
// the prompt or without. No booking is left but the decode worker's.
func TestPrefillOutcomes(t *testing.T) {
	good := answers(http.StatusOK, `{"choices":[],"kv_transfer_params":`+given+`}`)
	for _, c := range []struct {
		name    string
		answers []http.HandlerFunc // nil for a worker that cannot be reached
		want    map[prefill.Outcome]float64
		split   bool
	}{
		{"answers", []http.HandlerFunc{good}, map[prefill.Outcome]float64{prefill.Transferred: 1}, true},
		{"no workers", nil, map[prefill.Outcome]float64{prefill.NoWorker: 1}, false},
		{"the only one is dead", []http.HandlerFunc{nil}, map[prefill.Outcome]float64{prefill.Unreachable: 1, prefill.NoWorker: 1}, false},
		{"all are dead", []http.HandlerFunc{nil, nil, nil}, map[prefill.Outcome]float64{prefill.Unreachable: 2}, false},
		{"no parameters", []http.HandlerFunc{answers(200, `{"kv_transfer_params":null}`)}, map[prefill.Outcome]float64{prefill.Unusable: 1, prefill.NoWorker: 1}, false},
		{"fails", []http.HandlerFunc{answers(500, `{}`)}, map[prefill.Outcome]float64{prefill.Failed: 1, prefill.NoWorker: 1}, false},
		{"refuses", []http.HandlerFunc{answers(400, `{}`), answers(400, `{}`)}, map[prefill.Outcome]float64{prefill.Refused: 1}, false},
		{"redirects", []http.HandlerFunc{answers(302, ``)}, map[prefill.Outcome]float64{prefill.Refused: 1}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var at []string
			var workers []*prefillWorker
			for _, answer := range c.answers {
				w := newPrefillWorker(t, answer)
				workers = append(workers, w)
				at = append(at, w.URL)
				if answer == nil {
					w.Close()
				}
			}

			s, router, reg := newSplit(t, 0, at...)
			head := Head{RequestID: "from-envoy", Trace: spans.Parse([]byte(traceparent))}
			r, ok := post(t.Context(), t, s, head, completionOfClient)
			if !ok || r.Pick == nil || !strings.HasPrefix(r.Destinations, "10.0.0.1:8000") || router.Bookings() != 1 {
				t.Fatalf("%+v, %d bookings", r, router.Bookings())
			}
			want := completionOfClient
			if c.split {
				want = strings.TrimSuffix(want, "}") + `,"kv_transfer_params":` + given + "}"
			}
			if got := cmp.Or(string(r.Body), completionOfClient); got != want {
				t.Errorf("the decode worker receives %s", got)
			}
			if c.split {
				d, found := router.Explain(r.Pick.PrefillID(0))
				if !found || d.Onward == nil || d.Onward.Worker != r.Pick.Worker || d.Onward.Shared != fleet.InZone {
					t.Errorf("the choice of the prefill worker does not name the transfer: %+v", d)
				}
			}
			for _, outcome := range prefill.Outcomes() {
				if got := prefillsOf(t, reg, outcome); got != c.want[outcome] {
					t.Errorf("%v requests are %s, want %v", got, outcome, c.want[outcome])
				}
			}
			for _, w := range workers {
				bodies, ids := w.received()
				for i, body := range bodies {
					if !strings.Contains(body, `"max_tokens":1,`) || !strings.Contains(body, "9007199254740993") || ids[i] != "from-envoy" || w.traces[i] != traceparent {
						t.Errorf("request %s has body %s", ids[i], body)
					}
				}
			}
			router.End(r.Pick.ID, time.Now())
			if n := router.Bookings(); n != 0 {
				t.Errorf("%d bookings are left", n)
			}
		})
	}
}

// TestPrefillByAnother: if one prefill worker fails, the next one computes the prompt.
func TestPrefillByAnother(t *testing.T) {
	var requests atomic.Int32
	answer := func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 {
			panic(http.ErrAbortHandler) // the connection is cut
		}
		answers(http.StatusOK, `{"kv_transfer_params":`+given+`}`)(w, r)
	}
	a, b := newPrefillWorker(t, answer), newPrefillWorker(t, answer)
	s, _, _ := newSplit(t, 0, a.URL, b.URL)

	r, ok := post(t.Context(), t, s, Head{}, completionOfClient)
	first, ids := a.received()
	second, others := b.received()
	if !ok || !strings.Contains(string(r.Body), given) || len(first) != 1 || len(second) != 1 {
		t.Fatalf("%s after %d and %d requests", r.Body, len(first), len(second))
	}
	// Both engines receive the same id if Envoy has sent none.
	i := slices.IndexFunc(r.Set, func(h envoynames.Header) bool { return h.Key == "x-request-id" })
	if i < 0 || r.Set[i].Value != ids[0] || ids[0] != others[0] || ids[0] == "" {
		t.Errorf("headers %v, and %v, %v at the prefill workers", r.Set, ids, others)
	}
}

// TestPrefillsThatDie: a body that has ended two prefill workers goes to no decode worker.
func TestPrefillsThatDie(t *testing.T) {
	die := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	a, b := newPrefillWorker(t, die), newPrefillWorker(t, die)
	s, router, _ := newSplit(t, 0, a.URL, b.URL)
	r, ok := post(t.Context(), t, s, Head{}, completionOfClient)
	if !ok || r.Answer == nil || r.Answer.Status != http.StatusServiceUnavailable || r.Pick != nil || router.Bookings() != 0 {
		t.Errorf("%+v, %d bookings", r, router.Bookings())
	}
}

// TestHangingPrefillWorkers: workers that do not answer are asked once each; after that decode workers compute the prompts at once.
func TestHangingPrefillWorkers(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	a, b := newPrefillWorker(t, hang), newPrefillWorker(t, hang)
	s, router, reg := newSplit(t, 200*time.Millisecond, a.URL, b.URL)
	for range 20 {
		r, ok := post(t.Context(), t, s, Head{}, completionOfClient)
		if !ok || r.Pick == nil || string(r.Body) != completionOfClient {
			t.Fatalf("%+v", r)
		}
		router.End(r.Pick.ID, time.Now())
	}
	first, _ := a.received()
	second, _ := b.received()
	late, none := prefillsOf(t, reg, prefill.TimedOut), prefillsOf(t, reg, prefill.NoWorker)
	if len(first) != 1 || len(second) != 1 || late != 2 || none != 18 {
		t.Errorf("%d and %d requests, %v too late, %v without a worker", len(first), len(second), late, none)
	}
}

// TestFirstTokenEndsTheAnswer: TensorRT-LLM transfers nothing if the first token ends the answer. The decode worker computes the prompt, no
// other prefill worker is asked, and Envoy does not retry an answer of 400, which is then the client's fault.
func TestFirstTokenEndsTheAnswer(t *testing.T) {
	const transferred = `{"prompt_token_ids":[1],"choices":[{"finish_reason":"not_finished","disaggregated_params":` +
		`{"request_type":"context_only","first_gen_tokens":[17],"ctx_request_id":9}}]}`
	for _, c := range []struct {
		name, answer string
		status       int
		outcome      prefill.Outcome
		retried      string
	}{
		{"ended", `{"choices":[{"finish_reason":"stop","disaggregated_params":null}]}`, http.StatusOK, prefill.Finished, "500"},
		{"refused", `{"error":{}}`, http.StatusBadRequest, prefill.Refused, "500"},
		{"transferred", transferred, http.StatusOK, prefill.Transferred, "400,500"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := newPrefillWorker(t, answers(c.status, c.answer)), newPrefillWorker(t, answers(c.status, c.answer))
			s, _, reg := newSplitBy(t, fleet.TransferContext, 0, a.URL, b.URL)
			r, ok := post(t.Context(), t, s, Head{}, completionOfClient)
			first, _ := a.received()
			second, _ := b.received()
			if !ok || len(first)+len(second) != 1 || prefillsOf(t, reg, c.outcome) != 1 {
				t.Errorf("%d and %d requests, %+v", len(first), len(second), r)
			}
			i := slices.IndexFunc(r.Set, func(h envoynames.Header) bool { return h.Key == headerRetryOn })
			if i < 0 || r.Set[i].Value != c.retried {
				t.Errorf("Envoy retries %v", r.Set)
			}
		})
	}
}

// TestPrefillTimesOut: after the timeout the request goes to the decode worker, and no other prefill worker is asked.
func TestPrefillTimesOut(t *testing.T) {
	slow := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	a, b := newPrefillWorker(t, slow), newPrefillWorker(t, slow)
	s, router, reg := newSplit(t, 10*time.Millisecond, a.URL, b.URL)

	r, ok := post(t.Context(), t, s, Head{}, completionOfClient)
	if !ok || string(r.Body) != completionOfClient || router.Bookings() != 1 {
		t.Errorf("%s, %d bookings", r.Body, router.Bookings())
	}
	if n := prefillsOf(t, reg, prefill.TimedOut); n != 1 {
		t.Errorf("%v timed out", n)
	}
	first, _ := a.received()
	second, _ := b.received()
	if len(first)+len(second) > 1 {
		t.Errorf("%d and %d requests", len(first), len(second))
	}
}

// TestPrefillsThatHang: bodies at prefill workers that hang use up no memory for decisions. If there is no room for another one, its decode
// worker computes the prompt at once.
func TestPrefillsThatHang(t *testing.T) {
	const held = 4
	arrived := make(chan struct{}, held)
	p := newPrefillWorker(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	s, router, reg := newSplit(t, 0, p.URL)
	large := completionOfClient + strings.Repeat(" ", 1<<20-len(completionOfClient))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var hanging sync.WaitGroup
	for range held {
		hanging.Go(func() {
			if !s.Reserve(len(large)) { // as the door does
				t.Error("a body is refused")
				return
			}
			_, _ = post(ctx, t, s, Head{}, large)
			s.Free(len(large))
		})
		<-arrived
	}
	if used, prefilling := s.bodies.Used(), s.prefilling.Used(); used != 0 || prefilling != held<<20 {
		t.Errorf("%d bytes for decisions, %d at prefill workers", used, prefilling)
	}

	for range 3 {
		if !s.Reserve(len(large)) {
			t.Fatal("a body is refused")
		}
		r, ok := post(t.Context(), t, s, Head{}, large)
		if !ok || r.Pick == nil || string(r.Body) != large {
			t.Errorf("%+v", r)
		}
		router.End(r.Pick.ID, time.Now())
		s.Free(len(large))
	}
	leave()
	hanging.Wait()
	if s.bodies.Used() != 0 || s.prefilling.Used() != 0 || router.Bookings() != 0 || prefillsOf(t, reg, prefill.NoWorker) != 3 {
		t.Errorf("%d and %d bytes, %d bookings", s.bodies.Used(), s.prefilling.Used(), router.Bookings())
	}
}

// TestUnsplitRequests go to the decode worker at once, as they are.
func TestUnsplitRequests(t *testing.T) {
	p := newPrefillWorker(t, answers(http.StatusOK, `{}`))
	s, _, _ := newSplit(t, 0, p.URL)
	for _, body := range []string{
		`{"model":"sim","prompt":"a","n":2}`,
		`{"model":"sim","prompt":["a","b"]}`,
		`{"model":"sim","prompt":"a","echo":true}`,
		`{"model":"sim","prompt":"a","prompt_logprobs":1}`,
	} {
		r, ok := post(t.Context(), t, s, Head{}, body)
		arrived, _ := p.received()
		if !ok || r.Pick == nil || r.Destinations != "10.0.0.1:8000" || r.Body != nil || len(arrived) > 0 {
			t.Errorf("%s: %+v, %q", body, r, arrived)
		}
	}
}

// TestClientLeavesDuringPrefill: the request to the prefill worker is cancelled, and both bookings end.
func TestClientLeavesDuringPrefill(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	arrived, cancelledThere := make(chan struct{}), make(chan struct{})
	p := newPrefillWorker(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(cancelledThere)
	})
	s, router, reg := newSplit(t, 0, p.URL)
	go func() {
		<-arrived
		leave()
	}()

	r, ok := post(ctx, t, s, Head{}, completionOfClient)
	<-cancelledThere
	if ok || router.Bookings() != 0 || prefillsOf(t, reg, prefill.Cancelled) != 1 {
		t.Errorf("%+v, %d bookings", r, router.Bookings())
	}
}

// TestSidecars: where sidecars send prompts to prefill workers, a header names the prefill worker, the request goes to the decode worker and
// not to the relay, and routers send nothing. Without a prefill worker the client's own header is removed.
func TestSidecars(t *testing.T) {
	t.Parallel()
	var sent atomic.Int32
	var routers []*route.Router
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent.Add(1) }))
	t.Cleanup(server.Close)
	for _, kind := range []fleet.Transfer{fleet.TransferNixl, fleet.TransferBootstrap} {
		for _, prefillsAt := range [][]string{{server.URL}, nil} {
			if kind == fleet.TransferBootstrap && prefillsAt == nil {
				continue // SGLang's decode workers compute no prompts, so the request is refused
			}
			s, router, reg := newSplitBy(t, kind, time.Minute, prefillsAt...)
			settings := *s.Settings()
			settings.Sidecars = true
			s.settings.Store(&settings)
			r, ok := post(t.Context(), t, s, Head{}, completionOfClient)
			if !ok || r.Pick == nil {
				t.Fatalf("%s: %+v", kind, r)
			}
			named, outcome := "", prefill.NoWorker
			if len(prefillsAt) > 0 {
				named, outcome = strings.TrimPrefix(server.URL, "http://"), prefill.Named
			}
			got := ""
			for _, h := range r.Set {
				if h.Key == envoynames.HeaderPrefiller {
					got = h.Value
				}
			}
			isRemoved := slices.Contains(r.Remove, envoynames.HeaderPrefiller)
			if got != named || isRemoved != (named == "") {
				t.Errorf("%s: the header is %q, want %q; removed: %t", kind, got, named, isRemoved)
			}
			if r.Destinations != r.Pick.Address || r.Body != nil && string(r.Body) != completionOfClient {
				t.Errorf("%s: to %s, with the body %s", kind, r.Destinations, r.Body)
			}
			if n := prefillsOf(t, reg, outcome); n != 1 {
				t.Errorf("%s: %g requests are %s", kind, n, outcome)
			}
			router.End(r.Pick.ID, time.Now())
			routers = append(routers, router)
		}
	}
	// The end of the prefill is not seen, so the rest of a booking ends after a while.
	deadline := time.Now().Add(time.Minute)
	for _, router := range routers {
		for router.Bookings() > 0 {
			if time.Now().After(deadline) {
				t.Fatalf("%d bookings are left", router.Bookings())
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	if n := sent.Load(); n != 0 {
		t.Errorf("%d requests were sent to the prefill worker", n)
	}
}

// TestEmptyAnswersAfterTransfers: a prefill worker gets no prompt of a decode worker whose answer has no token after their transfer, until
// they have paused. Other workers get them, or the decode worker computes them.
func TestEmptyAnswersAfterTransfers(t *testing.T) {
	transfers := answers(http.StatusOK, `{"kv_transfer_params":`+given+`}`)
	workers := []*prefillWorker{newPrefillWorker(t, transfers), newPrefillWorker(t, transfers)}
	s, router, reg := newSplit(t, 0, workers[0].URL, workers[1].URL)
	turn := func(isEmpty bool, at time.Time) (sentTo string) {
		t.Helper()
		before := [2]int{}
		for i, w := range workers {
			bodies, _ := w.received()
			before[i] = len(bodies)
		}
		if _, ok := post(t.Context(), t, s, Head{}, completionOfClient); !ok {
			t.Fatal("the client has left")
		}
		for _, d := range router.Recent(5) {
			if d.Role == fleet.Decode {
				s.Answered(d.ID, isEmpty, at)
				s.Answered(d.ID, true, at) // its end is reported twice, and counts once
				router.End(d.ID, time.Now())
				break
			}
		}
		for i, w := range workers {
			if bodies, _ := w.received(); len(bodies) > before[i] {
				sentTo += fmt.Sprint("p", i)
			}
		}
		return sentTo
	}

	now := time.Now()
	first := turn(true, now)
	other := turn(false, now)
	if first == "" || other == "" || first == other {
		t.Fatalf("prompts go to %q and then to %q", first, other)
	}
	for range 3 {
		if to := turn(false, now); to != other {
			t.Errorf("a prompt goes to %q during the pause", to)
		}
	}
	if to := turn(true, now); to != other {
		t.Errorf("a prompt goes to %q", to)
	}
	if to := turn(true, now); to != "" {
		t.Errorf("a prompt goes to %q while both pause", to)
	}
	if n := counterOf(t, reg, "stator_extproc_transfer_empty_answers_total", ""); n != 2 {
		t.Errorf("%v empty answers, want 2", n)
	}
}
