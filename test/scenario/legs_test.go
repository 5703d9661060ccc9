package scenario

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fault is what happens to the next requests for answers at an engine.
type fault int

const (
	noFault        fault = iota
	serverError          // it answers 500
	deadBefore           // the connection ends, and the engine has not seen the request
	deadDuring           // the engine has answered, and the connection ends instead
	noParameters         // it answers 200 without parameters of a transfer
	halfFilled           // with some of them
	late                 // its answer comes after the lease
	hangs                // it does not answer
	replaced             // a new process has its addresses when its answer comes
	replacedDuring       // the same, and the connection ends instead
)

// faults are those of one or more engines. The first requests have them, as many as left.
type faults struct {
	mu       sync.Mutex
	next     fault          // guarded by mu
	left     int            // guarded by mu
	injected int            // guarded by mu; requests that had a fault
	last     http.Header    // guarded by mu; of the last request for an answer
	arrived  chan struct{}  // receives each request that hangs
	stopped  chan time.Time // and when it was cancelled
}

func newFaults() *faults {
	return &faults{arrived: make(chan struct{}, 8), stopped: make(chan time.Time, 8)}
}

// set has the next request fail.
func (f *faults) set(to fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next, f.left = to, 1
	f.injected = 0
}

// take returns the fault of a request with these headers.
func (f *faults) take(headers http.Header) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = headers.Clone()
	if f.left == 0 || f.next == noFault {
		return noFault
	}
	f.left--
	f.injected++
	return f.next
}

func (f *faults) happened() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.injected
}

func (f *faults) headers() http.Header {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// faulty stands before an engine.
type faulty struct {
	*faults
	address string
	behind  *httputil.ReverseProxy
	replace func() // kills the engine, and starts it again at the same addresses
}

func newFaulty(t *testing.T, engine string, f *faults, replace func()) *faulty {
	proxy := &faulty{faults: f, replace: replace, behind: httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: engine})}
	proxy.behind.FlushInterval = -1
	proxy.behind.Transport = &http.Transport{DisableKeepAlives: true} // to an engine that was replaced, it would answer 502
	proxy.behind.ErrorLog = log.New(io.Discard, "", 0)
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	proxy.address = strings.TrimPrefix(server.URL, "http://")
	return proxy
}

// lease is how long the engines of this file keep blocks.
const lease = 500 * time.Millisecond

// ServeHTTP implements http.Handler.
func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := noFault
	if r.Method == http.MethodPost {
		now = f.take(r.Header)
	}
	if now == noFault {
		f.behind.ServeHTTP(w, r)
		return
	}

	body, _ := io.ReadAll(r.Body) // the end of the client is noticed after that only
	r.Body = io.NopCloser(bytes.NewReader(body))
	switch now {
	case serverError:
		http.Error(w, `{"error":{"message":"Internal server error"}}`, http.StatusInternalServerError)
	case deadBefore:
		panic(http.ErrAbortHandler)
	case deadDuring:
		f.behind.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case noParameters:
		_, _ = io.WriteString(w, `{"choices":[],"kv_transfer_params":null}`)
	case halfFilled:
		_, _ = io.WriteString(w, `{"choices":[{"disaggregated_params":{}}],"kv_transfer_params":{"do_remote_prefill":true}}`)
	case late:
		answer := httptest.NewRecorder()
		f.behind.ServeHTTP(answer, r)
		time.Sleep(2 * lease)
		_, _ = w.Write(answer.Body.Bytes())
	case replaced:
		answer := httptest.NewRecorder()
		f.behind.ServeHTTP(answer, r)
		f.replace()
		_, _ = w.Write(answer.Body.Bytes())
	case replacedDuring:
		f.behind.ServeHTTP(httptest.NewRecorder(), r)
		f.replace()
		panic(http.ErrAbortHandler)
	case hangs:
		f.arrived <- struct{}{}
		<-r.Context().Done()
		f.stopped <- time.Now()
	}
}

// legs is a fleet of one engine that prefills and two that decode, whose faults a test sets.
type legs struct {
	*gateway
	prefill, decode *faults
	whole           *gateway // one engine, whose answers are right
	chats           int
}

