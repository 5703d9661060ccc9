package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// idles is a model that may have no engine, which takes longer to start than Envoy waits for a decision.
const idles = `
planner: {connector: local, algorithm: sla, interval: 1s, drainTimeout: 20s}
models:
- name: sim
  path: "builtin:sim"
  idleAfter: 3s
  router: {queue: {hold: 12s}}
  launch: [{engine: sim, count: 1, max: 2, startUp: 20s, args: {startup: 3s}}]
`

// TestFromZero: a model without requests has no engine. Forty requests that come then, by way of two routers, wait for one engine that
// starts, and all get their complete answers. That happens again and again. Where no engine comes a request waits for as long as the
// configuration has it, and where no planner is there it does not wait at all.
func TestFromZero(t *testing.T) {
	t.Parallel()
	secondAt, secondAdmin := freeAddress(t), freeAddress(t)
	p := startPartsFor(t, partsSettings{models: idles, xds: []string{"--extproc-address", secondAt}})
	restart := func() *command {
		return start(t, "extproc", "--config", p.file, "--listen-address", secondAt, "--admin-address", secondAdmin)
	}
	second := &gateway{t: t, admin: secondAdmin, up: restart()}
	eventually(t, "the second router is ready", func() error {
		_, err := get("http://" + secondAdmin + "/readyz")
		return err
	})
	waited := func() float64 {
		return p.metric("stator_route_queued_requests_total") + second.metric("stator_route_queued_requests_total")
	}

	for range 2 {
		p.awaitEngines(0)
		if _, err := p.read("/readyz"); err != nil {
			t.Errorf("a router whose model has no engine is not ready: %v", err)
		}
		before := waited()
		const clients = 40
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() {
				if err := p.completeAnswer("sim", i%2 == 0, i, 8); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		// On a busy machine some may come when the engine is ready, or its time may be over before the page is read.
		if n := waited() - before; n == 0 || n > clients {
			t.Errorf("%g requests have waited, want at most %d", n, clients)
		}
		if f := p.fleet(); len(f) > 1 {
			t.Errorf("%d engines were started: %+v", len(f), f)
		}
	}
	p.awaitEngines(0)
	p.killWhileRequestsWait(second)
	second.up = restart()
	if n := p.planned("stator_planner_start_up_seconds"); n < 3 || n >= 20 {
		t.Errorf("the planner has measured %g s for a start", n)
	}

	p.awaitEngines(0)
	p.agent.kill()
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		p.waitingAt(second, 1)
		leave()
	}()
	if _, err := p.tryChat(ctx, []message{{"user", "this client leaves"}}, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("without an agent: %v", err)
	}
	p.waitingAt(second, 0)
	r, err := p.send(t.Context(), http.MethodPost, chatPath, hello)
	if err != nil || r.status != http.StatusServiceUnavailable || r.header.Get("retry-after") == "" ||
		!strings.Contains(r.error.Message, "none has become ready in 12.0 s, while this request waited") {
		t.Errorf("no engine comes: status %d, retry-after %q, %v: %s", r.status, r.header.Get("retry-after"), err, r.body)
	}

	p.planner.kill()
	eventually(t, "requests are refused at once", func() error {
		r, err := p.send(t.Context(), http.MethodPost, chatPath, hello)
		if err != nil || r.status != http.StatusServiceUnavailable ||
			!strings.Contains(r.error.Message, "it has none, and no planner is there that would start one") {
			return fmt.Errorf("status %d, %w: %s", r.status, err, r.body)
		}
		return nil
	})
	p.assertNothingBooked()
}

// killWhileRequestsWait kills a router at which some of the requests wait. Those are answered at once, with 503 because there is no engine,
// and the requests at the other router wait on and are served.
func (p *parts) killWhileRequestsWait(second *gateway) {
	p.t.Helper()
	const clients = 20
	status := make(chan int, clients)
	for range clients {
		go func() {
			r, err := p.send(p.t.Context(), http.MethodPost, chatPath, hello)
			if err != nil {
				p.t.Error(err)
			}
			status <- r.status
		}()
	}
	p.waitingAt(second, clients)
	lost := int(second.metric("stator_route_queue_requests"))
	second.up.kill()
	got := map[int]int{}
	for range clients {
		got[<-status]++
	}
	if want := map[int]int{http.StatusOK: clients - lost, http.StatusServiceUnavailable: lost}; lost > 0 && !maps.Equal(got, want) {
		p.t.Errorf("the answers are %v, want %v", got, want)
	}
}

// hello is the body of a short chat.
var hello = []byte(`{"model": "sim", "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]}`)

// waitingAt waits until so many requests wait at two routers.
func (p *parts) waitingAt(second *gateway, n float64) {
	eventually(p.t, fmt.Sprintf("%g wait", n), func() error {
		if have := p.metric("stator_route_queue_requests") + second.metric("stator_route_queue_requests"); have != n {
			return fmt.Errorf("%g do", have)
		}
		return nil
	})
}

// planned returns a figure of the planner.
func (p *parts) planned(name string) float64 {
	p.t.Helper()
	text, err := get("http://" + p.plannerAdmin + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	return sample(text, name)
}

// TestPrefillAndDecodeFromZero: prefill and decode workers end together and start together. The requests that wait for both are served.
func TestPrefillAndDecodeFromZero(t *testing.T) {
	t.Parallel()
	g := up(t, "--config", configFile(t, `
gateway: {decisionTimeout: 1s}
planner: {connector: local, interval: 1s, drainTimeout: 20s}
models:
- name: split
  path: "builtin:sim"
  router: {prefill: remote}
  idleAfter: 2s
  launch:
  - {engine: sim, role: prefill, count: 1, args: {startup: 1s}}
  - {engine: sim, role: decode, count: 1, args: {startup: 2s}}
`))
	for range 2 {
		g.awaitEngines(0)
		if _, err := g.read("/readyz"); err != nil {
			t.Errorf("a gateway whose model has no engine is not ready: %v", err)
		}
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				if err := g.completeAnswer("split", i%2 == 0, i, 8); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if f := g.fleet(); len(f) > 2 { // less if their time is over before the page is read
			t.Errorf("%d engines were started: %+v", len(f), f)
		}
	}
	if n := g.prefills("transferred"); n == 0 {
		t.Error("no prompt was computed by a prefill worker")
	}
	g.assertNothingBooked()
}
