package scenario

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/envoy"
)

// backend is a worker of a test: an HTTP server that records what reaches it.
type backend struct {
	*http.Server
	address string

	mu       sync.Mutex
	requests []received // guarded by mu
}

// received is a request as a worker gets it.
type received struct {
	path   string
	header http.Header
	body   string
}

// startBackend starts a worker. answer, if it is not nil, answers instead of an empty chat.
func startBackend(t *testing.T, answer func(b *backend, w http.ResponseWriter, body string)) *backend {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{address: ln.Addr().String()}
	b.Server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && slices.Contains(askedByRouters, r.URL.Path) {
			http.NotFound(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler) // the request was ended early
		}
		b.mu.Lock()
		b.requests = append(b.requests, received{r.URL.Path, r.Header, string(body)})
		b.mu.Unlock()
		if answer != nil {
			answer(b, w, string(body))
			return
		}
		_, _ = fmt.Fprint(w, `{"choices":[]}`)
	})}
	go func() { _ = b.Serve(ln) }()
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// askedByRouters are the paths at which routers ask engines. They are not recorded.
var askedByRouters = []string{"/health", "/metrics", "/v1/models"}

func (b *backend) got() []received {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.requests)
}

// edge is an Envoy with workers of the file, and with a router unless it is left out.
type edge struct {
	*gateway
	process *envoy.Process
	trusted *gateway // the listener for trusted clients
	file    string   // the configuration
}

// startEdge starts a control plane for that gateway and those models, a router if withRouter, and Envoy. models is
// YAML.
func startEdge(t *testing.T, withRouter bool, settings, models string) *edge {
	t.Helper()
	return startEdgeWith(t, withRouter, settings, models, func(bootstrap string) string { return bootstrap })
}

// startEdgeWith is startEdge with a changed bootstrap of Envoy.
func startEdgeWith(t *testing.T, withRouter bool, settings, models string, change func(bootstrap string) string) *edge {
	t.Helper()
	listen, trusted, extprocAt, xdsAt := freeAddress(t), freeAddress(t), freeAddress(t), freeAddress(t)
	file := configFile(t, fmt.Sprintf("gateway: {listen: %q, trustedListen: %q, %s}\nmodels: [%s]\n", listen, trusted, settings, models))
	e := &edge{
		gateway: &gateway{t: t, url: "http://" + listen, admin: freeAddress(t)},
		trusted: &gateway{t: t, url: "http://" + trusted},
		file:    file,
	}
	if withRouter {
		start(t, "extproc", "--config", file, "--listen-address", extprocAt, "--admin-address", e.admin)
		eventually(t, "the router is ready", func() error {
			_, err := get("http://" + e.admin + "/readyz")
			return err
		})
	}
	start(t, append([]string{"xds", "--config", file, "--listen-address", xdsAt, "--extproc-address", extprocAt,
		"--admin-address", "127.0.0.1:0"}, affinityFlags(t, settings)...)...)

	boot, err := exec.Command(binary, "envoy", "bootstrap", "--admin-address", "127.0.0.1:0", "--xds-address", xdsAt).Output()
	if err != nil {
		t.Fatal(err)
	}
	e.process, err = envoy.Start(envoy.Config{
		Path: envoyPath(t), Bootstrap: []byte(change(string(boot))), Dir: t.TempDir(), Concurrency: 2, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.process.Stop(context.Background()) })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := e.process.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Envoy has its routes", func() error {
		r, err := e.send(t.Context(), http.MethodOptions, "/v1/chat/completions", nil)
		if err == nil && r.status == http.StatusNotFound {
			err = errNotYet
		}
		return err
	})
	return e
}

// settledAsPicked waits until the requests of startEdge have ended, and returns how many were served as picked.
func (e *edge) settledAsPicked() int {
	e.t.Helper()
	eventually(e.t, "the first requests have ended", func() error {
		if e.served("as_picked")+e.served("retried") == 0 || e.metric("stator_accesslog_streams") == 0 {
			return errNotYet
		}
		return nil
	})
	e.assertNothingBooked()
	return e.served("as_picked")
}