func startLegs(t *testing.T, transfer string) *legs {
	t.Helper()
	l := &legs{whole: up(t, "--workers", "1"), prefill: newFaults(), decode: newFaults()}
	config := "gateway: {passPaths: [/v1/responses, /v1/messages, /inference/v1/generate]}\nmodels:\n- name: sim\n  path: \"builtin:sim\"\n  router: {prefill: remote}\n  workers:\n"
	for name, f := range map[string]*faults{"p": l.prefill, "d0": l.decode, "d1": l.decode} {
		role := map[byte]string{'p': "prefill", 'd': "decode"}[name[0]]
		at, side := freeAddress(t), freeAddress(t)
		flags := []string{"sim", "--name", name, "--listen-address", at, "--log-level", "error", "--kv-transfer", side,
			"--kv-transfer-kind", transfer, "--kv-transfer-lease", lease.String(), "--kv-transfer-timeout", "1s"}
		if transfer == "bootstrap" {
			flags = append(flags, "--kv-transfer-role", role)
		}
		engine := start(t, flags...)
		replace := func() {
			engine.kill()
			engine = start(t, flags...)
			eventually(t, "the new process is ready", func() error {
				_, err := get("http://" + at + "/health")
				return err
			})
		}

		address := ""
		if transfer == "p2p" || transfer == "bootstrap" {
			address = ", transferAddress: \"" + side + "\""
		}
		config += fmt.Sprintf("  - {name: %s, role: %s, address: %q, engine: sim, healthPath: none, transfer: %s%s}\n",
			name, role, newFaulty(t, at, f, replace).address, transfer, address)
	}
	l.gateway = up(t, "--config", configFile(t, config))
	l.awaitTransfer()
	return l
}

// prompt returns a chat that no engine has seen.
func (l *legs) prompt() []message {
	l.chats++
	return []message{{"user", fmt.Sprintf("%d %s", l.chats, strings.Repeat("two legs of a request ", 20))}}
}

// awaitTransfer sends chats until one is transferred: workers that have failed are in doubt for a while. A chat may find no worker then, but
// no worker gets a request that it refuses.
func (l *legs) awaitTransfer() {
	l.t.Helper()
	before := l.prefills("transferred")
	eventually(l.t, "a prompt is transferred", func() error {
		r, err := l.tryChat(l.t.Context(), l.prompt(), 2)
		switch {
		case err != nil:
			l.chats-- // those that are answered count
			if r.status >= 400 && r.status < 500 {
				l.t.Error(err)
			}
		case l.prefills("transferred") == before:
			err = errNotYet
		}
		return err
	})
}

// TestLegsFail: whatever happens to one of both legs, the client gets the answer that one engine gives, and no booking is left.
func TestLegsFail(t *testing.T) {
	t.Parallel()
	for _, transfer := range []string{"nixl", "context", "p2p", "bootstrap"} {
		t.Run(transfer, func(t *testing.T) {
			l := startLegs(t, transfer)
			for _, c := range []struct {
				name            string
				prefill, decode fault
			}{
				{"nothing", noFault, noFault},
				{"the prefill worker answers 500", serverError, noFault},
				{"the prefill worker is dead", deadBefore, noFault},
				{"the prefill worker dies", deadDuring, noFault},
				{"the prefill worker answers without parameters", noParameters, noFault},
				{"the prefill worker answers with half of them", halfFilled, noFault},
				{"the lease is over", late, noFault},
				{"the prefill worker is another process when it has answered", replaced, noFault},
				{"the prefill worker is another process before it answers", replacedDuring, noFault},
				{"the decode worker is another process before it answers", noFault, replacedDuring},
				{"the decode worker answers 500", noFault, serverError},
				{"the decode worker is dead", noFault, deadBefore},
				{"the decode worker dies", noFault, deadDuring},
			} {
				chat := l.prompt()
				want := l.whole.chat(chat, 6).text
				l.prefill.set(c.prefill)
				l.decode.set(c.decode)
				r, err := l.tryChat(t.Context(), chat, 6)
				// SGLang's decode workers compute no prompts, and the only prefill worker starts.
				if transfer == "bootstrap" && c.prefill >= replaced && r.status == http.StatusServiceUnavailable {
					l.chats--
				} else if err != nil || r.text != want {
					t.Errorf("%s: %q, want %q, %v", c.name, r.text, want, err)
				}
				if n := l.prefill.happened() + l.decode.happened(); (n > 0) != (c.prefill != noFault || c.decode != noFault) {
					t.Errorf("%s: it has happened %d times", c.name, n)
				}
				l.assertNothingBooked()
				l.awaitTransfer()
			}
			eventually(t, "every answer counts for its worker", func() error {
				if n := l.metric("stator_request_answers_total", `code="2xx"`); n != float64(l.chats) {
					return fmt.Errorf("%g of %d", n, l.chats)
				}
				return nil
			})
		})
	}
}

var legTrials = flag.Int("legs.trials", 1, "`times` that each leg of a request is cancelled")

// TestClientsLeaveEachLeg: when a client leaves, the leg that hangs is cancelled, whichever it is. It prints how soon.
func TestClientsLeaveEachLeg(t *testing.T) {
	t.Parallel()
	for _, transfer := range []string{"nixl", "bootstrap"} {
		l := startLegs(t, transfer)
		for name, leg := range map[string]*faults{"prefill": l.prefill, "decode": l.decode} {
			var took []time.Duration
			for range *legTrials {
				took = append(took, l.leave(leg))
				l.assertNothingBooked()
				l.awaitTransfer()
			}
			slices.Sort(took)
			t.Logf("%s: the %s leg was cancelled after p50 %s, p99 %s, max %s of %d trials", transfer, name, percentile(took, 50),
				percentile(took, 99), percentile(took, 100), len(took))
		}
	}
}

