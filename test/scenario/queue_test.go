package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// hold keeps the only worker busy, with a stream of a long prompt, until the returned function is called. It returns when the router knows
// that more than 0.2 % of the engine's cache are in use.
func (g *gateway) hold() (release func()) {
	g.t.Helper()
	body, err := json.Marshal(map[string]any{"model": "sim", "stream": true, "max_tokens": 100_000,
		"messages": []message{{"user", strings.Repeat("a prompt that occupies blocks ", 40)}}})
	if err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(g.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+chatPath, strings.NewReader(string(body)))
	if err != nil {
		g.t.Fatal(err)
	}
	resp, err := g.do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		g.t.Fatalf("%v, %v", resp, err)
	}
	eventually(g.t, "the engine reports that it is busy", func() error {
		var page struct {
			Ranks []struct {
				KVUsage float64 `json:"reported_kv_usage"`
			}
		}
		g.page("/debug/fleet", &page)
		if page.Ranks[0].KVUsage <= 0.002 {
			return fmt.Errorf("%+v", page)
		}
		return nil
	})
	return func() {
		cancel()
		_ = resp.Body.Close()
	}
}

func (g *gateway) waiting(n float64) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("%g wait", n), func() error {
		if have := g.metric("stator_route_queue_requests"); have != n {
			return fmt.Errorf("%g wait", have)
		}
		return nil
	})
}

// TestQueuedRequestOutlivesEnvoysTimeout: Envoy waits one second for a decision, and a request waits two and a half for its worker: the
// pick still serves it. A request whose client leaves meanwhile leaves nothing behind. One whose deadline passes gets
// the configured status.
func TestQueuedRequestOutlivesEnvoysTimeout(t *testing.T) {
	t.Parallel()
	g := up(t, "--config", configFile(t, `
gateway: {decisionTimeout: 1s, hintsFrom: everyone}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 1, args: {blocks: 4096}}]
  router:
    busy: {kvUsage: 0.002, status: 529}
    queue: {maxWait: 20s, classes: [{name: interactive, quantum: 400}, {name: batch, quantum: 100}]}
`))
	release := g.hold()
	defer release()

	began := time.Now()
	first := make(chan reply, 1)
	go func() {
		r, err := g.tryChat(t.Context(), []message{{"user", "who waits, is served"}}, 1)
		if err != nil {
			t.Error(err)
		}
		first <- r
	}()
	g.waiting(1)

	const leavers = 20
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range leavers {
		all.Go(func() {
			if _, err := g.tryChat(ctx, []message{{"user", fmt.Sprintf("client %d has no patience", i)}}, 1); err == nil {
				t.Error("a request was served while its worker was busy")
			}
		})
	}
	g.waiting(1 + leavers)
	leave()
	all.Wait()
	g.waiting(1)

	late, err := g.send(t.Context(), http.MethodPost, chatPath, []byte(`{"model": "sim", "max_tokens": 1,
		"messages": [{"role": "user", "content": "now or never"}], "nvext": {"router": {"ttft_deadline_ms": 700, "class": "batch"}}}`))
	if err != nil || late.status != 529 || late.error.Code != "waited_too_long" || late.header.Get("retry-after") == "" {
		t.Errorf("past its deadline: status %d, retry-after %q, %v: %s", late.status, late.header.Get("retry-after"), err, late.body)
	}

	time.Sleep(time.Until(began.Add(2500 * time.Millisecond))) // it is time that is under test
	release()
	r := <-first
	if took := time.Since(began); took < 2500*time.Millisecond || r.decision == "" {
		t.Errorf("served after %v, decision %q", took, r.decision)
	}
	text, err := get("http://" + g.admin + "/debug/decisions/" + r.decision)
	if err != nil || !strings.Contains(text, "waited ") || !strings.Contains(text, "class interactive") {
		t.Errorf("%v: %s", err, text)
	}
	if n := g.metric("stator_route_queue_cancelled_total"); n != leavers {
		t.Errorf("%g have left, want %d", n, leavers)
	}
	if n := g.metric("stator_extproc_requests_total", `outcome="waited_too_long"`); n != 1 {
		t.Errorf("%g waited too long, want 1", n)
	}
	g.assertServed(2) // the one that held the worker, and the one that waited
}

// TestHintHeadersOfTrustedClients: a trusted client's headers choose the worker. For other clients Envoy does not send these headers
// to the router.
func TestHintHeadersOfTrustedClients(t *testing.T) {
	t.Parallel()
	const models = `
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 2}]
`
	body := []byte(`{"model": "sim", "max_tokens": 1, "prompt": "hello"}`)
	g := up(t, "--config", configFile(t, "gateway: {hints: headers, hintsFrom: everyone}"+models))
	for i := range 6 {
		want := fmt.Sprintf("sim-%d", i%2)
		r, err := g.send(t.Context(), http.MethodPost, "/v1/completions", body, "x-stator-worker", want)
		if err != nil || r.status != 200 {
			t.Fatalf("status %d, %v: %s", r.status, err, r.body)
		}
		if d := g.decision(r.decision); d.Worker != want {
			t.Errorf("%s took what %s was named for", d.Worker, want)
		}
	}
	r, err := g.send(t.Context(), http.MethodPost, "/v1/completions", body, "x-stator-deadline", "soon")
	if err != nil || r.status != 400 || r.error.Code != "invalid_header" {
		t.Errorf("status %d, %v: %s", r.status, err, r.body)
	}
	g.assertServed(6)

	g = up(t, "--config", configFile(t, strings.TrimPrefix(models, "\n")))
	r, err = g.send(t.Context(), http.MethodPost, "/v1/completions", body, "x-stator-worker", "nobody", "x-stator-deadline", "soon")
	if err != nil || r.status != 200 {
		t.Errorf("status %d, %v: %s", r.status, err, r.body)
	}
	g.assertServed(1)
}