// simModel returns a model of the file with these workers. They are not asked for their health: requests alone find out.
func simModel(name string, workers ...*backend) string {
	var list []string
	for i, w := range workers {
		list = append(list, fmt.Sprintf(`{name: %s-%d, address: "%s", healthPath: none}`, name, i, w.address))
	}
	return fmt.Sprintf(`{name: %s, path: "builtin:sim", workers: [%s]}`, name, strings.Join(list, ", "))
}

// ask sends a chat to a model.
func (e *edge) ask(model, text string, headers ...string) reply {
	e.t.Helper()
	body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]}`, model, text)
	r, err := e.send(e.t.Context(), http.MethodPost, chatPath, []byte(body), headers...)
	if err != nil {
		e.t.Fatal(err)
	}
	return r
}

// TestUndecidedRequestsOfSeveralModels: without a router Envoy does not know the model of a request, so no worker gets
// it: another model's would answer as if it were asked for.
func TestUndecidedRequestsOfSeveralModels(t *testing.T) {
	t.Parallel()
	a, b := startBackend(t, nil), startBackend(t, nil)
	e := startEdge(t, false, "decisionTimeout: 500ms", simModel("a", a)+", "+simModel("b", b))
	for _, model := range []string{"a", "b"} {
		r := e.ask(model, "hello")
		if r.status != 503 || r.error.Code != "no_decision" || r.header.Get("retry-after") == "" {
			t.Errorf("model %s: status %d, retry-after %q: %s", model, r.status, r.header.Get("retry-after"), r.body)
		}
	}
	for name, w := range map[string]*backend{"a": a, "b": b} {
		for _, r := range w.got() {
			t.Errorf("worker %s got a request to %s", name, r.path)
		}
	}
}

// TestDecidedRequestsOfSeveralModels: each model's requests reach its workers, with bodies that are larger than a
// connection's buffer, and paths that are not parsed go to a worker, too.
func TestDecidedRequestsOfSeveralModels(t *testing.T) {
	t.Parallel()
	a, b := startBackend(t, nil), startBackend(t, nil)
	e := startEdge(t, true, "", simModel("a", a)+", "+simModel("b", b))
	text := strings.Repeat("All work and no play. ", 10_000)
	for model, w := range map[string]*backend{"a": a, "b": b} {
		before := len(w.got())
		r := e.ask(model, text)
		got := w.got()
		if r.status != 200 || len(got) != before+1 || !strings.Contains(got[before].body, text) {
			t.Errorf("model %s: status %d, %d requests: %.300s", model, r.status, len(got)-before, r.body)
		}
	}
}

// TestEmbeddingModelBesideChatModel: every path that names a model reaches that model's workers, also those of a model
// whose prompts are not read.
func TestEmbeddingModelBesideChatModel(t *testing.T) {
	t.Parallel()
	chat, vectors := startBackend(t, nil), startBackend(t, nil)
	unread := fmt.Sprintf(`{name: vectors, workers: [{name: vectors-0, address: "%s", healthPath: none}]}`, vectors.address)
	e := startEdge(t, true, "", simModel("chat", chat)+", "+unread)

	workers := map[string]*backend{"chat": chat, "vectors": vectors}
	for _, path := range []string{chatPath, "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/score", "/pooling", "/v1/responses"} {
		for model, w := range workers {
			before := len(w.got())
			body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"x"}],"prompt":"x","input":["x"]}`, model)
			r, err := e.send(t.Context(), http.MethodPost, path, []byte(body))
			if err != nil {
				t.Fatal(err)
			}
			got := w.got()
			if r.status != 200 || r.decision == "" || len(got) != before+1 || got[before].path != path || got[before].body != body {
				t.Errorf("%s of %s: status %d, %d requests: %.300s", path, model, r.status, len(got)-before, r.body)
			}
		}
	}
}

// TestControlPathsWithoutRouter: while no router decides, Envoy routes by itself the paths that routers let pass, and
// no others: engines have paths that change or stop them.
func TestControlPathsWithoutRouter(t *testing.T) {
	t.Parallel()
	w := startBackend(t, nil)
	e := startEdge(t, false, "decisionTimeout: 500ms", simModel("sim", w))
	before := len(w.got())
	for path, want := range map[string]int{
		"/v1/chat/completions": 200, "/v1/completions/": 200, "/v1/embeddings?x=1": 200, "/v1/rerank": 200,
		"/reset_prefix_cache": 503, "/v1/rerank/../load_lora_adapter": 503, "/v1/chat/completions/x": 503, "/metrics": 503,
	} {
		r, err := e.send(t.Context(), http.MethodPost, path, []byte(`{}`))
		if err != nil || r.status != want {
			t.Errorf("%s: status %d, want %d, %v: %s", path, r.status, want, err, r.body)
		}
	}
	if n := len(w.got()) - before; n != 4 {
		t.Errorf("%d requests reached the worker", n)
	}
}