// leave sends a request whose leg hangs, has its client leave, and returns after what time that leg was cancelled.
func (l *legs) leave(leg *faults) time.Duration {
	l.t.Helper()
	leg.set(hangs)
	ctx, cancel := context.WithCancel(l.t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := l.tryChat(ctx, l.prompt(), 4)
		left <- err
	}()

	select {
	case <-leg.arrived:
	case err := <-left:
		l.t.Fatalf("the leg did not hang: %v", err)
	}
	began := time.Now()
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		l.t.Error(err)
	}
	return (<-leg.stopped).Sub(began)
}

// TestLegsHaveTheSameHeaders: both engines get the client's credentials and the same request id.
func TestLegsHaveTheSameHeaders(t *testing.T) {
	t.Parallel()
	for _, transfer := range []string{"nixl", "p2p"} {
		l := startLegs(t, transfer)
		if _, err := l.tryChat(t.Context(), l.prompt(), 4, "authorization", "Bearer key", "x-request-id", "of-the-client"); err != nil {
			t.Fatal(err)
		}
		for name, leg := range map[string]*faults{"prefill": l.prefill, "decode": l.decode} {
			h := leg.headers()
			if h.Get("authorization") != "Bearer key" || h.Get("x-request-id") != "of-the-client" || h.Get("x-stator-decision") != "" && transfer == "p2p" {
				t.Errorf("%s: the %s worker gets %v", transfer, name, h)
			}
		}
	}
}

// TestEndpointsOfLegs: each endpoint of vLLM has two legs, with and without a stream.
func TestEndpointsOfLegs(t *testing.T) {
	t.Parallel()
	l := startLegs(t, "nixl")
	n := 0
	for path, body := range map[string]string{
		"/v1/chat/completions": `"messages":[{"role":"user","content":"a chat of words"}],"max_tokens":4`,
		"/v1/completions":      `"prompt":"a completion of words","max_tokens":4`,
		"/v1/messages":         `"messages":[{"role":"user","content":"a message of words"}],"max_tokens":4`,
		"/v1/responses":        `"input":"a response of words","max_output_tokens":4`,
	} {
		for _, stream := range []string{"false", "true"} {
			n++
			before := l.prefills("transferred")
			r, err := l.send(t.Context(), http.MethodPost, path, []byte(`{"model":"sim","stream":`+stream+`,`+body+`}`))
			if err != nil || r.status != http.StatusOK {
				t.Errorf("%s, stream %s: %d %s, %v", path, stream, r.status, r.body, err)
			}
			l.awaitPrefills("transferred", before+1)
		}
	}
	// Engines of this simulation do not have the other path: both legs get 404, and the client gets it once.
	before := l.prefills("refused")
	r, err := l.send(t.Context(), http.MethodPost, "/inference/v1/generate", []byte(`{"model":"sim","input":"a"}`))
	if err != nil || r.status != http.StatusNotFound {
		t.Errorf("generate: %d %s, %v", r.status, r.body, err)
	}
	l.awaitPrefills("refused", before+1)
	l.assertNothingBooked()
}

// TestPullOfAPrefix: where the worker that holds a prompt is busy, another one fetches it from there.
func TestPullOfAPrefix(t *testing.T) {
	t.Parallel()
	g := up(t, "--config", configFile(t, `
gateway: {hintsFrom: everyone}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 2, args: {transfer: p2p}}]
`))
	shared := strings.Repeat("a prompt that one worker holds ", 200)
	first := g.chat([]message{{"user", shared}}, 2)
	holder := g.decision(first.decision).Worker

	// Prompts that only the holder may compute.
	var all sync.WaitGroup
	for i := range 32 {
		body := fmt.Sprintf(`{"model":"sim","max_tokens":2,"prompt":%q,"nvext":{"router":{"worker":%q}}}`,
			fmt.Sprint(i, strings.Repeat(" words for the holder alone", 800)), holder)
		all.Go(func() {
			if r, err := g.send(t.Context(), http.MethodPost, "/v1/completions", []byte(body)); err != nil || r.status != http.StatusOK {
				t.Errorf("%d %s, %v", r.status, r.body, err)
			}
		})
	}
	eventually(t, "the holder is busy", func() error {
		if n := g.metric("stator_route_bookings"); n < 6 {
			return fmt.Errorf("%g bookings", n)
		}
		return nil
	})

	r := g.chat([]message{{"user", shared}}, 2)
	d := g.decision(r.decision)
	if d.Worker == holder || d.Pull.Worker != holder || r.usage.Details.CachedTokens < d.Pull.Tokens || d.Pull.Tokens < r.usage.PromptTokens/2 {
		t.Errorf("%s, with %+v and %d of %d tokens cached", d.Worker, d.Pull, r.usage.Details.CachedTokens, r.usage.PromptTokens)
	}
	all.Wait()
	g.assertNothingBooked()
}
