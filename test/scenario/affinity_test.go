package scenario

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/test/affinitykeys"
	"github.com/stator-project/stator/wasm/affinity"
)

const affinityHeader = "x-stator-affinity"

// buildModule builds the Wasm module beside the program, where stator up finds it, and returns its path.
var buildModule = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(binary), "affinity.wasm")
	build := exec.Command("go", "build", "-buildmode=c-shared", "-trimpath", "-ldflags=-s -w", "-o", path, "../../wasm/filter")
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build the Wasm module: %w\n%s", err, out)
	}
	return path, err
})

// affinityFlags returns the flags of stator xds for the settings of a gateway: the path of the module if they need it.
func affinityFlags(t *testing.T, settings string) []string {
	t.Helper()
	if !strings.Contains(settings, "affinityFilter: wasm") {
		return nil
	}
	path, err := buildModule()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"--affinity-module", path}
}

// TestAffinityKeysInEnvoy: without a router, requests reach a worker by the key that package affinity computes of their
// body. Requests with equal keys reach one worker. What a client writes into the header does not count.
func TestAffinityKeysInEnvoy(t *testing.T) {
	t.Parallel()
	a, b := startBackend(t, nil), startBackend(t, nil)
	e := startEdge(t, false, "affinityFilter: wasm, decisionTimeout: 500ms", simModel("sim", a, b))

	for _, g := range []*gateway{e.gateway, e.trusted} {
		for _, example := range affinitykeys.All() {
			r, err := g.send(t.Context(), http.MethodPost, chatPath, []byte(example.Body), affinityHeader, "forged")
			if err != nil || r.status != http.StatusOK {
				t.Fatalf("status %d, %v: %.100s", r.status, err, example.Body)
			}
		}
	}

	workers := map[string]*backend{}
	for _, w := range []*backend{a, b} {
		for _, r := range w.got() {
			want, _ := affinity.Key([]byte(r.body))
			if got := r.header.Get(affinityHeader); got != want {
				t.Errorf("key %q, want %q: %.100s", got, want, r.body)
			}
			if before, known := workers[want]; known && before != w && want != "" {
				t.Errorf("both workers got requests of the key %q", want)
			}
			workers[want] = w
		}
	}
	if n := len(a.got()) + len(b.got()); n < 2*len(affinitykeys.All()) || len(a.got()) == 0 || len(b.got()) == 0 {
		t.Errorf("%d and %d requests", len(a.got()), len(b.got()))
	}
}

// TestAffinityFilterLeavesDecisionsAlone: a request that a router has decided gets no key, on either listener, also if its
// client has written one.
func TestAffinityFilterLeavesDecisionsAlone(t *testing.T) {
	t.Parallel()
	a := startBackend(t, nil)
	e := startEdge(t, true, "affinityFilter: wasm, hints: headers", simModel("sim", a))
	for _, g := range []*edge{e, {gateway: e.trusted}} {
		r := g.ask("sim", "Who kept the light?", affinityHeader, "forged")
		if r.status != http.StatusOK || r.decision == "" {
			t.Errorf("status %d, decision %q", r.status, r.decision)
		}
	}

	decided := 0
	for _, r := range a.got() {
		if !strings.Contains(r.body, "Who kept the light?") {
			continue
		}
		decided++
		if key := r.header.Get(affinityHeader); key != "" {
			t.Errorf("a decided request has the key %q", key)
		}
	}
	if decided != 2 {
		t.Errorf("%d decided requests arrived, want 2", decided)
	}
}

// TestAffinityOfLargeAndOddBodies: bodies up to the gateway's bound pass, whole, with and without a length; so do
// bodies with trailers, requests without a body, and sessions that a client names.
func TestAffinityOfLargeAndOddBodies(t *testing.T) {
	t.Parallel()
	a, b := startBackend(t, nil), startBackend(t, nil)
	e := startEdge(t, false, "affinityFilter: wasm, decisionTimeout: 500ms, maxBodyBytes: 8388608", simModel("sim", a, b))
	last := func(worker *backend) received {
		list := worker.got()
		return list[len(list)-1]
	}
	chat := func(size int) string {
		return `{"model":"sim","messages":[{"role":"user","content":"Who?"},{"role":"assistant","content":"` + strings.Repeat("x", size) + `"}]}`
	}
	key, _ := affinity.Key([]byte(chat(0)))

	var keeper *backend
	for _, size := range []int{0, 40_000, 600_000, 3 << 20, 8<<20 - 200} {
		for _, chunked := range []bool{false, true} {
			body := chat(size)
			before := len(a.got())
			if status := e.post(body, chunked, nil); status != http.StatusOK {
				t.Fatalf("%d bytes, chunked %v: status %d", len(body), chunked, status)
			}
			worker := b
			if len(a.got()) > before {
				worker = a
			}
			if keeper == nil {
				keeper = worker
			}
			if r := last(worker); r.body != body || r.header.Get(affinityHeader) != key || worker != keeper {
				t.Errorf("%d bytes, chunked %v: %d bytes arrived, key %q, want %q; on the same worker: %v", len(body), chunked,
					len(r.body), r.header.Get(affinityHeader), key, worker == keeper)
			}
		}
	}

	if status := e.post(chat(8<<20), false, nil); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body beyond the bound: status %d", status)
	}
	onA, onB := len(a.got()), len(b.got())
	if status := e.post(chat(100), true, http.Header{"X-Checksum": {"1"}}); status != http.StatusOK {
		t.Errorf("a body with trailers: status %d", status)
	}
	if r := last(keeper); r.header.Get(affinityHeader) != key || len(a.got())+len(b.got()) != onA+onB+1 {
		t.Errorf("a body with trailers: key %q, want %q", r.header.Get(affinityHeader), key)
	}
	if r, err := e.send(t.Context(), http.MethodPost, chatPath, nil); err != nil || r.status != http.StatusOK {
		t.Errorf("no body: status %d, %v", r.status, err)
	}

	// One session has many conversations, and all of them stay on one worker.
	beforeA, beforeB := len(a.got()), len(b.got())
	for i := range 20 {
		if r := e.ask("sim", fmt.Sprint("Question ", i), "x-session-id", "one"); r.status != http.StatusOK {
			t.Errorf("status %d", r.status)
		}
	}
	if n, m := len(a.got())-beforeA, len(b.got())-beforeB; n*m != 0 {
		t.Errorf("one session is on two workers: %d and %d requests", n, m)
	}
}