// crash ends a worker as its process would: connections are reset, and its port is closed.
func crash(b *backend, w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	}
	_ = b.Close()
}

// TestDeadlyPromptStopsTwoWorkers: a prompt that makes engines crash is tried twice, not at every worker.
func TestDeadlyPromptStopsTwoWorkers(t *testing.T) {
	t.Parallel()
	var stopped atomic.Int32
	var workers []*backend
	for range 5 {
		workers = append(workers, startBackend(t, func(b *backend, w http.ResponseWriter, body string) {
			if strings.Contains(body, "die") {
				stopped.Add(1)
				crash(b, w)
			}
		}))
	}
	e := startEdge(t, true, "", simModel("sim", workers...))
	r := e.ask("sim", "die")
	if r.status != 503 || r.error.Code != "no_worker" || r.header.Get("retry-after") == "" {
		t.Errorf("status %d: %s", r.status, r.body)
	}
	if n := stopped.Load(); n != 2 {
		t.Errorf("%d workers were stopped", n)
	}
	eventually(t, "the request counts as failed", func() error {
		if n := e.served("failed"); n != 1 {
			return fmt.Errorf("%d failed, %d retried", n, e.served("retried"))
		}
		return nil
	})
	e.assertNothingBooked()

	// The others serve on.
	for i := range 12 {
		if r := e.ask("sim", fmt.Sprintf("ordinary question %d", i)); r.status != 200 {
			t.Errorf("request %d after the deadly one: status %d: %s", i, r.status, r.body)
		}
	}
	if n := stopped.Load(); n != 2 {
		t.Errorf("%d workers were stopped", n)
	}
	e.assertNothingBooked()
}

// TestDeadWorkerLosesItsConversations: a worker of the file that never ran attracts no conversation for long. Envoy
// serves its requests elsewhere, the router moves their caches there, and holds the worker back. Then a request each
// five seconds tries it.
func TestDeadWorkerLosesItsConversations(t *testing.T) {
	t.Parallel()
	gone := startBackend(t, nil)
	_ = gone.Close()
	e := startEdge(t, true, "", simModel("sim", gone, startBackend(t, nil)))

	const conversations, turns = 4, 10
	began := time.Now()
	var talks [conversations][]message
	var picked [turns]int // of the dead worker, in each turn
	for turn := range turns {
		for i := range talks {
			text := fmt.Sprintf("Turn %d of conversation %d. ", turn, i) + strings.Repeat("The tide comes in and goes out again. ", 14)
			talks[i] = append(talks[i], message{"user", text})
			r := e.chat(talks[i], 1)
			if e.decision(r.decision).Worker == "sim-0" {
				picked[turn]++
			}
			e.assertNothingBooked() // the report of a failure ends its booking
			talks[i] = append(talks[i], message{"assistant", "Yes."})
		}
	}

	sum := 0
	for _, n := range picked {
		sum += n
	}
	// Three failures in a row hold it back.
	if most := 5 + int(time.Since(began)/(5*time.Second)); sum > most {
		t.Errorf("the dead worker was picked %d times, by turns %v; want at most %d", sum, picked, most)
	}
	eventually(t, "the requests are counted", func() error {
		if n := e.served("as_picked") + e.served("retried"); n < conversations*turns {
			return fmt.Errorf("%d as picked or retried", n)
		}
		return nil
	})
	if n := e.served("failed") + e.served("unserved") + e.served("misdirected"); n > 0 {
		t.Errorf("%d requests were not served as they should be", n)
	}
	e.assertNothingBooked()
}

// TestOutcomesOfBadAnswers: an answer that is an error of the server, or is cut off, is no success. A client's own
// mistake is none of the worker's.
func TestOutcomesOfBadAnswers(t *testing.T) {
	t.Parallel()
	w := startBackend(t, func(_ *backend, w http.ResponseWriter, body string) {
		switch {
		case strings.Contains(body, "break"):
			w.WriteHeader(http.StatusInternalServerError)
		case strings.Contains(body, "cut"):
			w.Header().Set("content-length", "1000")
			_, _ = fmt.Fprint(w, "half")
			_ = http.NewResponseController(w).Flush()
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		case strings.Contains(body, "refuse"):
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	e := startEdge(t, true, "", simModel("sim", w))
	before := e.settledAsPicked()
	for _, text := range []string{"break", "cut", "refuse", "be good"} {
		body := fmt.Sprintf(`{"model":"sim","messages":[{"role":"user","content":%q}]}`, text)
		_, _ = e.send(t.Context(), http.MethodPost, chatPath, []byte(body))
	}
	eventually(t, "two requests failed and two did not", func() error {
		if failed, good := e.served("failed"), e.served("as_picked")-before; failed != 2 || good != 2 {
			return fmt.Errorf("%d failed, %d as picked, %d retried", failed, good, e.served("retried"))
		}
		return nil
	})
}

// TestClosedPortIsRetriedElsewhere: a worker that is listed and does not run costs a retry and no request. With several
// models the retries are those of the model's route, which is chosen after the decision.
func TestClosedPortIsRetriedElsewhere(t *testing.T) {
	t.Parallel()
	t.Run("models=1", func(t *testing.T) { retriesElsewhere(t, "") })
	t.Run("models=2", func(t *testing.T) { retriesElsewhere(t, simModel("other", startBackend(t, nil))+", ") })
}

func retriesElsewhere(t *testing.T, others string) {
	t.Helper()
	gone := startBackend(t, nil)
	_ = gone.Close()
	alive := startBackend(t, nil)
	e := startEdge(t, true, "", others+simModel("sim", gone, alive))
	before := e.settledAsPicked() + e.served("retried")
	for i := range 20 {
		if r := e.ask("sim", fmt.Sprintf("Question %d has its own answer.", i)); r.status != 200 {
			t.Errorf("request %d: status %d: %s", i, r.status, r.body)
		}
	}
	eventually(t, "the requests are counted", func() error {
		if n := e.served("retried") + e.served("as_picked") - before; n != 20 || e.served("retried") == 0 {
			return fmt.Errorf("%d as picked or retried, %d retried", n, e.served("retried"))
		}
		return nil
	})
	e.assertNothingBooked()
}

// TestAttemptThatHangsIsRetriedElsewhere: a worker that accepts a request and sends nothing loses it after
// attemptIdleTimeout. Another worker answers, and the router corrects what it expected of the caches. An answer whose bytes
// come one by one lasts longer. The timeout is long enough for a worker on a busy machine.
func TestAttemptThatHangsIsRetriedElsewhere(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	hangs := startBackend(t, func(_ *backend, w http.ResponseWriter, body string) {
		if strings.Contains(body, "slowly") {
			for range 8 {
				_, _ = fmt.Fprint(w, "x")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Second)
			}
			return
		}
		<-release
	})
	t.Cleanup(func() { close(release) })
	e := startEdge(t, true, "hints: headers, hintsFrom: everyone, attemptIdleTimeout: 5s", simModel("sim", hangs, startBackend(t, nil)))

	if r := e.ask("sim", "answer me slowly", "x-stator-worker", "sim-0"); r.status != 200 || r.body != "xxxxxxxx" {
		t.Errorf("slow bytes: status %d, %q", r.status, r.body)
	}
	before := e.settledAsPicked()
	// The requests are not pinned, so they have a second address. They share no prefix and are sent at once, so both
	// workers get some.
	var asking sync.WaitGroup
	for i := range 4 {
		asking.Go(func() {
			if r := e.ask("sim", strings.Repeat(fmt.Sprint(i, " tides come in and go out again. "), 40)); r.status != 200 {
				t.Errorf("request %d: status %d: %s", i, r.status, r.body)
			}
		})
	}
	asking.Wait()
	eventually(t, "a request was retried", func() error {
		// The first requests, which settle the gateway, may have been retried, too.
		if retried, good := e.served("retried"), e.served("as_picked")-before; retried == 0 || retried+good < 4 {
			return fmt.Errorf("%d retried, %d as picked, %d failed", retried, good, e.served("failed"))
		}
		return nil
	})
	e.assertNothingBooked()
}

// TestHeadersOfClients: headers with which a client could pretend to be a router do not reach routers or workers. Hints
// count on the listener for trusted clients, and do not reach workers.
func TestHeadersOfClients(t *testing.T) {
	t.Parallel()
	a, b := startBackend(t, nil), startBackend(t, nil)
	e := startEdge(t, true, "hints: headers", simModel("sim", a, b))
	forged := []string{
		"x-stator-worker", "sim-1", "x-stator-model", "x", "x-stator-anything", "x", "x-stator-decision", "x", "x-stator-trusted", "true",
		"x-data-parallel-rank", "7", "x-gateway-destination-endpoint", "127.0.0.1:1", "x-gateway-destination-more", "x", "x-kept", "yes",
	}
	trusted := &edge{gateway: e.trusted}
	for i := range 8 {
		for _, c := range []*edge{e, trusted} {
			if r := c.ask("sim", fmt.Sprintf("Question %d", i), forged...); r.status != 200 {
				t.Errorf("status %d: %s", r.status, r.body)
			}
		}
	}

	onA, onB := a.got(), b.got()
	if len(onA) == 0 || len(onB) < 8 {
		t.Errorf("%d and %d requests: the hint of trusted clients counts, and that of others does not", len(onA), len(onB))
	}
	for _, r := range append(onA, onB...) {
		if r.path == chatPath && r.body != "" && r.header.Get("x-kept") == "" {
			t.Errorf("an ordinary header is lost: %v", r.header)
		}
		for name := range r.header {
			name = strings.ToLower(name)
			unknown := strings.HasPrefix(name, "x-stator-") && name != "x-stator-anything"
			if unknown || strings.HasPrefix(name, "x-gateway-") || name == "x-data-parallel-rank" {
				t.Errorf("a worker got the header %s", name)
			}
		}
	}
}

// TestIdleConnectionsAreClosedByEnvoy: Envoy closes idle connections to a worker that keeps them open. vLLM's server closes a connection
// that was idle for five seconds, and a request must not meet the end of its connection.
func TestIdleConnectionsAreClosedByEnvoy(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	byEnvoy := make(chan error, 16)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { byEnvoy <- answerUntilIdle(c) }()
		}
	}()

	e := startEdge(t, false, "decisionTimeout: 500ms", simModel("sim", &backend{address: ln.Addr().String()}))
	if r := e.ask("sim", "hello"); r.status != 200 {
		t.Fatalf("status %d: %s", r.status, r.body)
	}
	select {
	case err := <-byEnvoy:
		if err != nil {
			t.Errorf("Envoy did not close the connection: %v", err)
		}
	case <-time.After(2 * patience):
		t.Error("Envoy has no connection")
	}
}