// post sends a chat, with a length or in chunks, and returns the status. Trailers need chunks, and HTTP/2, because Envoy drops
// those of HTTP/1.
func (e *edge) post(body string, chunked bool, trailer http.Header) int {
	e.t.Helper()
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodPost, e.url+chatPath, strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("content-type", "application/json")
	if chunked {
		req.ContentLength = -1
		req.Trailer = trailer
	}
	c := client
	if trailer != nil {
		transport := &http.Transport{Protocols: &http.Protocols{}}
		transport.Protocols.SetUnencryptedHTTP2(true)
		defer transport.CloseIdleConnections()
		c = &http.Client{Timeout: patience, Transport: transport}
	}
	resp, err := c.Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestAffinityWhileTheRouterIsAway plays conversations of six turns on four simulated engines: with a router, without
// one but with the filter, and with neither. It prints the share of prompt tokens that engines had cached.
func TestAffinityWhileTheRouterIsAway(t *testing.T) {
	t.Parallel()
	with, without := affinityParts(t, "wasm"), affinityParts(t, "off")
	kv, _, unpicked := with.converse("kv")
	if unpicked != 0 {
		t.Errorf("%d requests were not picked while there was a router", unpicked)
	}

	with.extproc.kill()
	without.extproc.kill()
	kept, moves, _ := with.converse("filter")
	spread, movesWithout, _ := without.converse("neither")
	session, _, _ := without.converse("session", "x-session-id")
	t.Logf("cached share of prompt tokens: kv %.3f; router away: filter %.3f (%.0f %% of kv), neither %.3f (%.0f %%), session header %.3f",
		kv, kept, 100*kept/kv, spread, 100*spread/kv, session)

	if moves != 0 {
		t.Errorf("with the filter, conversations came to a worker without their cache in %d turns", moves)
	}
	if movesWithout == 0 || spread > 0.8*kept {
		t.Errorf("without the filter, %d turns came to a worker without cache: the test shows little", movesWithout)
	}
	if kept < 0.7*kv {
		t.Errorf("the share with the filter is %.3f, less than 70 %% of %.3f", kept, kv)
	}
}

// affinityParts starts a fleet of four engines for that value of gateway.affinityFilter.
func affinityParts(t *testing.T, filter string) *parts {
	t.Helper()
	return startPartsFor(t, partsSettings{workers: 4, gateway: ", affinityFilter: " + filter, xds: affinityFlags(t, "affinityFilter: "+filter)})
}

// converse plays 24 conversations of six turns, eight at a time. It returns the share of prompt tokens that were
// cached, in how many turns after the first an engine had nothing of the turn before cached, and how many turns no router
// decided. A header that is named gets the name of the conversation.
func (p *parts) converse(name string, header ...string) (share float64, moves, unpicked int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	prompt, cached := 0, 0
	limit := make(chan struct{}, 8)
	for i := range 24 {
		all.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			topic := fmt.Sprintf("%s parish number %d", name, i)
			messages := []message{{"system", "You are the archivist of " + topic + ". " + strings.Repeat("You answer from its records alone. ", 20)}}
			var headers []string
			for _, h := range header {
				headers = append(headers, h, topic)
			}
			before := 0
			for turn := range 6 {
				messages = append(messages, message{"user", fmt.Sprintf("What do the records of %s say of the year %d?", topic, 1900+turn)})
				r, err := p.tryChat(ctx, messages, 12, headers...)
				if err != nil {
					p.t.Error(err)
					return
				}
				messages = append(messages, message{"assistant", r.text})

				mu.Lock()
				prompt += r.usage.PromptTokens
				cached += r.usage.Details.CachedTokens
				if turn > 0 && r.usage.Details.CachedTokens < before-64 {
					moves++
				}
				if r.decision == "" {
					unpicked++
				}
				mu.Unlock()
				before = r.usage.PromptTokens
			}
		})
	}
	all.Wait()
	return float64(cached) / float64(max(1, prompt)), moves, unpicked
}

// TestAffinityModuleIsMissing: a control plane without the path of the module does not start.
func TestAffinityModuleIsMissing(t *testing.T) {
	t.Parallel()
	file := configFile(t, "gateway: {affinityFilter: wasm}\nmodels: [{name: sim, path: \"builtin:sim\", launch: [{engine: sim}]}]\n")
	c := start(t, "xds", "--config", file, "--listen-address", freeAddress(t), "--admin-address", "127.0.0.1:0")
	select {
	case <-c.done:
	case <-time.After(patience):
		t.Fatal("it runs")
	}
	if c.err == nil || !strings.Contains(c.out.String(), "--affinity-module") {
		t.Errorf("%v: %s", c.err, c.out)
	}
}