// answerUntilIdle answers requests until Envoy closes the connection. Otherwise it returns an error.
func answerUntilIdle(c net.Conn) error {
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	for {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		r, err := http.ReadRequest(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
	}
}

// TestHeadersOfEngines: engines set no cookies of the gateway's site, and no header of the endpoint picker protocol.
func TestHeadersOfEngines(t *testing.T) {
	t.Parallel()
	w := startBackend(t, func(_ *backend, out http.ResponseWriter, _ string) {
		out.Header().Set("set-cookie", "a=b")
		out.Header().Set("x-gateway-destination-endpoint", "10.0.0.1:1")
		out.Header().Set("x-kept", "yes")
		_, _ = fmt.Fprint(out, `{"choices":[]}`)
	})
	e := startEdge(t, true, "", simModel("sim", w))
	r, err := e.send(t.Context(), http.MethodPost, "/v1/completions", []byte(`{"model":"sim","prompt":"hello"}`))
	if err != nil || r.status != http.StatusOK {
		t.Fatalf("%d %s, %v", r.status, r.body, err)
	}
	if r.header.Get("set-cookie") != "" || r.header.Get("x-gateway-destination-endpoint") != "" || r.header.Get("x-kept") != "yes" {
		t.Errorf("%v", r.header)
	}
}
